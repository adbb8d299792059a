package cluster

import "fmt"

// Sites are the configurations that checks run in, by the names that testdata/checks.txt
// gives them. The first, "", is what a site has that has set nothing. A cluster of each is
// started where a check of the run wants it, for all of the run's checks.
var Sites = map[string]Site{
	"":     {},
	"ends": {}, // while a job of the node is completing, slurmctld gives the node to no other
	// The checks of the daemons want a cluster for themselves, one after the other.
	"daemons": {},
	"acct":    {Conf: "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1\nLaunchParameters=use_interactive_step\n", Files: map[string]string{"load": load}},
	"memory": { // the sampler enforces limits
		Conf: "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill,UsePss\n" +
			"SelectTypeParameters=CR_CPU_Memory\nDefMemPerNode=100\nNodeName=" + Node + " NodeAddr=10.77.0.1 CPUs=256 RealMemory=2000 State=UNKNOWN\n",
		Files: map[string]string{"load": load},
	},
	"sacct": {
		Conf:       "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=task=1\n",
		Accounting: true,
		Files:      map[string]string{"load": load},
	},
	"ssh": {
		Conf: "PrologFlags=Contain\nJobContainerType=job_container/tmpfs\nJobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=task=1\n" +
			"LaunchParameters=enable_nss_slurm\n",
		Files: map[string]string{"sshd": sshd, "ssh": ssh, "job_container.conf": "AutoBasePath=true\nBasePath=DIR/jc\n"},
	},
	"pam": {Conf: "UsePAM=1\nPrologFlags=Contain\n", Files: map[string]string{"pam": pam, "pam_log": pamLog, "limits.conf": pamLimits}},
	// Three machines, of which the third has less.
	"nodes": {
		Nodes: 3,
		Conf: "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1\nTaskProlog=DIR/task_prolog\nGresTypes=gpu\n" +
			"NodeName=n[1-2] NodeAddr=10.77.0.[11-12] CPUs=64 Gres=gpu:2 State=UNKNOWN\nNodeName=n3 NodeAddr=10.77.0.13 CPUs=48 Gres=gpu:1 State=UNKNOWN\n" +
			"SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1,bf_interval=1\n",
		Files: map[string]string{
			"gres.conf":   "NodeName=n[1-2] Name=gpu File=DIR/gpu[0-1] Flags=nvidia_gpu_env\nNodeName=n3 Name=gpu File=DIR/gpu0 Flags=nvidia_gpu_env\n",
			"task_prolog": "#!/bin/sh\necho export PROLOG=$(hostname).$SLURM_PROCID\n",
		},
		Devices: []string{"gpu0", "gpu1"},
	},
	// Nine nodes, of which the last is at the tree's second level.
	"tree": {Nodes: 9, Env: []string{"STEPD_TREE_ABOVE=2"}, Conf: "JobAcctGatherType=jobacct_gather/linux\nSlurmctldDebug=debug2\nDebugFlags=Steps\nSlurmdDebug=debug\n"},
	"nodes-contain": {
		Nodes: 3, Conf: "PrologFlags=Contain\nJobAcctGatherType=jobacct_gather/linux\n", Files: map[string]string{"plugstack.conf": "optional DIR/nodes.so\n"},
	},
	"nodes-tmpfs": { // under Slurm's own step daemon the next job of a node fails ("not ready"), so there is one
		Nodes: 3, Conf: "PrologFlags=Contain\nJobContainerType=job_container/tmpfs\n",
		Files: map[string]string{"job_container.conf": "AutoBasePath=true\nBasePath=DIR/jc\n"},
	},
	"contain": {Conf: "PrologFlags=Contain\nJobAcctGatherType=jobacct_gather/linux\n"},
	// Slurm gives each component of a heterogeneous job nodes of its own.
	"het": {
		Conf: "NodeName=" + Node + " NodeAddr=10.77.0.1 CPUs=64 State=UNKNOWN\nNodeName=n2 NodeAddr=10.77.0.2 Port=6899 CPUs=64 State=UNKNOWN\n" +
			"PartitionName=h Nodes=" + Node + ",n2 MaxTime=INFINITE State=UP OverSubscribe=FORCE:16\n" +
			"SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1,bf_interval=1\n" +
			"SlurmdSpoolDir=DIR/spool/%n\nSlurmdPidFile=DIR/slurmd.%n.pid\n",
		Others: []string{"n2"},
	},
	"x11": {
		Conf: "PrologFlags=X11\nProctrackType=proctrack/pgid\nNodeName=" + Node + " NodeAddr=10.77.0.1 CPUs=64 State=UNKNOWN\n" +
			"NodeName=n2 NodeAddr=10.77.0.2 Port=6899 CPUs=64 State=UNKNOWN\nPartitionName=x Nodes=" + Node + ",n2 MaxTime=INFINITE State=UP OverSubscribe=FORCE:16\n" +
			"SlurmdSpoolDir=DIR/spool/%n\nSlurmdPidFile=DIR/slurmd.%n.pid\n",
		Files:  map[string]string{"xserver": xserver, "xclient": xclient},
		Others: []string{"n2"},
	},
	"affinity": {
		Conf: "TaskPlugin=task/affinity\nNodeName=" + Node + " NodeAddr=10.77.0.1 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 State=UNKNOWN\n" +
			"TaskProlog=DIR/task_prolog\nProlog=DIR/prolog\nEpilog=DIR/epilog\nJobFileAppend=1\nPropagatePrioProcess=1\nLaunchParameters=disable_send_gids\n",
		Files: map[string]string{
			"task_prolog": "#!/bin/sh\necho print SITE_SAYS\necho export SITE_SAYS=hello\necho unset UNSET\n",
			"prolog":      "#!/bin/sh\n[ ! -e DIR/prolog.fails ] && echo prolog.$SLURM_JOB_USER >> DIR/hooks.log\n",
			"epilog":      "#!/bin/sh\necho epilog.$SLURM_JOB_USER >> DIR/hooks.log\n",
		},
	},
	"gres": {
		Conf: "GresTypes=gpu,nic,fpga,tool,shard\nNodeName=" + Node + " NodeAddr=10.77.0.1 Sockets=2 CoresPerSocket=8 ThreadsPerCore=1 State=UNKNOWN " +
			"Gres=gpu:a100:2,gpu:v100:2,nic:2,fpga:2,tool:4,shard:8\n",
		Files:   map[string]string{"gres.conf": fmt.Sprintf(gpus, "0-7", "8-15") + "Name=nic File=DIR/nic[4-5]\nName=fpga File=DIR/fpga[0-1]\nName=tool Count=4\nName=shard Count=8\n"},
		Devices: []string{"gpu0", "gpu1", "gpu2", "gpu3", "nic4", "nic5", "fpga0", "fpga1"},
	},
	"oci":  {Files: map[string]string{"oci.conf": ociConf, "runtime": ociRuntime}},
	"runc": {Files: map[string]string{"oci.conf": fmt.Sprintf(runc, "run"), "oci.start": fmt.Sprintf(runc, "create") + runcStart, "bundle": bundle}},
	"corespec": {
		Conf: "TaskPlugin=task/affinity\nSelectTypeParameters=CR_Core\nAllowSpecResourcesUsage=YES\nNodeName=" + Node +
			" NodeAddr=10.77.0.1 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000 CoreSpecCount=1 MemSpecLimit=100 State=UNKNOWN\n",
	},
	"tmpfs": {
		Conf: "PrologFlags=Contain\nJobContainerType=job_container/tmpfs\nProlog=DIR/hook\nEpilog=DIR/hook\nLaunchParameters=use_interactive_step\n",
		Files: map[string]string{
			"job_container.conf": "AutoBasePath=true\nBasePath=DIR/jc InitScript=DIR/hook\n",
			"hook":               "#!/bin/sh\necho $(stat -c %a /tmp) ${SLURM_JOB_MOUNTPOINT_SRC##*/} >> DIR/hooks.$SLURM_JOB_ID\n",
		},
	},
	"near": {
		Conf: "TaskPlugin=task/affinity\nGresTypes=gpu\nNodeName=" + Node + " NodeAddr=10.77.0.1 Sockets=2 CoresPerSocket=1 ThreadsPerCore=1 State=UNKNOWN " +
			"Gres=gpu:a100:2,gpu:v100:2\n",
		Files:   map[string]string{"gres.conf": fmt.Sprintf(gpus, "0", "1")},
		Devices: []string{"gpu0", "gpu1", "gpu2", "gpu3"},
	},
}

// gpus are gres.conf of a node with four GPUs of two models, of a network card, of what has
// files and no plugin, and of what has neither. The variables are of two vendors alone.
const gpus = `AutoDetect=off
Name=gpu Type=a100 File=DIR/gpu[0-1] Cores=%s Flags=nvidia_gpu_env,opencl_env
Name=gpu Type=v100 File=DIR/gpu[2-3] Cores=%s Flags=nvidia_gpu_env,opencl_env
`

// ociConf has the commands of a runtime without a daemon, as Slurm's own examples for runc have
// them. ociRuntime stands for the runtime: it prints how it was called, and runs the program of the
// bundle on the node. A file oci.query is the shell's that answers to query; without one no container
// is known any more.
const (
	ociConf = `RunTimeQuery="DIR/runtime query %n.%u.%j.%s.%t"
RunTimeKill="DIR/runtime kill %n.%u.%j.%s.%t"
RunTimeDelete="DIR/runtime delete %n.%u.%j.%s.%t"
RunTimeRun="DIR/runtime run %n.%u.%j.%s.%t %b"
`
	ociRuntime = `#!/bin/sh
if [ $1 != run ]; then
	[ -e DIR/oci.query ] || exit 1
	echo "$1 ${2#*.*.*.} $(id -un)" >> DIR/oci.log
	[ $1 != query ] || . DIR/oci.query
	exit
fi
c=$(tr -d '\n' < $3/config.json | sed 's,\\/,/,g; s/  */ /g')
list() { echo "$c" | sed -n "s/.*\"$1\": *\\[\([^]]*\)\].*/\1/p"; }
echo "run ${2%%.1*} ${2##*.} as $(id -un) in a folder of $(stat -c %U $3)"
echo "args$(list args) $(echo "$c" | grep -oE '"(path": "[^"]*rootfs|terminal": [a-z]*|hostname": "[a-z]*|cwd": "[^"]*|destination": "/[pt][^"]*)"?' | sort | tr '\n' ' ')"
list env | grep -oE '"(OWN|FOO|SLURM_(NTASKS|JOB_NAME))=[^"]*"' | sort -u
eval "set -- $(list args | tr -d ,)"
[ $1 != /tmp/slurm/startup ] || set -- $(echo "$c" | grep -o '/[^"]*slurm_script')
exec "$@"
`
)

// runc is oci.conf of the runtime runc, as Slurm's own example: of its command run, or of create
// with runcStart. bundle makes b in the folder where it is called, a bundle of busybox for its user,
// with the places of runc's mounts: of several that begin at once each would make them, and all but
// one fail ("mkdirat …: file exists").
const (
	runc = `RunTimeQuery="runc --rootless=true --root=/tmp/runc-%%u state %%n.%%u.%%j.%%s.%%t"
RunTimeKill="runc --rootless=true --root=/tmp/runc-%%u kill -a %%n.%%u.%%j.%%s.%%t"
RunTimeDelete="runc --rootless=true --root=/tmp/runc-%%u delete --force %%n.%%u.%%j.%%s.%%t"
RunTime%[1]s="runc --rootless=true --root=/tmp/runc-%%u %[1]s %%n.%%u.%%j.%%s.%%t -b %%b"
`
	runcStart = `RunTimeStart="runc --rootless=true --root=/tmp/runc-%u start %n.%u.%j.%s.%t"
`
	bundle = `#!/bin/sh -e
mkdir -p b/rootfs/bin b/rootfs/dev b/rootfs/proc b/rootfs/sys b/rootfs/var/run/slurm
cp /bin/busybox b/rootfs/bin
for a in sh cat env hostname id ps sleep stat stty tty; do ln -sf busybox b/rootfs/bin/$a; done
cd b
[ $(id -u) = 0 ] && runc spec || runc spec --rootless
`
)

// GuestSite is the one of the guest, where slurmd's own plugins limit the tasks by cgroup v2.
var GuestSite = Site{
	OwnCgroups: true,
	Conf: "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup,task/affinity\nSelectTypeParameters=CR_Core_Memory\nDefMemPerNode=200\n" +
		"JobAcctGatherType=jobacct_gather/cgroup\nJobAcctGatherFrequency=1\n" +
		"GresTypes=gpu\nNodeName=" + Node + " NodeAddr=10.77.0.1 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1500 Gres=gpu:2 State=UNKNOWN\n",
	Cgroup: "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nAllowedSwapSpace=0\n" +
		"ConstrainDevices=yes\n",
	Files:   map[string]string{"gres.conf": "AutoDetect=off\nName=gpu File=DIR/gpu[0-1]\n", "load": load},
	Devices: []string{"gpu0", "gpu1"},
}

// load is a task with a known usage: load CPU MEMORY WRITES, seconds and twice MB, of which the
// task of rank 0 uses as much, of rank 1 twice as much, and so on. It writes the seconds that
// it has used, user's and system's, into cpu.RANK, then makes the file up.RANK, and lives until
// there is a file go.
const load = `#!/usr/bin/perl
my $rank = $ENV{SLURM_PROCID} || 0;
my ($cpu, $memory, $writes) = map { $_ * ($rank + 1) } @ARGV;
my ($held, @used);
vec($held, $memory * 1e6 - 1, 8) = 1;
open F, ">", "written.$rank" or die $!;
print F "x" x 1e6 for 1 .. $writes;
close F;
do { for (1 .. 10000) {} @used = times } while $used[0] + $used[1] < $cpu;
open F, ">", "cpu.$rank" or die $!;
print F "$used[0] $used[1]\n";
close F;
open F, ">", "up.$rank" or die $!;
select undef, undef, undef, 0.1 until -e "go";
`

// sshd starts Debian's sshd on the loopback address, with pam_slurm_adopt, and ssh is a client of
// it: ssh USER COMMAND. Root runs both.
const (
	sshd = `#!/bin/sh -e
mkdir -p /run/sshd
cat > /etc/pam.d/sshd <<P
auth required pam_permit.so
account required pam_slurm_adopt.so action_unknown=newest action_adopt_failure=deny action_generic_failure=deny
session required pam_permit.so
P
ssh-keygen -q -t ed25519 -N '' -f DIR/key </dev/null
chmod 644 DIR/key.pub
/usr/sbin/sshd -o StrictModes=no -o AuthorizedKeysFile=DIR/key.pub -o UsePAM=yes -o ListenAddress=127.0.0.1 -o MaxStartups=100 -E DIR/sshd.log
`
	ssh = `#!/bin/sh
user=$1; shift
exec ssh -n -i DIR/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null $user@127.0.0.1 "$@"
`
)

// xserver stands for a user's X server: it is display N, at the TCP port or at the socket of that
// display, has xauth keep its cookie, and prints its process's number when clients can connect. It
// says to each client whether its cookie is the right one, and sends back what comes then. xclient is a client of the display of its environment: it prints whether its
// cookie is taken, as the file of cookies has it or as the argument has it, and whether the bytes
// that it sends come back. With hold it waits for the connection's end.
const (
	xserver = `#!/usr/bin/perl
use strict; use Socket; use IO::Socket; use IO::Socket::UNIX;
my ($n, $unix) = @ARGV;
my $key = join "", map { sprintf "%02x", ($n + 7 * $_) % 256 } 0 .. 15;
my $l;
if ($unix) {
	mkdir "/tmp/.X11-unix"; chmod 01777, "/tmp/.X11-unix"; unlink "/tmp/.X11-unix/X$n";
	$l = IO::Socket::UNIX->new(Local => "/tmp/.X11-unix/X$n", Listen => 50) or die "cannot listen: $!";
} else {
	$l = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 6000 + $n, Listen => 50, ReuseAddr => 1) or die "cannot listen: $!";
}
system "xauth -q add n1/unix:$n . $key 2>/dev/null";
my $pid = fork;
if ($pid) { print "$pid\n"; exit }
open STDIN, "</dev/null"; open STDOUT, ">/dev/null"; open STDERR, ">/dev/null";
$SIG{CHLD} = "IGNORE";
while (1) {
	my $c = $l->accept or next;
	next if fork;
	my ($head, $rest);
	read $c, $head, 12; my ($names, $data) = (unpack "v*", $head)[3, 4];
	my $pad = sub { $_[0] + (4 - $_[0] % 4) % 4 };
	read $c, $rest, $pad->($names) + $pad->($data);
	my $got = unpack "H*", substr $rest, $pad->($names), $data;
	if ($got ne $key) {
		my $why = $data ? "Invalid MIT-MAGIC-COOKIE-1 key" : "No protocol specified";
		$why .= "\n" while length($why) % 4;
		syswrite $c, pack "CCvvva*", 0, length $why, 11, 0, length($why) / 4, $why;
		exit;
	}
	syswrite $c, pack "CCvvv", 1, 0, 11, 0, 0;
	while (sysread $c, my $b, 4096) { syswrite $c, $b }
	exit;
}
`
	xclient = `#!/usr/bin/perl
use strict; use IO::Socket;
my ($n) = $ENV{DISPLAY} =~ /^localhost:(\d+)\.0$/ or die "DISPLAY is $ENV{DISPLAY}\n";
chomp(my $host = ` + "`hostname`" + `);
my ($key) = ` + "`xauth list`" + ` =~ /^\Q$host\E\/unix:$n\s+MIT-MAGIC-COOKIE-1\s+(\S+)$/m or die "no cookie of display $n\n";
my $hold = @ARGV && $ARGV[0] eq "hold" && shift;
$key = shift if @ARGV;
$| = 1;
my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => 6000 + $n) or die "cannot connect: $!\n";
my $data = pack "H*", $key;
print $s pack "CCvvvvv", 108, 0, 11, 0, $data eq "" ? 0 : 18, length $data, 0;
print $s "MIT-MAGIC-COOKIE-1\0\0", $data, "\0" x (-length($data) % 4) if $data ne "";
$s->flush;
my $got = read $s, my $head, 8;
if (!$got) { print "the connection has ended\n"; exit 1 }
my ($ok, $len) = unpack "CC", $head;
if (!$ok) { read $s, my $why, $len; $why =~ s/\s+$//; print "refused: $why\n"; exit 1 }
my $bytes = "abcdefgh" x 25000;
if (!fork) { print $s $bytes; $s->flush; exit }
read $s, my $back, length $bytes;
print $back eq $bytes ? "taken\n" : "taken, and " . length($back) . " bytes are back\n";
print "the connection has ended\n" if $hold && !sysread $s, my $none, 1;
`
)

// pam makes pam.d/slurm, with the module that it names before the others. Root runs it. Each call
// of a session is a line of pam.log.
const (
	pam = `#!/bin/sh -e
cat > /etc/pam.d/slurm <<P
account required pam_deny.so
session required pam_exec.so DIR/pam_log
session required $1
session required pam_limits.so conf=DIR/limits.conf
P
`
	pamLog = `#!/bin/sh
echo $PAM_TYPE $PAM_SERVICE $PAM_USER $PAM_RUSER $PAM_RHOST $PAM_TTY $(id -u) >> DIR/pam.log
`
	pamLimits = `* soft nofile 500
* hard nofile 700
* soft nproc 900
* hard nproc 1000
* - fsize 5000
* soft core 0
* hard core 4096
* - priority 4
`
)
