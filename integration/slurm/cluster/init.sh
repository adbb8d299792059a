# Process 1 of a cluster's namespaces: init.sh ROOT DIR HOST PROGRAMS [own]. It builds the tree that
# the cluster's processes see, with DIR and PROGRAMS (may be empty) in it, reports on
# stdout that it is complete, and takes in orphans until stdin ends. The address is none of
# loopback's: with these alone getaddrinfo(3) finds no host.
set -e
root=$1 dir=$2 host=$3 programs=$4 cgroups=${5:-}
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
if [ -n "$cgroups" ]; then # a tree of its own, in whose root no process may stay
	umount "$root/sys/fs/cgroup" # the kernel mounts no file system twice on one place
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	mkdir "$root/sys/fs/cgroup/init"
	echo $$ > "$root/sys/fs/cgroup/init/cgroup.procs"
	mkdir "$root/sys/fs/cgroup/system.slice" # slurmd expects systemd's
	for d in . system.slice; do
		echo +cpuset +cpu +memory +io +pids > "$root/sys/fs/cgroup/$d/cgroup.subtree_control"
	done
fi
for d in tmp run var/tmp; do
	mount -t tmpfs -o mode=1777 tmpfs "$root/$d"
done
mkdir -p "$root$dir"
mount --bind "$dir" "$root$dir"
mount --bind "$dir/etc" "$root/etc"
if [ -n "$programs" ]; then
	mount --bind "$programs" "$root/usr/libexec/stepd"
fi
mount -o remount,bind,ro "$root"
hostname "$host"
mkdir "$root/run/old"
cd "$root"
pivot_root . run/old # a process that joins a job's mount namespace would leave a chroot
exec chroot . /bin/sh -ec '
umount -l /run/old
rmdir /run/old
ip link set lo up
ip addr add 10.77.0.1/32 dev lo
echo ready
trap "exit 0" TERM
{ cat <&3 >/dev/null; kill -TERM 1; } &
exec 3<&- </dev/null >/dev/null 2>&1
while :; do wait; done' 3<&0
