package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// kept is what the test before the reboot leaves to the one after it.
const kept = "/var/lib/vmtest/package.json"

// overReboot is the job that runs when the host goes down.
type overReboot struct{ Job int }

// ran has a line for each start of the job, and one for its end on a host whose remote file systems
// were still there.
const ran = "/var/lib/vmtest/ran"

// lateMount is a file system that systemd takes for a remote one: it goes when the steps have ended.
const (
	lateMount = "/etc/systemd/system/srv-late.mount"
	lateText  = "[Mount]\nWhat=late\nWhere=/srv/late\nType=tmpfs\nOptions=_netdev\n"
)

// TestBeforeRebootPackage: the Debian package is installed on a host that has
// nothing of it, upgraded with a step running, and taken through all that an
// administrator does to a unit. It leaves the node serving, with a job, for the
// reboot.
func TestBeforeRebootPackage(t *testing.T) {
	if !testkit.InGuest() {
		t.Skip("runs in the guest: make vm-test")
	}
	removeCopied(t)
	dpkg(t, "--install", deb("stepd-common", 1), deb("stepd", 1), deb("stepd-dev", 1))
	if state := property(t, "ActiveState") + " " + property(t, "UnitFileState"); state != "active enabled" {
		t.Errorf("the unit of a new package is %q", state)
	}
	stepctl(t, "run", "--uid=nobody", "-D", "/", "-n", "2", "true")
	const own = "/etc/stepd/stepd.conf"
	const text = "KeepSteps=17\nReplayBytes=4096\n"
	if err := os.WriteFile(own, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "restart", "noded")
	s := startStep(t, "upgraded", 2)
	t.Run("upgrade", func(t *testing.T) { upgrade(t, s) })
	if now, err := os.ReadFile(own); err != nil || string(now) != text {
		t.Errorf("%s after the upgrade: %q (%v)", own, now, err)
	}
	t.Run("reload", func(t *testing.T) { reload(t) })
	t.Run("refused", func(t *testing.T) { refused(t) })
	systemctl(t, "restart", "noded")
	systemctl(t, "daemon-reload")
	s.known(t)
	s.finish(t)
	leaveJob(t)
}

// deb is a package that integration/vm has made, of the first or the second version.
func deb(name string, version int) string {
	found, _ := filepath.Glob(fmt.Sprintf("/share/deb/%s_0~guest%d_*.deb", name, version)) // the pattern is good
	if len(found) != 1 {
		return name + ": no such package in /share/deb"
	}
	return found[0]
}

func dpkg(t *testing.T, args ...string) string {
	t.Helper()
	// A guest that is thrown away needs no file to be on its disk.
	cmd := exec.Command("dpkg", append([]string{"--force-unsafe-io"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("dpkg %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func stepctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("stepctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("stepctl %q: %v: %s", args, err, out)
	}
	return string(out)
}

// removeCopied takes away what run.sh has copied, so that the package alone is
// tested.
func removeCopied(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("/share/root", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Remove(strings.TrimPrefix(path, "/share/root"))
	})
	if err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	for _, dir := range []string{"/var/spool/stepd", "/run/stepd", "/etc/stepd", "/usr/share/doc/stepd", "/usr/libexec/stepd", "/usr/include/stepd"} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// upgrade: the step goes on, with the programs that it was started with, and is
// the new noded's, which takes new ones.
func upgrade(t *testing.T, s *running) {
	before, owner := mainPID(t), stepdOf(t, s)
	dpkg(t, "--install", deb("stepd-common", 2), deb("stepd", 2))
	if pid := mainPID(t); pid == 0 || pid == before {
		t.Errorf("noded is pid %d after the upgrade, and was %d", pid, before)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", mainPID(t))); err != nil || exe != "/usr/sbin/noded" {
		t.Errorf("noded runs %q (%v)", exe, err)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", owner)); err != nil || exe != "/usr/libexec/stepd/stepd (deleted)" {
		t.Errorf("the stepd from before runs %q (%v)", exe, err)
	}
	s.known(t)
	s.alive(t)
	// It is understood: the old stepd does what the new noded asks of it.
	stepctl(t, "suspend", s.id())
	stepctl(t, "resume", s.id())
	stepctl(t, "signal", "-s", "CONT", s.id())
	attach(t, s)
	startStep(t, "new", 1).finish(t)
	s.known(t)
}

// attach: who attaches to the step sees what its tasks have said.
func attach(t *testing.T, s *running) {
	t.Helper()
	cmd := exec.Command("stepctl", "attach", s.id())
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // it ends by the kill
	defer cmd.Process.Kill()
	stop := time.AfterFunc(soon, func() { cmd.Process.Kill() })
	defer stop.Stop()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "here\n" {
		t.Errorf("attached to step %s: %q, %v", s.id(), line, err)
	}
}

// stepdOf is the pid of the stepd of the only step.
func stepdOf(t *testing.T, s *running) int {
	t.Helper()
	out, err := exec.Command("pgrep", "-x", "stepd").Output()
	var pid int
	if err == nil {
		_, err = fmt.Sscan(string(out), &pid)
	}
	if err != nil || strings.Count(string(out), "\n") != 1 {
		t.Fatalf("stepds of step %s: %q (%v)", s.id(), out, err)
	}
	return pid
}

// reload: what a reload and a SIGHUP leave as it is.
func reload(t *testing.T) {
	before := mainPID(t)
	systemctl(t, "reload", "noded")
	if err := syscall.Kill(before, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	stepctl(t, "run", "--uid=nobody", "-D", "/", "-O", "true")
	if pid := mainPID(t); pid != before || property(t, "ActiveState") != "active" {
		t.Errorf("pid %d, before %d; %s", pid, before, property(t, "ActiveState"))
	}
}

// refused: a configuration with a mistake fails the reload, and an upgrade leaves
// the old daemon to its work.
func refused(t *testing.T) {
	const conf = "/etc/stepd/slurm.conf"
	good, err := os.ReadFile(conf)
	if err == nil {
		err = os.WriteFile(conf, []byte("ProctrackType=proctrack/none-such\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(conf, good, 0o644); err != nil {
			t.Error(err)
		}
	}()
	before := mainPID(t)
	if out, err := exec.Command("systemctl", "reload", "noded").CombinedOutput(); err == nil {
		t.Errorf("reload of a bad slurm.conf succeeds: %s", out)
	}
	journal, err := exec.Command("journalctl", "-q", "-u", "noded", "-n", "10", "--no-pager").CombinedOutput()
	if err != nil || !strings.Contains(string(journal), "none-such") {
		t.Errorf("journal: %v: %s", err, journal)
	}
	out, err := exec.Command("/var/lib/dpkg/info/stepd.postinst", "configure", "0~guest1").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "none-such") || !strings.Contains(string(out), "the old one goes on") {
		t.Errorf("an upgrade with a bad slurm.conf: %v: %s", err, out)
	}
	if pid := mainPID(t); pid != before || property(t, "ActiveState") != "active" {
		t.Errorf("pid %d, before %d; %s", pid, before, property(t, "ActiveState"))
	}
	stepctl(t, "run", "--uid=nobody", "-D", "/", "-O", "true")
}

// leaveJob starts the job that is to run when the host goes down.
func leaveJob(t *testing.T) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(kept), 0o755), os.WriteFile(ran, nil, 0o666), os.Chmod(ran, 0o666)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lateMount, []byte(lateText), 0o644); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	systemctl(t, "start", "srv-late.mount", "remote-fs.target")
	var o overReboot
	const script = "trap 'sleep 3; mountpoint -q /srv/late && echo mounted >>" + ran + "; exit' TERM; echo run >>" + ran + "; sleep 3600 & wait"
	out := stepctl(t, "batch", "-O", "--uid=nobody", "-D", "/var/tmp", "-J", "down", "-o", "/dev/null", "--wrap="+script)
	if _, err := fmt.Sscanf(out, "Submitted batch job %d", &o.Job); err != nil {
		t.Fatalf("batch: %q: %v", out, err)
	}
	text, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(kept, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job's line", func() error {
		if text, err := os.ReadFile(ran); err != nil || len(text) == 0 {
			return fmt.Errorf("%q, %v", text, err)
		}
		return nil
	})
}

// TestAfterRebootPackage: a host that comes up again has noded serving, has nothing of the
// batch job that ran when it went down but its record, and after the purge of the package nothing at all.
func TestAfterRebootPackage(t *testing.T) {
	if !testkit.InGuest() {
		t.Skip("runs in the guest: make vm-test")
	}
	var o overReboot
	text, err := os.ReadFile(kept)
	if err = errors.Join(err, json.Unmarshal(text, &o)); err != nil {
		t.Fatalf("what was there before the reboot: %v", err)
	}
	systemctl(t, "start", "multi-user.target") // a host's own target; the guest's is its tests'
	if state := property(t, "ActiveState"); state != "active" {
		t.Fatalf("the unit of a host that came up is %q", state)
	}
	wantEnd(t, o.Job, "NODE_FAIL", "the host goes down", "the node was rebooted")
	// It ran once, and had its remote file systems to the end.
	if text, err := os.ReadFile(ran); err != nil || string(text) != "run\nmounted\n" {
		t.Errorf("the job has said %q, %v", text, err)
	}
	if err := os.Remove(lateMount); err != nil {
		t.Error(err)
	}
	for _, d := range steps(t) {
		t.Errorf("a step runs: %+v", d)
	}
	// The next block of numbers has begun.
	var next int
	out := stepctl(t, "batch", "-W", "--uid=nobody", "-D", "/var/tmp", "-o", "/dev/null", "--wrap=true")
	if _, err := fmt.Sscanf(out, "Submitted batch job %d", &next); err != nil || next <= o.Job {
		t.Errorf("the first job after job %d: %q", o.Job, out)
	}
	t.Run("purge", purge)
}

// wantEnd: the record says what has become of the job. whys are parts of the reason, of
// which one is enough.
func wantEnd(t *testing.T, job int, state string, whys ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the end of job %d", job), func() error {
		for _, d := range steps(t, "--all") {
			if d.JobID == job && d.State == state && slices.ContainsFunc(whys, func(why string) bool { return strings.Contains(d.Reason, why) }) {
				return nil
			} else if d.JobID == job {
				return fmt.Errorf("%+v", d)
			}
		}
		return errors.New("there is no record")
	})
}

// purge: removed, the package has left its configuration and records alone; purged,
// it has left nothing.
func purge(t *testing.T) {
	packages := []string{"stepd", "stepd-common", "stepd-dev"}
	files := strings.Fields(dpkg(t, append([]string{"--listfiles"}, packages...)...))
	dpkg(t, append([]string{"--remove"}, packages...)...)
	eventually(t, "an empty host", leftovers)
	for _, path := range []string{"/etc/stepd/stepd.conf", "/var/spool/stepd"} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("after the removal: %v", err)
		}
	}
	dpkg(t, append([]string{"--purge"}, packages...)...)
	for _, path := range append(files, "/etc/stepd", "/var/spool/stepd", "/run/stepd", "/etc/systemd/system/noded.service", "/etc/systemd/system/multi-user.target.wants/noded.service") {
		st, err := os.Lstat(path)
		if err == nil && (!st.IsDir() || strings.Contains(path, "stepd")) {
			t.Errorf("after the purge there is %s", path)
		}
	}
	if out, err := exec.Command("systemctl", "cat", "noded").CombinedOutput(); err == nil {
		t.Errorf("after the purge systemd knows the unit: %s", out)
	}
}
