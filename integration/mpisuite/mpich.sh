#!/bin/bash
# Builds MPICH for PMI-2 and for PMI-1, and with "suite" its own test programs,
# from Debian's source package, into a folder named by this recipe's content:
#
#   mpich.sh [suite]      prints the folder; CACHE= is where, JOBS= how many at once
#
# What exists is not built again. In CACHE, current is a link to the folder.
# It has pmi2/bin/mpicc, pmi1/bin/mpicc, and suite/, which is built with pmi2.
set -euo pipefail
cache=${CACHE:-/var/cache/stepd-mpich}
version=4.0.2-3
# ch3:sock waits in poll(2): more ranks than CPUs do not burn them. It spawns and
# connects, which the ch4:ucx of Debian's own package does not. The generic
# engine of datatypes is the small one.
options=(--with-device=ch3:sock --with-pm=no --disable-fortran --disable-cxx --disable-romio --with-datatype-engine=dataloop
	--without-hwloc --disable-static --enable-fast=O1,ndebug --disable-dependency-tracking -q)
# The directories of the suite that are run.
dirs=(attr coll comm datatype errhan group info init pt2pt spawn topo rma)

key=$(sha256sum "$0" | cut -c1-16)
out=$cache/$key
work=$out/work
mkdir -p "$work"
exec 9>"$cache/lock"
flock 9 # two builds at once would be one too many

# source_package gets it by lists of its own, so that apt's stay as they are.
source_package() {
	mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial"
	echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" >"$work/apt/list"
	local apt=(apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList="$work/apt/list" -o Dir::Etc::SourceParts=/dev/null
		-o Dir::State::Lists="$work/apt/lists" -o Dir::Cache="$work/apt")
	"${apt[@]}" update
	(cd "$work" && "${apt[@]}" source --download-only "mpich=$version" && tar xf mpich_*.orig.tar.xz)
}

# quietly runs a command, and shows its output's end if it fails.
quietly() {
	"$@" >"$work/log" 2>&1 </dev/null || { echo "cannot run $*: the end of $work/log:" >&2; tail -20 "$work/log" >&2; exit 1; }
}

# flavour configures and installs MPICH for one PMI.
flavour() {
	quietly ../mpich-*/configure --prefix="$out/$1" --with-pmi="$2" "${options[@]}"
	quietly nice make -j"${JOBS:-1}" install
}

if [ ! -e "$out/done" ]; then
	rm -rf "$work" "$out"/pmi?
	mkdir -p "$work/build"
	source_package >&2
	cd "$work/build"
	flavour pmi2 pmi2/simple
	# The rest of the objects (some 750) does not know which PMI it is.
	find src/{pmi,util,nameserv,mpid,mpi/init} -name '*.lo' -delete
	flavour pmi1 simple
	cd /
	rm -rf "$work/build"
	touch "$out/done"
fi
ln -sfn "$key" "$cache/current"
if [ "${1:-}" = suite ] && [ ! -e "$out/suite/done" ]; then
	rm -rf "$out/suite"
	mkdir "$out/suite"
	cd "$out/suite"
	quietly "$work"/mpich-*/test/mpi/configure --with-mpi="$out/pmi2" --disable-fortran --disable-cxx --disable-dependency-tracking -q
	quietly make -C dtpools
	quietly make -C util
	for d in "${dirs[@]}"; do
		list=testlist
		[ -e "$d/testlist" ] || list=$(echo "$work"/mpich-*/test/mpi/"$d"/testlist)
		# What does not compile (-k) is the runner's to tell.
		(cd "$d" && sed 's/#.*//' "$list" | awk 'NF && !/^!/ { print $1 }' | sort -u) |
			xargs -r nice make -k -j"${JOBS:-1}" -C "$d" >"$work/log.$d" 2>&1 || true
	done
	touch done
fi
echo "$out"
