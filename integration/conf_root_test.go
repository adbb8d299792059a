package integration

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRootMissingDevice: a node whose gres.conf names a missing device
// starts, drained with its name; with the device, the administrator resumes it.
func TestRootMissingDevice(t *testing.T) {
	n := startNode(t, site{})
	dev := n.path("dev")
	n.write(t, "gres.conf", "Name=gpu Type=null File="+dev+"[0-1]\n")
	conf := n.write(t, "slurm.conf", "ClusterName=golden\nGresTypes=gpu\nNodeName=vm CPUs=64 Gres=gpu:null:2\nPartitionName=p Nodes=ALL Default=YES\n")
	null := int(unix.Mkdev(1, 3))
	must(t, syscall.Mknod(dev+"0", syscall.S_IFCHR|0o666, null))
	n.shutdown(t)
	n.boot(t)

	want := fmt.Sprintf("gres/gpu:null: %s1: no such file or directory", dev)
	if doc := n.status(t); doc.State != "DRAINED" || doc.Reason != want {
		t.Errorf("node %s: %q, want %q", doc.State, doc.Reason, want)
	}
	if r := n.ctl(t, "run", "true"); r.code != 1 {
		t.Errorf("a step on the drained node: %v", r)
	} else {
		contains(t, "the refusal", r.err, want)
	}
	code, out := runNoded(t, nil, "-f", conf, "--check")
	if code != 0 {
		t.Errorf("--check: exit code %d", code)
	}
	contains(t, "--check", out, fmt.Sprintf("warning: %s:1: cannot find device %q of gpu:null", n.path("gres.conf"), dev+"1"))

	must(t, syscall.Mknod(dev+"1", syscall.S_IFCHR|0o666, null))
	n.shutdown(t)
	n.boot(t)
	if r := n.ctlRoot(t, "node", "resume"); r.code != 0 {
		t.Error(r)
	}
	n.serves(t)
	if _, out := runNoded(t, nil, "-f", conf, "--check"); strings.Contains(out, "gres") {
		t.Errorf("--check with the device: %s", out)
	}
}

// TestRootWrongFiles: noded does not start on a mistake in a file beside
// slurm.conf, and names its place.
func TestRootWrongFiles(t *testing.T) {
	n := startNode(t, site{})
	n.shutdown(t)
	for name, c := range map[string]struct{ text, says string }{
		"cgroup.conf": {"ConstrainCores=yes\nAllowedRAMSpace=98%\n", `cgroup.conf:2: cannot use AllowedRAMSpace="98%": not a number`},
		"gres.conf":   {"Name=gpu Count=3 File=/dev/null\n", `gres.conf:1: cannot use Count="3": File names 1`},
	} {
		n.write(t, name, c.text)
		code, out := runNoded(t, nil, "-f", n.path("slurm.conf"), "--run-dir", n.path("run2"), "--spool-dir", n.path("spool2"))
		if code != 78 {
			t.Errorf("%s: exit code %d, want 78", name, code)
		}
		contains(t, name, out, "noded: cannot use configuration: ", n.path("")+"/"+c.says)
		n.write(t, name, "")
	}
}
