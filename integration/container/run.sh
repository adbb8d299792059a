#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [BASE GO]: builds the Dockerfile's images from these two, uses the one that
# is for use as an administrator would, and runs the black-box tests in the other.
# Without BASE and GO, images of Debian's packages and of this machine's Go are made
# here, once. RUN is a pattern of tests (none: only the image for use; slurm:
# only the checks below the real slurmd), VERSION what the
# programs say of themselves.
set -euo pipefail
cd "$(dirname "$0")/../.."
export LC_ALL=C PATH=$PATH:/usr/local/go/bin
base=${1:-} go=${2:-}
SLURM_CACHE=${SLURM_CACHE:-/var/cache/stepd-slurm}
name=localhost/stepd
# runc: crun wants a cgroup tree of one kind. The host's own network: a bridge wants
# more than every machine has.
runtime=(--runtime runc)
# Below this machine's, which podman cannot raise without CAP_SYS_RESOURCE.
limits=(--ulimit nofile=16384:16384 --ulimit nproc=30000:30000)
# Without systemd no program asks the image for its health by itself.
[ -d /run/systemd/system ] || export DISABLE_HC_SYSTEMD=true

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
# Debian's, and a site's proxy may have others. What was compiled before is looked at,
# and not changed.
go mod download
modules=$(go env GOMODCACHE)/cache/download
compiled=$(go env GOCACHE):/root/.cache/go-build:O
mkdir -p "${compiled%%:*}"
build() {
	# An image of OCI's format has no HEALTHCHECK.
	buildah bud "${runtime[@]}" "${limits[@]}" --network host --layers --quiet --format docker --target "$1" \
		-v "$modules:/modules:ro" -v "$compiled" --build-arg GOPROXY=file:///modules \
		--build-arg "BASE=$base" --build-arg "GO=$go" --build-arg "VERSION=${VERSION:-unknown}" \
		--build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)" -t "$name:$1" . >/dev/null
	echo "container: built $name:$1 ($(podman image inspect -f '{{.Size}}' "$name:$1" | numfmt --to=si)B)"
}
in_container() {
	podman run "${runtime[@]}" "${limits[@]}" --pids-limit -1 --shm-size 2g --privileged --network none \
		--cgroupns host -v /sys/fs/cgroup:/sys/fs/cgroup:rw "$@"
}
fail() {
	echo "container: $*" >&2
	[ -z "${id:-}" ] || podman logs "$id" 2>&1 | tail -20 >&2
	exit 1
}
await() { # until the command succeeds
	for _ in {1..150}; do
		! ("$@") >/dev/null 2>&1 || return 0 # a subshell: what fails exits
		sleep 0.1
	done
	fail "not within 15 s: $*"
}
stepctl() { podman exec "$id" stepctl "$@"; }
says() { # that a command prints a text
	local text=$1 out
	shift
	out=$("$@" 2>&1) || true
	[[ $out == *"$text"* ]] || fail "$*: want $text, got: $out"
}
doc() { stepctl "$@" | grep -o "\"pid\":[0-9]*" | head -1 | cut -d: -f2; } # of a JSON document
runs() { says '"state":"RUNNING"' stepctl show --json "$1"; }

# use is what an administrator does with the image: noded is its process 1.
use() {
	build noded
	spool=stepd-spool-$$
	trap 'podman rm -f -t 5 "$id" >/dev/null 2>&1; podman volume rm -f $spool >/dev/null' EXIT
	id=$(in_container -d --hostname box --stop-timeout 60 -v "$spool:/var/spool/stepd" "$name:noded")
	await podman healthcheck run "$id"
	says box stepctl run hostname
	stepctl run -n 2 -O -l sh -c 'echo in a step of $SLURM_NTASKS tasks'

	# noded is killed: process 1 starts it again, and the step goes on.
	podman exec -d "$id" stepctl run sleep 1000
	await runs 3
	local before
	before=$(doc node status --json)
	podman exec "$id" sh -c "kill -9 $before"
	await podman healthcheck run "$id"
	[ "$(doc node status --json)" != "$before" ] || fail "noded is still process $before"
	runs 3

	# The container is stopped: SIGTERM to the step, whose record is in the spool.
	podman stop "$id" >/dev/null
	[ "$(podman inspect -f '{{.State.ExitCode}}' "$id")" = 0 ] || fail "noded's exit code is $(podman inspect -f '{{.State.ExitCode}}' "$id")"
	podman start "$id" >/dev/null
	await podman healthcheck run "$id"
	says NODE_FAIL stepctl show 3

	# It is killed: as when a host loses its power.
	podman exec -d "$id" stepctl run sleep 1000
	await runs 1001 # RUN went with the container, as in a reboot: the next block of numbers
	podman kill -s KILL "$id" >/dev/null
	podman wait "$id" >/dev/null
	podman start "$id" >/dev/null
	await podman healthcheck run "$id"
	says NODE_FAIL stepctl show 1001
	says "noded's container was started again" stepctl show 1001
	podman rm -f -t 60 "$id" >/dev/null
	podman volume rm -f "$spool" >/dev/null
	trap - EXIT
	local left
	left=$(find /sys/fs/cgroup -path "*$id*" -name 'stepd-*' -prune)
	[ -z "$left" ] || fail "cgroups are left: $left"
	echo "container: noded as process 1 serves, outlives a crash, and ends its steps with the container"
}

# suite is the black-box tests, in a volume instead of the container's own layers: an
# overlay cannot lie on another, and setuid programs and devices are wanted. With an
# interface besides lo, which Open MPI does not talk over.
suite() {
	build test
	volume=stepd-suite-$$
	trap 'podman volume rm -f $volume >/dev/null' EXIT
	in_container --rm --volume "$volume:/var/tmp:dev,suid,exec" --volume "$compiled" ${RUN:+--env RUN="$RUN"} "$name:test" sh -c '
		ip link add eth0 type veth peer name eth1 && ip address add 10.88.0.2/24 dev eth0 && ip link set eth0 up && ip link set eth1 up &&
		exec make -s integration TIMEOUT=1h'
}

# below_slurm is slurmstepd in the container, below a real slurmd whose root is this machine's.
below_slurm() {
	local checks root
	checks=01,02,03,05,08,14,18,20,21,22,24,29,30,35,37,38,39,44,46,42,53,70
	build test
	go run ./integration/slurm/run -cache "$SLURM_CACHE" -real true # makes the root
	root=$(ls -dt "$SLURM_CACHE"/22.05-*/ | head -1)
	volume=stepd-slurm-$$
	trap 'podman volume rm -f $volume >/dev/null' EXIT
	in_container --rm --volume "$volume:/var/tmp:dev,suid,exec" --volume "$compiled" \
		--volume "$root:/var/cache/stepd-slurm/$(basename "$root"):ro" --env CHECKS=$checks "$name:test" \
		make -s slurm-test RUN='^TestRootSlurm2205$'
}

use
case ${RUN:-} in
none) ;;
slurm) below_slurm ;;
*)
	suite
	[ -n "${RUN:-}" ] || below_slurm
	;;
esac
