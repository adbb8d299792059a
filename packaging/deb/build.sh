#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh NFPM OUT: Debian packages of what `make` has built: stepd, stepd-slurm with the step
# daemon for Slurm, stepd-common with what they share, and stepd-dev for authors of plugins. The same tree
# makes the same bytes: times are the commit's. DEB_VERSION (one or several), DEB_ARCH and
# DEB_MAINTAINER as needed.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
nfpm=$1 out=$2
mkdir -p "$out"
out=$(cd "$out" && pwd)
stage=$out/stage
rm -rf "$stage" && mkdir -p "$stage"

describe() { # a version that sorts: of the tag, else of the commit's time
	local commit tag
	if tag=$(git describe --tags --exact-match 2>/dev/null) && [[ $tag =~ ^v?[0-9] ]]; then
		echo "${tag#v}"
	elif commit=$(TZ=UTC git log -1 --date=format-local:%Y%m%d.%H%M%S --format=0~%cd.%h 2>/dev/null); then
		echo "$commit"
	else
		echo 0~unknown
	fi
}
glibc() { # the newest symbols that the C programs want
	local program
	for program in "$stage"/*/usr/libexec/stepd/{spankhost,pmixhost,stepkeeper,pamhost}; do
		[ ! -e "$program" ] || objdump -T "$program"
	done | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2
}
DEB_VERSION=${DEB_VERSION:-$(describe)}
export DEB_ARCH=${DEB_ARCH:-$(dpkg --print-architecture)}
export DEB_MAINTAINER=${DEB_MAINTAINER:-stepd maintainers <stepd@localhost>}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

umask 022
packages="stepd-common stepd stepd-dev"
make -s install-files DESTDIR="$stage/stepd-common" PREFIX=/usr VERSION="${DEB_VERSION%% *}"
doc=$stage/stepd-common/usr/share/doc/stepd
move() { # PACKAGE PATH...: what is not common
	local package=$1 path
	shift
	for path; do
		mkdir -p "$stage/$package/${path%/*}"
		mv "$stage/stepd-common/$path" "$stage/$package/$path"
	done
}
move stepd usr/sbin usr/lib usr/libexec/stepd/stepd usr/share/man/man8/noded.8
if [ -e "$stage/stepd-common/usr/libexec/stepd/slurmstepd" ]; then # not of an earlier release's programs
	packages+=" stepd-slurm"
	move stepd-slurm usr/libexec/stepd/slurmstepd usr/libexec/stepd/stepkeeper usr/libexec/stepd/pamhost usr/share/man/man7/stepd-slurm.7
	ln -s ../../sbin/slurmd-wlm "$stage/stepd-slurm/usr/libexec/stepd/slurmd" # the alternative's master: postinst
fi
move stepd-dev usr/include usr/share/pkgconfig usr/share/man/man7/stepd-spank.7 usr/share/doc/stepd-dev
find "$stage" -type d -empty -delete
rm "$doc/LICENSE"
for program in "$stage"/*/usr/libexec/stepd/{spankhost,pmixhost,stepkeeper,pamhost}; do # the second is not built everywhere
	[ ! -e "$program" ] || strip --strip-unneeded --remove-section=.comment "$program"
done
for package in $packages; do
	mkdir -p "$stage/$package/usr/share/lintian/overrides" "$stage/$package/usr/share/doc/$package"
	install -m644 "packaging/deb/$package.overrides" "$stage/$package/usr/share/lintian/overrides/$package"
	install -m644 packaging/deb/copyright "$stage/$package/usr/share/doc/$package/copyright"
	[ ! -d "$stage/$package/usr/share/man" ] || find "$stage/$package/usr/share/man" -type f -exec gzip -9n {} +
done
export STAGE=$stage GLIBC
GLIBC=$(glibc)
versions=$DEB_VERSION
for DEB_VERSION in $versions; do
	export DEB_VERSION
	for package in $packages; do
		printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
			"$package" "$DEB_VERSION" "$DEB_MAINTAINER" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" |
			gzip -9n > "$stage/$package/usr/share/doc/$package/changelog.gz"
		find "$stage/$package" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
		"$nfpm" package -f "packaging/deb/$package.yaml" -p deb -t "$out/${package}_${DEB_VERSION}_$DEB_ARCH.deb" >/dev/null
		echo "$out/${package}_${DEB_VERSION}_$DEB_ARCH.deb"
	done
done
rm -rf "$stage"
