# SPDX-License-Identifier: Apache-2.0
# noded and its programs in a Debian image. Run it with --privileged and
# /sys/fs/cgroup writable: noded tracks steps in cgroups.
FROM docker.io/library/golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make all && make install DESTDIR=/out

FROM docker.io/library/debian:bookworm-slim
COPY --from=build /out/ /
ENTRYPOINT ["/usr/sbin/noded"]
