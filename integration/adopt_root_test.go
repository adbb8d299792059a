package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// stranger starts a process of a user's that no step has started.
func stranger(t *testing.T, uid uint32, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Setsid: true}
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// wasKilled waits for the stranger's end.
func wasKilled(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); cmd.Wait() }()
	eventually(t, goneWithin, "the adopted process's end", func() error {
		select {
		case <-done:
			return nil
		default:
			return fmt.Errorf("process %d goes on", cmd.Process.Pid)
		}
	})
}

func cgroupsOf(t *testing.T, pid int) string { return readFile(t, fmt.Sprintf("/proc/%d/cgroup", pid)) }

// TestRootAdopt: an adopted process is in the extern step of its user's job in every
// hierarchy, is accounted there, survives noded, and is killed with the job.
func TestRootAdopt(t *testing.T) {
	base := containerBase(t)
	n := startNode(t, site{
		Slurm:     "JobContainerType=job_container/tmpfs\nJobAcctGatherType=jobacct_gather/cgroup\n",
		Container: "AutoBasePath=true\nBasePath=" + base + "\n",
	})
	n.userFile(t, "wait.sh", "while ! test -e go; do sleep 0.05; done\n", 0o755)
	uid := fmt.Sprint(alice.uid)
	s := stranger(t, alice.uid, "sleep", "86400")
	pid := fmt.Sprint(s.Process.Pid)
	t.Run("without a job", func(t *testing.T) {
		if r := n.ctlRoot(t, "adopt", pid); r.code != 1 || !strings.Contains(r.err, "uid "+uid+" has no job on this node") {
			t.Errorf("got %v", r)
		}
		r := n.do(t, call{args: []string{"adopt", "--pam"}, root: true, env: []string{"PAM_USER=" + alice.name}})
		if r.code != 1 || r.out != "Access denied: "+alice.name+" has no job on this node\n" {
			t.Errorf("got %v", r)
		}
		for _, env := range []string{"PAM_USER=root", "PAM_USER=" + alice.name + "\nPAM_TYPE=close_session"} {
			if r := n.do(t, call{args: []string{"adopt", "--pam"}, root: true, env: strings.Split(env, "\n")}); r.code != 0 || r.out != "" {
				t.Errorf("%q: got %v", env, r)
			}
		}
	})
	older := n.start(t, call{args: []string{"run", "sh", "wait.sh"}})
	first := n.running(t)
	p := n.start(t, call{args: []string{"run", "sh", "wait.sh"}})
	var st stepDoc
	eventually(t, callTimeout, "the second job", func() error {
		for _, s := range n.ps(t) {
			if s.JobID > first.JobID && s.State == "RUNNING" {
				st = s
				return nil
			}
		}
		return fmt.Errorf("not yet")
	})
	job := fmt.Sprint(st.JobID)
	t.Run("refused", func(t *testing.T) {
		other := stranger(t, bob.uid, "sleep", "86400")
		root := stranger(t, 0, "sleep", "86400")
		for _, c := range []struct {
			as   func(testing.TB, ...string) result
			args []string
			want string
		}{
			{n.ctl, []string{pid}, "permission denied"},
			{n.ctlRoot, []string{"--job", job, fmt.Sprint(other.Process.Pid)}, fmt.Sprintf("job %s is uid %s's, not uid %d's", job, uid, bob.uid)},
			{n.ctlRoot, []string{"--uid", alice.name, fmt.Sprint(other.Process.Pid)}, fmt.Sprintf("process %d is uid %d's, not uid %s's", other.Process.Pid, bob.uid, uid)},
			{n.ctlRoot, []string{fmt.Sprint(root.Process.Pid)}, "is root's: say whose job"},
			{n.ctlRoot, []string{"--job", "4000000", pid}, `no such job "4000000"`},
			{n.ctlRoot, []string{"4194305"}, `no such process "4194305"`},
			{n.ctlRoot, []string{fmt.Sprint(n.cmd.Process.Pid)}, "cannot be adopted"},
			{n.ctlRoot, []string{"1"}, "cannot be adopted"},
			{n.ctlRoot, []string{"x"}, `"x" is not the number of a process`},
		} {
			if r := c.as(t, append([]string{"adopt"}, c.args...)...); r.code != 1 || !strings.Contains(r.err, c.want) {
				t.Errorf("%q: want %q, got %v", c.args, c.want, r)
			}
		}
		if n.last(t).StepID == 4294967292 {
			t.Error("a refused adoption has begun an extern step")
		}
	})
	var doc struct {
		Adopted struct {
			JobID      uint32            `json:"job_id"`
			StepID     uint32            `json:"step_id"`
			Cgroup     string            `json:"cgroup"`
			Namespaces map[string]string `json:"namespaces"`
		} `json:"adopted"`
	}
	t.Run("into the newest job", func(t *testing.T) {
		r := n.ctlRoot(t, "adopt", "--json", pid)
		if r.code != 0 {
			t.Fatalf("got %v", r)
		}
		must(t, json.Unmarshal([]byte(r.out), &doc))
		if a := doc.Adopted; fmt.Sprint(a.JobID) != job || a.StepID != 4294967292 || !strings.Contains(a.Cgroup, "stepd-"+n.hash()) {
			t.Errorf("got %+v", a)
		}
		if want := filepath.Join(n.run, "jobs", job, "ns"); doc.Adopted.Namespaces["mnt"] != want {
			t.Errorf("want the mount namespace at %q: %+v", want, doc.Adopted)
		}
		if _, err := os.Stat(doc.Adopted.Namespaces["mnt"]); err != nil {
			t.Error(err)
		}
		if c := cgroupsOf(t, s.Process.Pid); !strings.Contains(c, "job_"+job) {
			t.Errorf("the process is in\n%s", c)
		}
		ext := n.show(t, job+".extern")
		if ext.State != "RUNNING" && ext.State != "STARTING" {
			t.Errorf("got %+v", ext)
		}
	})
	t.Run("a process of root's, by the named job", func(t *testing.T) {
		root := stranger(t, 0, "sleep", "86400")
		if r := n.ctlRoot(t, "adopt", "--job", fmt.Sprint(first.JobID), fmt.Sprint(root.Process.Pid)); r.code != 0 {
			t.Fatalf("got %v", r)
		}
		if c := cgroupsOf(t, root.Process.Pid); !strings.Contains(c, fmt.Sprintf("job_%d", first.JobID)) {
			t.Errorf("the process is in\n%s", c)
		}
		if r := n.ctlRoot(t, "cancel", fmt.Sprintf("%d.extern", first.JobID)); r.code != 0 {
			t.Errorf("got %v", r)
		}
		wasKilled(t, root)
		n.ended(t, fmt.Sprintf("%d.extern", first.JobID))
		if r := n.ctlRoot(t, "adopt", "--job", fmt.Sprint(first.JobID), pid); r.code != 1 || !strings.Contains(r.err, "its extern step has ended") {
			t.Errorf("got %v", r)
		}
	})
	burner := stranger(t, alice.uid, "sh", "-c", "while :; do :; done")
	t.Run("as pam_exec does it", func(t *testing.T) {
		// The shell is sshd's process here, and stepctl's parent.
		sh := stranger(t, 0, "sh", "-c", fmt.Sprintf("PAM_USER=%s PAM_TYPE=account NODED_SOCKET=%s %s adopt --pam; echo $? > %s; exec sleep 86400",
			alice.name, n.socket(), n.bin, filepath.Join(n.dir, "pam")))
		eventually(t, callTimeout, "the answer", func() error {
			if b, _ := os.ReadFile(filepath.Join(n.dir, "pam")); string(b) != "0\n" {
				return fmt.Errorf("%q", b)
			}
			return nil
		})
		if c := cgroupsOf(t, sh.Process.Pid); !strings.Contains(c, "job_"+job) {
			t.Errorf("the process is in\n%s", c)
		}
	})
	if r := n.ctlRoot(t, "adopt", "--job", job, fmt.Sprint(burner.Process.Pid)); r.code != 0 {
		t.Errorf("got %v", r)
	}
	t.Run("steps have their CPUs all the same", func(t *testing.T) {
		if r := n.ctl(t, "run", "--jobid", job, "-n", "1", "true"); r.code != 0 {
			t.Errorf("got %v", r)
		}
	})
	eventually(t, callTimeout, "what it uses", func() error {
		if u := n.acct(t, "stat", job+".extern").Usage; u == nil || u.CPU == nil || *u.CPU < 0.05 {
			return fmt.Errorf("%+v", u)
		}
		return nil
	})
	n.kill9(t)
	n.boot(t)
	if c := cgroupsOf(t, s.Process.Pid); !strings.Contains(c, "job_"+job) {
		t.Errorf("after the restart the process is in\n%s", c)
	}
	n.letGo(t)
	for _, p := range []*process{older, p} {
		if r := p.wait(t); r.code != 0 {
			t.Errorf("the jobs: %v", r)
		}
	}
	wasKilled(t, s)
	wasKilled(t, burner)
	ext := n.ended(t, job+".extern")
	if ext.State != "COMPLETED" || ext.Reason != "" || ext.ExitCode == nil || *ext.ExitCode != 0 {
		t.Errorf("the extern step's record: %+v", ext)
	}
	// The shell that burns has done so in no other place since it was adopted.
	if u := n.acct(t, "show", job+".extern").Usage; u == nil || u.CPU == nil || *u.CPU < 0.05 {
		t.Errorf("what adopted processes use is the step's: %+v", u)
	}
	n.checkClean(t)
	emptyBase(t, base)
}
