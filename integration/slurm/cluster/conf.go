package cluster

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Node is the cluster's node, and FirstJob its first job's number, which no other number
// of a test's output looks like.
const (
	Node     = "n1"
	FirstJob = 1000001
)

// firstUID is the id of the first user, and of its group.
const firstUID = 7001

// slurmConf is what every cluster has; a Site adds lines. The node takes more jobs than
// any test runs at once, whatever the machine has.
const slurmConf = `ClusterName=private
SlurmctldHost=%[4]s(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=%[2]s/munge.sock
CredType=cred/munge
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd.pid
SlurmctldLogFile=%[2]s/slurmctld.log
SlurmdLogFile=%[2]s/slurmd.log
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1
FirstJobId=%[3]d
ReturnToService=2
KillWait=5
MpiDefault=none
PlugStackConfig=%[2]s/plugstack.conf
PartitionName=p Nodes=%[1]s Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16
`

// defaults are keys that a Site may set instead.
var defaults = []string{
	"ProctrackType=proctrack/linuxproc",
	"TaskPlugin=task/none",
	"JobAcctGatherType=jobacct_gather/none",
	"SelectType=select/cons_tres",
	"SelectTypeParameters=CR_CPU",
	"SwitchType=switch/none",
	"NodeName=" + Node + " NodeAddr=10.77.0.1 CPUs=256 State=UNKNOWN",
}

// write makes the files of the cluster's folder.
func (c *Cluster) write(site Site, root string) error {
	for _, sub := range []string{"state", "spool", "work"} {
		if err := os.MkdirAll(c.Path(sub), 0o755); err != nil {
			return err
		}
	}
	nodes := Node
	if site.Nodes > 0 {
		nodes = fmt.Sprintf("n[1-%d]", site.Nodes)
	}
	conf := fmt.Appendf(nil, slurmConf, nodes, c.Dir, FirstJob, site.host())
	lines := defaults
	if site.Nodes > 0 {
		conf = fmt.Appendf(conf, nodesConf, c.Dir)
		lines = append(lines[:len(lines)-1:len(lines)-1], fmt.Sprintf("NodeName=%s NodeAddr=10.77.0.[%d-%d] CPUs=64 State=UNKNOWN", nodes, firstNode, firstNode+site.Nodes-1))
	}
	for _, line := range lines {
		key, _, _ := bytes.Cut([]byte(line), []byte("="))
		if !bytes.HasPrefix([]byte(site.Conf), append(key, '=')) && !bytes.Contains([]byte(site.Conf), append(append([]byte("\n"), key...), '=')) {
			conf = append(append(conf, line...), '\n')
		}
	}
	if site.Accounting {
		conf = fmt.Appendf(conf, accountingConf, Node, c.Dir)
	}
	cgroup := site.Cgroup
	if cgroup == "" && site.Release != "22.05" {
		cgroup = "CgroupPlugin=disabled\n" // these releases know no tree of both versions
	}
	key := make([]byte, 128)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	files := map[string][]byte{
		"slurm.conf":     append(conf, site.Conf...),
		"plugstack.conf": nil,
		"munge.key":      key,
	}
	if cgroup != "" {
		files["cgroup.conf"] = []byte(cgroup)
	}
	for name, text := range site.Files {
		files[name] = []byte(text)
	}
	for name, data := range files {
		mode := os.FileMode(0o644)
		if bytes.HasPrefix(data, []byte("#!")) {
			mode = 0o755
		}
		data = bytes.ReplaceAll(data, []byte("DIR/"), []byte(c.Dir+"/"))
		if err := os.WriteFile(c.Path(name), data, mode); err != nil {
			return err
		}
	}
	if err := os.Chmod(c.Path("munge.key"), 0o600); err != nil {
		return err
	}
	for i, name := range site.Devices {
		err := unix.Mknod(c.Path(name), unix.S_IFCHR, int(unix.Mkdev(experimental, uint32(i))))
		if err := errors.Join(err, os.Chmod(c.Path(name), 0o666)); err != nil {
			return fmt.Errorf("cannot make the device node %q: %w", name, err)
		}
	}
	return c.writeEtc(site, root)
}

// experimental is a major number of character devices that Linux gives to no driver
// (admin-guide/devices.txt, 240 to 254).
const experimental = 240

// writeEtc makes the folder that is the cluster's /etc: the image's with the Site's users.
func (c *Cluster) writeEtc(site Site, root string) error {
	if out, err := exec.Command("cp", "-a", root+"/etc", c.Path("etc")).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy %q: %w: %s", root+"/etc", err, out)
	}
	var passwd, group bytes.Buffer
	for i, name := range site.Users {
		id := firstUID + i
		home := filepath.Join(c.Path("work"), name)
		fmt.Fprintf(&passwd, "%s:x:%d:%d::%s:/bin/bash\n", name, id, id, home)
		fmt.Fprintf(&group, "%s:x:%d:\n", name, id)
		if err := os.Mkdir(home, 0o755); err != nil {
			return err
		}
		if err := os.Chown(home, id, id); err != nil {
			return err
		}
		c.users[name] = uint32(id)
	}
	fmt.Fprintf(&group, "people:x:%d:%s\n", firstUID-1, strings.Join(site.Users, ",")) // all are in a second group
	for name, lines := range map[string][]byte{"passwd": passwd.Bytes(), "group": group.Bytes()} {
		f, err := os.OpenFile(c.Path("etc/"+name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(lines)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
	}
	hosts := fmt.Appendf(nil, "127.0.0.1 localhost\n10.77.0.1 %s\n", site.host())
	for i, node := range c.Nodes() {
		hosts = fmt.Appendf(hosts, "10.77.0.%d %s\n", firstNode+i, node)
	}
	return os.WriteFile(c.Path("etc/hosts"), hosts, 0o644)
}
