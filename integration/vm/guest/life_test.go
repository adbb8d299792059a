package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestGuestStart: `systemctl start` returns when the socket serves.
func TestGuestStart(t *testing.T) {
	startUnit(t)
	out, err := exec.Command("stepctl", "node", "status", "--json").CombinedOutput()
	var answer struct {
		Node struct {
			State     string
			Proctrack string
			Fallbacks []any
		}
	}
	if err = errors.Join(err, json.Unmarshal(out, &answer)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := answer.Node; n.State != "IDLE" || n.Proctrack != "cgroup/v2" || len(n.Fallbacks) != 0 {
		t.Errorf("node status: %s", out)
	}
	for name, want := range map[string]string{"ActiveState": "active", "SubState": "running", "Type": "notify", "KillMode": "process", "Delegate": "yes", "NRestarts": "0"} {
		if got := property(t, name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
	if out := systemctl(t, "status", "--no-pager", "noded"); !strings.Contains(out, "active (running)") {
		t.Errorf("systemctl status: %s", out)
	}
}

// TestGuestVerify: systemd finds nothing to say about the units.
func TestGuestVerify(t *testing.T) {
	startUnit(t)
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", "/usr/lib/systemd/system/noded.service", "/usr/lib/systemd/system/noded.socket").CombinedOutput()
	if err != nil || len(out) != 0 {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
}

// TestGuestTask: what a task has of the unit it descends from. The unit's
// limits and its protection from the OOM killer are the daemons' own, and its one
// session keyring is its step's own.
func TestGuestTask(t *testing.T) {
	startUnit(t)
	const script = "cat /proc/self/oom_score_adj; ulimit -n; ulimit -s; ulimit -l; echo \"[$NOTIFY_SOCKET$INVOCATION_ID$JOURNAL_STREAM$RUNTIME_DIRECTORY]\"; grep -c _ses: /proc/keys; exec cat /proc/self/cgroup"
	client := exec.Command("sh", "-c", "ulimit -n 500; ulimit -s 4096; ulimit -l 32; exec stepctl run --uid=nobody -D / sh -c '"+script+"'")
	client.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := client.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if want := "0 500 4096 32 [] 1"; len(lines) != 7 || strings.Join(lines[:6], " ") != want {
		t.Errorf("a task has %q, want %s", lines, want)
	}
	if !strings.HasPrefix(lines[len(lines)-1], "0::/system.slice/") || !strings.Contains(lines[len(lines)-1], "/job_") {
		t.Errorf("a task's cgroup is %q", lines[len(lines)-1])
	}
}

// TestGuestStop: steps outlive the unit. One of them ends while it is stopped,
// and its client gets the result when the unit is started again.
func TestGuestStop(t *testing.T) {
	startUnit(t)
	a, b := startStep(t, "a", 2), startStep(t, "b", 1)
	began := time.Now()
	systemctl(t, "stop", "noded")
	if state := property(t, "ActiveState") + " " + property(t, "Result"); state != "inactive success" {
		t.Errorf("the stopped unit is %q", state)
	}
	if took := time.Since(began); took > soon {
		t.Errorf("stop took %v", took)
	}
	a.alive(t)
	b.alive(t)
	finished := make(chan struct{})
	go func() { a.finish(t); close(finished) }()
	eventually(t, "the end of a's tasks", func() error {
		for _, pid := range a.pids(t) {
			if syscall.Kill(pid, 0) == nil {
				return fmt.Errorf("%d is there", pid)
			}
		}
		return nil
	})
	systemctl(t, "start", "noded")
	b.known(t)
	<-finished
	b.finish(t)
}

// TestGuestKillNoded: systemd starts a killed daemon again, and it takes up
// its steps.
func TestGuestKillNoded(t *testing.T) {
	startUnit(t)
	s := startStep(t, "a", 2)
	before := mainPID(t)
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another daemon", func() error {
		if pid := mainPID(t); pid == 0 || pid == before || property(t, "ActiveState") != "active" {
			return fmt.Errorf("pid %d, %s", pid, property(t, "ActiveState"))
		}
		return nil
	})
	if n := property(t, "NRestarts"); n != "1" {
		t.Errorf("NRestarts=%s", n)
	}
	s.known(t)
	s.alive(t)
	s.finish(t)
}

// TestGuestKillAll: `systemctl kill` without more hits all that is in the
// unit's cgroup. Whichever process lives through that, nothing is left,
// and the node serves.
func TestGuestKillAll(t *testing.T) {
	startUnit(t)
	s := startStep(t, "a", 2)
	before := mainPID(t)
	systemctl(t, "kill", "-s", "KILL", "noded")
	eventually(t, "another daemon", func() error {
		if pid := mainPID(t); pid == 0 || pid == before || property(t, "ActiveState") != "active" {
			return fmt.Errorf("pid %d, %s", pid, property(t, "ActiveState"))
		}
		return nil
	})
	if scope() != "" { // steps live apart from the unit
		s.known(t)
		s.finish(t)
		return
	}
	eventually(t, "the step's end", func() error {
		if left := steps(t); len(left) != 0 {
			return fmt.Errorf("%+v", left)
		}
		return nil
	})
	for _, d := range steps(t, "--all") {
		if d.id() == s.id() && (d.State == "COMPLETED" || d.Reason == "") {
			t.Errorf("the killed step: %+v", d)
		}
	}
	startStep(t, "b", 1).finish(t)
}

// scope is the scope that steps live in, empty where they live in the unit.
func scope() string {
	out, _ := exec.Command("systemctl", "list-units", "--plain", "--no-legend", "--type=scope", "stepd*").Output() // none is no error
	name, _, _ := strings.Cut(string(out), " ")
	return name
}

// TestGuestKillStepd: noded kills and removes what a killed stepd leaves.
func TestGuestKillStepd(t *testing.T) {
	startUnit(t)
	s := startStep(t, "a", 2)
	out, err := exec.Command("pkill", "-KILL", "-x", "stepd").CombinedOutput()
	if err != nil {
		t.Fatalf("pkill: %v: %s", err, out)
	}
	select {
	case <-s.ended:
	case <-time.After(soon):
		t.Fatal("the client has not ended")
	}
	if code := s.client.ProcessState.ExitCode(); code != 1 || !strings.Contains(s.out.String(), "stepd") || !strings.Contains(s.out.String(), "SIGKILL") {
		t.Errorf("exit code %d: %s", code, &s.out)
	}
	for _, pid := range s.pids(t) {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("task with pid %d: %v", pid, err)
		}
	}
}

// TestGuestBadConfiguration: a mistake ends the unit with an exit code of its own, for which systemd does not
// start it again; the reason is in the journal. A reload with a mistake fails, and leaves the unit as it is.
func TestGuestBadConfiguration(t *testing.T) {
	const mistake = "ProctrackType=proctrack/none-such\n"
	configure(t, map[string]string{"slurm.conf": mistake})
	if out, err := exec.Command("systemctl", "start", "noded").CombinedOutput(); err == nil {
		t.Errorf("start with a bad slurm.conf succeeds: %s", out)
	}
	// A unit that is to be started again would be "activating", and "auto-restart"; TestGuestKillNoded has such.
	for name, want := range map[string]string{"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainStatus": "78", "NRestarts": "0"} {
		if got := property(t, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	out, err := exec.Command("journalctl", "-q", "-u", "noded", "-n", "10", "--no-pager").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "none-such") {
		t.Errorf("journal: %v: %s", err, out)
	}
	os.RemoveAll("/etc/stepd")
	systemctl(t, "start", "noded")
	startStep(t, "a", 1).finish(t)
	if err := errors.Join(os.MkdirAll("/etc/stepd", 0o755), os.WriteFile("/etc/stepd/slurm.conf", []byte(mistake), 0o644)); err != nil {
		t.Fatal(err)
	}
	pid := mainPID(t)
	if out, err := exec.Command("systemctl", "reload", "noded").CombinedOutput(); err == nil {
		t.Errorf("reload with a bad slurm.conf succeeds: %s", out)
	}
	if now := mainPID(t); now != pid || property(t, "ActiveState") != "active" {
		t.Errorf("after the refused reload the unit is %s, with pid %d, before %d", property(t, "ActiveState"), now, pid)
	}
}
