package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGuestReloadKeepsLimits: what confines a step holds after systemd went
// through its units again, and after noded was restarted: memory, CPUs, and the
// program that refuses a device.
func TestGuestReloadKeepsLimits(t *testing.T) {
	const card = "/dev/stepd-card"
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	configure(t, map[string]string{
		"slurm.conf":  "GresTypes=card\nNodeName=" + host + " CPUs=1 Gres=card:1\n",
		"gres.conf":   "Name=card File=" + card + "\n",
		"cgroup.conf": "ConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nConstrainDevices=yes\n",
	})
	if err := unix.Mknod(card, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(card) })
	systemctl(t, "start", "noded")
	s := startStep(t, "limited", 1, "--mem=64M")
	before := places(t, []*running{s})
	var own string
	limits := 0
	for what, value := range before {
		if strings.HasPrefix(what, "pid ") {
			own = filepath.Join("/sys/fs/cgroup", value)
		}
		if strings.HasSuffix(what, "/memory.max") && value == "67108864" || strings.HasSuffix(what, "/cpuset.cpus") && value == "0" {
			limits++
		}
	}
	if limits != 4 { // of job and step
		t.Errorf("%d limits are written: %v", limits, before)
	}
	check := func(when string) {
		t.Helper()
		for what, now := range places(t, []*running{s}) {
			if before[what] != now {
				t.Errorf("%s: %s is %q, and was %q", when, what, now, before[what])
			}
		}
		if out := openIn(t, own, card); !strings.Contains(out, "not permitted") {
			t.Errorf("%s: opening the device in %s: %q", when, own, out)
		}
		if out := openIn(t, own, "/dev/null"); out != "" {
			t.Errorf("%s: opening /dev/null in %s: %q", when, own, out)
		}
	}
	check("at first")
	systemctl(t, "daemon-reload")
	check("after daemon-reload")
	systemctl(t, "restart", "noded")
	systemctl(t, "daemon-reload")
	check("after a restart")
	s.known(t)
	s.finish(t)
}

// openIn opens a file by a process in a cgroup, and returns what the shell says.
func openIn(t *testing.T, cgroup, file string) string {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/bin/sh", "-c", "exec 3<"+file)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, _ := cmd.CombinedOutput() // the shell's words are what counts
	return string(out)
}
