#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [BASE GO]: builds the Dockerfile's images from these two, starts noded in
# the one that is for use, and runs the black-box tests in the other. Without BASE
# and GO, images of Debian's packages and of this machine's Go are made here, once.
# RUN is a pattern of tests, VERSION what the programs say of themselves.
set -euo pipefail
cd "$(dirname "$0")/../.."
export LC_ALL=C PATH=$PATH:/usr/local/go/bin
base=${1:-} go=${2:-}
name=localhost/stepd
# runc: crun wants a cgroup tree of one kind. The host's own network: a bridge wants
# more than every machine has.
runtime=(--runtime runc)
# Below this machine's, which podman cannot raise without CAP_SYS_RESOURCE.
limits=(--ulimit nofile=16384:16384 --ulimit nproc=30000:30000)

have() { podman image exists "$1"; }
if [ -z "$base" ]; then
	base=$name-base:bookworm
	have "$base" || mmdebstrap --mode=root --variant=minbase --include=ca-certificates \
		--aptopt='Acquire::Languages "none"' --quiet bookworm - | podman import -q - "$base" >/dev/null
fi
if [ -z "$go" ]; then
	go=$name-go:$(go env GOVERSION)
	have "$go" || tar -C / -c "$(go env GOROOT | cut -c2-)" --transform "s|^$(go env GOROOT | cut -c2-)|usr/local/go|" | podman import -q - "$go" >/dev/null
fi
# Modules come from this machine's cache: the image knows no more certificates than
# Debian's, and a site's proxy may have others.
go mod download
modules=$(go env GOMODCACHE)/cache/download
build() {
	buildah bud "${runtime[@]}" "${limits[@]}" --network host --layers --quiet --target "$1" \
		-v "$modules:/modules:ro" --build-arg GOPROXY=file:///modules \
		--build-arg "BASE=$base" --build-arg "GO=$go" --build-arg "VERSION=${VERSION:-unknown}" -t "$name:$1" . >/dev/null
	echo "container: built $name:$1 ($(podman image inspect -f '{{.Size}}' "$name:$1" | numfmt --to=si)B)"
}
in_container() {
	podman run "${runtime[@]}" "${limits[@]}" --pids-limit -1 --shm-size 2g --privileged --network none \
		-v /sys/fs/cgroup:/sys/fs/cgroup:rw "$@"
}

build noded
# The image for use: noded serves, and a step runs.
id=$(in_container -d "$name:noded")
trap 'podman rm -f -t 5 "$id" >/dev/null' EXIT
grep -q 'noded: ready' < <(timeout 30 podman logs -f "$id" 2>&1)
podman exec "$id" stepctl node status
podman exec "$id" stepctl run -n 2 -O -l sh -c 'echo in a step of $SLURM_NTASKS tasks'
podman rm -f -t 5 "$id" >/dev/null
trap - EXIT

build test
# A volume instead of the container's own layers: an overlay cannot lie on another, and
# setuid programs and devices are wanted. An interface besides lo, which Open MPI does
# not talk over.
volume=stepd-suite-$$
trap 'podman volume rm -f $volume >/dev/null' EXIT
in_container --rm --volume "$volume:/var/tmp:dev,suid,exec" ${RUN:+--env RUN="$RUN"} "$name:test" sh -c '
	ip link add eth0 type veth peer name eth1 && ip address add 10.88.0.2/24 dev eth0 && ip link set eth0 up && ip link set eth1 up &&
	exec make -s integration'
