# SPDX-License-Identifier: Apache-2.0
# noded and its programs in a Debian image, and (--target test) the black-box tests
# with all that they need. Run either with --privileged and /sys/fs/cgroup writable:
# noded tracks steps in cgroups. `make container-test` does all of it.
ARG BASE=docker.io/library/debian:bookworm-slim
ARG GO=docker.io/library/golang:1.26-bookworm
FROM ${GO} AS go

FROM ${BASE} AS tools
ENV DEBIAN_FRONTEND=noninteractive PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates gcc libc6-dev libpmix-dev make pkgconf
COPY --from=go /usr/local/go /usr/local/go
WORKDIR /src
COPY go.mod go.sum ./
ARG GOPROXY=https://proxy.golang.org,direct
RUN GOPROXY=${GOPROXY} go mod download

FROM tools AS build
COPY . .
ARG VERSION=unknown
RUN make -s all VERSION=${VERSION} && make -s install-files DESTDIR=/out VERSION=${VERSION}

# What the tests need lies below the sources, which change more often.
FROM tools AS test
COPY Makefile ./
COPY spank/host/host.mk spank/host/
COPY mpi/pmixhost/pmixhost.mk mpi/pmixhost/
RUN make -s deps-container
COPY . .
RUN make -s all examples && CGO_ENABLED=0 go test -run '^$' ./integration && CGO_ENABLED=0 go build ./internal/testkit/gate
CMD ["make", "-s", "integration"]

FROM ${BASE} AS noded
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libpmix2 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/ /
ENTRYPOINT ["/usr/sbin/noded"]
