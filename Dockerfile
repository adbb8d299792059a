# SPDX-License-Identifier: Apache-2.0
# noded and its programs in a Debian image, and (--target test) the black-box tests
# with all that they need. Run either with --privileged and /sys/fs/cgroup writable:
# noded tracks steps in cgroups. `make container-test` does all of it.
#
# BASE and GO may be pinned: --build-arg BASE=debian@sha256:…
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
COPY slurm/keeper/program/keeper.mk slurm/keeper/program/
COPY slurm/pam/program/pamhost.mk slurm/pam/program/
RUN make -s deps-container
COPY . .
RUN make -s all examples
CMD ["make", "-s", "integration"]

FROM ${BASE} AS noded
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libpmix2 && \
    apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/* /var/log/apt /var/log/dpkg.log
COPY --from=build /out/ /
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="stepd" \
      org.opencontainers.image.description="noded, a node daemon that runs job steps with SPANK plugins and MPI" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Process 1 hands it on to noded, and then ends the steps.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["stepctl", "node", "status"]
ENTRYPOINT ["/usr/sbin/noded"]
