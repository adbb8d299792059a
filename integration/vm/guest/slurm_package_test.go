package guest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"stepd/internal/testkit"
)

// TestBeforeRebootSlurmPackage: the package stepd-slurm changes no step daemon by itself; an
// administrator chooses it and takes the choice back, it follows slurmd's package in and out,
// and it is not removed while slurmd needs it. What Debian's package slurmd has is played.
func TestBeforeRebootSlurmPackage(t *testing.T) {
	if !testkit.InGuest() {
		t.Skip("runs in the guest: make vm-test")
	}
	const (
		theirs = "/usr/sbin/slurmstepd-wlm"
		ours   = "/usr/libexec/stepd/slurmstepd"
	)
	install := func() { dpkg(t, "--install", deb("stepd-common", 2), deb("stepd-slurm", 2)) }
	for _, path := range []string{"/usr/sbin/slurmd", "/usr/sbin/slurmstepd"} {
		if _, err := os.Lstat(path); err == nil {
			t.Fatalf("there is %s: the guest has a Slurm of its own", path)
		}
	}
	install()
	if _, err := os.Lstat("/usr/sbin/slurmstepd"); err == nil {
		t.Error("without slurmd there is a /usr/sbin/slurmstepd")
	}
	playSlurmd(t)
	trigger(t)
	wantStepDaemon(t, "slurmd is installed after it", theirs)
	alternatives(t, "--set", "slurmd", "/usr/libexec/stepd/slurmd")
	wantStepDaemon(t, "it was chosen", ours)
	install()
	offerSlurmd(t)
	wantStepDaemon(t, "both were upgraded", ours)
	alternatives(t, "--auto", "slurmd")
	wantStepDaemon(t, "the choice was taken back", theirs)
	alternatives(t, "--set", "slurmd", "/usr/libexec/stepd/slurmd")

	slurmd := exec.Command("/usr/sbin/slurmd", "-D", "-d", ours)
	slurmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	started, err := slurmd.StdoutPipe()
	if err = errors.Join(err, slurmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := started.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("dpkg", "--remove", "stepd-slurm").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "take -d out of its options") {
		t.Errorf("removed below a slurmd that needs it: %v: %s", err, out)
	}
	if err := syscall.Kill(-slurmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	_ = slurmd.Wait() // killed
	wantStepDaemon(t, "its removal was refused", ours)

	dpkg(t, "--remove", "stepd-slurm")
	wantStepDaemon(t, "it was removed", theirs)
	install()
	alternatives(t, "--set", "slurmd", "/usr/libexec/stepd/slurmd")
	alternatives(t, "--remove", "slurmd", "/usr/sbin/slurmd-wlm")
	if err := errors.Join(os.Remove("/usr/sbin/slurmd-wlm"), os.Remove(theirs)); err != nil {
		t.Fatal(err)
	}
	trigger(t)
	if _, err := os.Lstat("/usr/sbin/slurmd"); err == nil {
		t.Error("slurmd was removed, and there is a /usr/sbin/slurmd")
	}
	dpkg(t, "--purge", "stepd-slurm")
	if _, err := os.Lstat(ours); err == nil {
		t.Errorf("after the purge there is %s", ours)
	}
}

// playSlurmd has the files and the alternative of Debian's package slurmd (22.05.8, 24.11.5
// and 26.05.5 have the same). Its slurmd runs until it is killed.
func playSlurmd(t *testing.T) {
	t.Helper()
	for name, text := range map[string]string{"slurmd-wlm": "#!/bin/sh\necho runs\nsleep 1000\n", "slurmstepd-wlm": "#!/bin/sh\n"} {
		if err := os.WriteFile("/usr/sbin/"+name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	offerSlurmd(t)
}

// offerSlurmd is what the package's postinst does each time that it is configured.
func offerSlurmd(t *testing.T) {
	t.Helper()
	alternatives(t, "--install", "/usr/sbin/slurmd", "slurmd", "/usr/sbin/slurmd-wlm", "50", "--slave", "/usr/sbin/slurmstepd", "slurmstepd", "/usr/sbin/slurmstepd-wlm")
}

// trigger is what dpkg does when a package with slurmd comes or goes.
func trigger(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("dpkg-trigger", "--by-package=slurmd", "/usr/sbin/slurmd-wlm").CombinedOutput(); err != nil {
		t.Fatalf("dpkg-trigger: %v: %s", err, out)
	}
	dpkg(t, "--triggers-only", "--pending")
}

func alternatives(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("update-alternatives", args...).CombinedOutput(); err != nil {
		t.Fatalf("update-alternatives %q: %v: %s", args, err, out)
	}
}

// wantStepDaemon: slurmd would start this one.
func wantStepDaemon(t *testing.T, when, want string) {
	t.Helper()
	if got, err := filepath.EvalSymlinks("/usr/sbin/slurmstepd"); err != nil || got != want {
		t.Errorf("%s: slurmd's step daemon is %s, want %s (%v)", when, got, want, err)
	}
	if got, err := filepath.EvalSymlinks("/usr/sbin/slurmd"); err != nil || got != "/usr/sbin/slurmd-wlm" {
		t.Errorf("%s: slurmd is %s (%v)", when, got, err)
	}
}
