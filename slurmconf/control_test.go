package slurmconf

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestLoadSlurmd(t *testing.T) {
	for _, tt := range []struct {
		name, conf   string
		addrs        []string
		user, socket string
		timeout      time.Duration
	}{
		{"defaults", "", nil, "root", "", 10 * time.Second},
		{"two hosts", "SlurmctldHost=c1(10.0.0.1)\nSlurmctldHost=c2\nSlurmUser=slurm\n", []string{"10.0.0.1:6817", "c2:6817"}, "slurm", "", 10 * time.Second},
		{"ports", "SlurmctldHost=c1\nSlurmctldPort=7000-7003\nMessageTimeout=60\n", []string{"c1:7000"}, "root", "", time.Minute},
		{"old names", "ControlMachine=c1\nControlAddr=10.0.0.1\nBackupController=c2\n", []string{"10.0.0.1:6817", "c2:6817"}, "root", "", 10 * time.Second},
		{"one address", "SlurmctldHost=c1\nSlurmctldHost=c2\nSlurmctldAddr=ctl\nAuthInfo=ttl=3,socket=/run/m.sock\n", []string{"ctl:6817"}, "root", "/run/m.sock", 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "slurm.conf")
			// An unknown key and a bad value are slurmd's to report.
			if err := os.WriteFile(path, []byte(tt.conf+"Frob=1\nKillWait=soon\nNodeName=n1 CPUs=2\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			c, err := LoadSlurmd(path, "n1.example", "n1")
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Control; !slices.Equal(got.Addrs, tt.addrs) || got.User != tt.user || got.AuthSocket != tt.socket || got.Timeout != tt.timeout || got.AuthType != "munge" {
				t.Errorf("got %+v", got)
			}
			if got := c.Control.Connect; got != 2*time.Second {
				t.Errorf("a connection may take %v", got)
			}
			if c.TaskPlugin != nil || c.KillWait != 30*time.Second {
				t.Errorf("TaskPlugin is %v, KillWait %v", c.TaskPlugin, c.KillWait)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(path, []byte("TCPTimeout=30\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := LoadSlurmd(path, "n1", "n1"); err != nil || c.Control.Connect != 30*time.Second {
		t.Errorf("TCPTimeout is %v (%v)", c.Control.Connect, err)
	}
	if _, err := LoadSlurmd("/does/not/exist", "n1", "n1"); err == nil {
		t.Error("a file that does not exist was read")
	}
}

// TestSlurmdSkips holds that a step daemon reads nothing of other nodes and of partitions, which
// may be thousands of lines: lines that are wrong are not looked at.
func TestSlurmdSkips(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "slurm.conf")
	conf := "SlurmctldHost=c\nNodeName=n[1-9999999999] CPUs=x\nPartitionName=p Nodes=n[1-9999999999] Default=YES\nNodeName=n1 NodeHostname=h CPUs=4\nSlurmdSpoolDir=/spool/%n\n"
	for name, text := range map[string]string{"slurm.conf": conf, "gres.conf": "NodeName=n[1-9999999999] Name=gpu File=/dev/none[0-9]\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for node, cpus := range map[string]int{"n1": 0, "": 4} { // without its name, the node is found by the host's
		c, err := LoadSlurmd(path, "h", node)
		if err != nil || c.SlurmdSpoolDir != "/spool/n1" || c.Partition != "" || c.Node.CPUs != cpus || len(c.Node.Gres) > 0 {
			t.Errorf("node %q: %+v, %v", node, c, err)
		}
	}
}
