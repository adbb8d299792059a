# nodes.sh DIR FIRST NODES UNSHARE: the network of a site of several nodes, as root in the cluster's
# namespaces. The host itself has 10.77.0.1 on a bridge, the nodes the numbers from FIRST on.
# UNSHARE makes each node's namespaces. A process that only waits holds them; its number is in
# DIR/node.NODE. The program DIR/on NODE COMMAND... enters them: no ip netns exec, which mounts
# /sys anew and has no cgroups there.
set -e
dir=$1 number=$2
cat >"$dir/on" <<X
#!/bin/sh
holder=\$(cat "$dir/node.\$1") || exit 1
shift
exec nsenter --target \$holder --net --uts --mount -- env --chdir="\$PWD" "\$@"
X
chmod +x "$dir/on"
ip link add nodes type bridge
ip addr add 10.77.0.1/24 dev nodes
ip link set nodes up
for node in $3; do
	mkdir -p "$dir/spool/$node"
	$4 sh -ec '
		hostname "$1"
		for d in /tmp /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $d; done
		sleep infinity </dev/null >/dev/null 2>&1 &
		echo $! >"$2/node.$1"' node "$node" "$dir"
	ip link add "$node" master nodes type veth peer name eth0 netns "$(cat "$dir/node.$node")"
	ip link set "$node" up
	"$dir/on" "$node" sh -ec '
		ip link set lo up
		ip addr add "$1/24" dev eth0
		ip link set eth0 up' link 10.77.0.$number
	number=$((number + 1))
done
