#!/bin/bash
# build.sh RECIPE OUT: makes OUT/{vmlinuz,initrd.gz,rootfs.ext4} from Debian's
# packages. RECIPE is the folder of this file; OUT exists and is empty.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
recipe=$1 out=$2
suite=bookworm
root=$out/root
list() { grep -v '^#' "$recipe/$1"; }

mmdebstrap --mode=root --variant=minbase --include="$(list packages | paste -sd,)" \
	--aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--quiet "$suite" "$root"

kernel=$(ls "$root/lib/modules")
drivers=$root/lib/modules/$kernel/kernel/drivers
cp "$root/boot/vmlinuz-$kernel" "$out/vmlinuz"

ird=$out/initrd
mkdir -p "$ird"/{bin,dev,proc,sys,new,m}
cp "$root/bin/busybox" "$ird/bin/"
cp "$drivers"/virtio/virtio{,_ring,_pci,_pci_modern_dev,_pci_legacy_dev}.ko \
	"$drivers/block/virtio_blk.ko" "$drivers/char/virtio_console.ko" "$ird/m/"
install -m755 "$recipe/init" "$ird/init"
(cd "$ird" && find . | cpio -o -H newc --quiet | gzip -1) > "$out/initrd.gz"

units=$root/etc/systemd/system
mkdir -p "$root/share"
install -m644 "$recipe"/vmtest.{service,target} "$units/"
install -m755 "$recipe/vmtest" "$root/sbin/vmtest"
ln -sf vmtest.target "$units/default.target"
for u in $(list masked); do
	ln -sf /dev/null "$units/$u"
done
: > "$root/etc/fstab"
echo vmguest > "$root/etc/hostname"
echo "127.0.0.1 localhost vmguest" > "$root/etc/hosts"
echo 0123456789abcdef0123456789abcdef > "$root/etc/machine-id"
rm -rf "$root"/boot/* "$root/var/lib/apt/lists" "$root/var/cache/apt"

truncate -s 2G "$out/rootfs.ext4"
mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1 -d "$root" "$out/rootfs.ext4"
rm -rf "$root" "$ird"
