package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
)

// TestRootSSH: real sshd with pam_slurm_adopt puts sessions into the extern step of their user's
// job: they are counted there, and end with it.
func TestRootSSH(t *testing.T) {
	t.Parallel()
	onReleases(t, func(t *testing.T, release string) { (&sshNode{release: release}).run(t) })
}

// sshNode is a node that users reach by ssh.
type sshNode struct {
	release string
	c       *cluster.Cluster
	space   string // the namespace of its processes
}

func (n *sshNode) run(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	site := ofRelease("ssh", n.release)
	if n.release == cluster.AccountingRelease { // with cgroup v1, by which pam_slurm_adopt knows the newest job
		site.Accounting = true
		site.Conf += "ProctrackType=proctrack/cgroup\n"
		t.Cleanup(func() { os.Remove("/sys/fs/cgroup/freezer/slurm") }) // it is the machine's
	}
	c := startSite(t, site)
	n.c, n.space = c, space(t, c)
	n.do(t, "root", c.Path("sshd"))
	if out, err := n.ssh(ctx, "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "no active jobs on this node") {
		t.Errorf("without a job: %v: %s", err, out)
	}
	n.sessions(ctx, t)
	n.jobs(ctx, t)
	n.racing(ctx, t)
}

// do runs a command, and returns what it prints.
func (n *sshNode) do(t *testing.T, user, name string, args ...string) string {
	t.Helper()
	out, err := n.c.Command(t.Context(), user, name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (n *sshNode) ssh(ctx context.Context, command string) *exec.Cmd {
	return n.c.Command(ctx, "root", n.c.Path("ssh"), "alice", command)
}

// batch starts a job that waits, and returns its number.
func (n *sshNode) batch(t *testing.T) int {
	t.Helper()
	id, _ := strconv.Atoi(n.do(t, "alice", "sbatch", "--parsable", "-o", "out", "--wrap", "readlink /proc/self/ns/mnt; sleep 1000"))
	eventually(t, time.Minute, func() error {
		if state := n.do(t, "root", "squeue", "-h", "-j", strconv.Itoa(id), "-o", "%T"); state != "RUNNING" {
			return fmt.Errorf("job %d is %q", id, state)
		}
		return nil
	})
	return id
}

// places are the cgroups of the sessions that run a command: of the processes of alice's by
// which sshd serves them, and of the command.
func (n *sshNode) places(command string) (found []string) {
	session := func(title string, _ []byte) bool {
		return title == command || strings.HasPrefix(title, "sshd") && strings.HasSuffix(title, ": alice@notty")
	}
	for _, p := range search(n.space, session) {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid)); err == nil {
			found = append(found, string(text))
		}
	}
	return found
}

// computes is a session's command: it uses a processor, and prints for how many ticks.
const computes = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; read -r s </proc/$$/stat; set -- ${s##*) }; echo $((${12} + ${13})); exec sleep 7777"

// sessions holds ten sessions that have computed, beside one that ends by itself.
func (n *sshNode) sessions(ctx context.Context, t *testing.T) {
	job := n.batch(t)
	var held []*exec.Cmd
	var said [10]bytes.Buffer
	for i := range said {
		cmd := n.ssh(ctx, computes)
		cmd.Stdout = &said[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		held = append(held, cmd)
	}
	err := n.ssh(ctx, "exit 3").Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 {
		t.Errorf("a session that ends by itself: %v", err)
	}
	within := fmt.Sprintf("job_%d/tasks/step_4294967292", job)
	eventually(t, time.Minute, func() error {
		places := n.places("sleep 7777")
		for _, p := range places {
			if !strings.Contains(p, within) {
				return fmt.Errorf("a process of a session is in %s", p)
			}
		}
		if len(places) != 20 {
			return fmt.Errorf("%d processes of sessions, want 20", len(places))
		}
		return nil
	})
	// A session sees the files of the job.
	inJob, err := os.ReadFile(n.c.Path("work/alice/out"))
	must(t, err)
	if got := n.do(t, "root", n.c.Path("ssh"), "alice", "readlink /proc/self/ns/mnt"); !strings.HasSuffix(got, strings.TrimSpace(string(inJob))) || len(inJob) == 0 {
		t.Errorf("a session has the mount namespace %q, the job %q", got, inJob)
	}
	if got := n.do(t, "root", "sh", "-c", fmt.Sprintf("scontrol listpids %d | grep -c extern", job)); len(got) != 2 {
		t.Errorf("scontrol lists %s processes of the extern step", got)
	}
	n.do(t, "root", "scancel", strconv.Itoa(job))
	for _, cmd := range held {
		if err := cmd.Wait(); err == nil {
			t.Error("a session has outlived its job")
		}
	}
	n.gone(t)
	var used time.Duration // by their own word
	for i := range said {
		ticks, err := strconv.Atoi(strings.TrimSpace(said[i].String()))
		if err != nil || ticks == 0 {
			t.Errorf("a session says it has used %q: %v", said[i].String(), err)
		}
		used += time.Duration(ticks) * 10 * time.Millisecond
	}
	if n.release != cluster.AccountingRelease {
		return
	}
	eventually(t, time.Minute, func() error {
		out := n.do(t, "root", "sacct", "-nPX", "--noconvert", "-o", "State", "-j", strconv.Itoa(job))
		cpu := n.do(t, "root", "sacct", "-nP", "-o", "TotalCPU", "-j", fmt.Sprintf("%d.extern", job))
		if d, err := time.ParseDuration(strings.Replace(cpu, ":", "m", 1) + "s"); err != nil || d < used-100*time.Millisecond || d > used+5*time.Second { // sshd computes, too
			return fmt.Errorf("the job is %s, and its sessions have used %q, by their own word %v", out, cpu, used)
		}
		return nil
	})
}

// gone waits until no process of a session is left.
func (n *sshNode) gone(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		if left := n.places("sleep 7777"); len(left) > 0 {
			return fmt.Errorf("processes of sessions are left: %q", left)
		}
		return nil
	})
}

// jobs: of three jobs the session is of the newest, where pam_slurm_adopt can know it, and else of any
// one.
func (n *sshNode) jobs(ctx context.Context, t *testing.T) {
	var jobs []int
	for range 3 {
		jobs = append(jobs, n.batch(t))
		time.Sleep(1100 * time.Millisecond) // it compares seconds
	}
	out, err := n.ssh(ctx, "cat /proc/self/cgroup").Output()
	var in int
	if _, after, ok := strings.Cut(string(out), "/job_"); ok {
		_, _ = fmt.Sscanf(after, "%d/tasks/step_4294967292", &in)
	}
	switch {
	case n.release == "24.11": // with CgroupPlugin=disabled it denies, under Slurm's step daemon as well
		if err == nil {
			t.Errorf("the session is in %s", out)
		}
	case err != nil || !slices.Contains(jobs, in) || n.release == cluster.AccountingRelease && in != jobs[2]:
		t.Errorf("%v: the session is in %s", err, out)
	}
	n.do(t, "root", "scancel", "-u", "alice")
	n.idle(t)
}

// idle waits until no job is left: what a session finds depends on it.
func (n *sshNode) idle(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		if left := n.do(t, "root", "squeue", "-h"); left != "" {
			return fmt.Errorf("jobs: %s", left)
		}
		return nil
	})
}

// racing: of sessions that start while the job ends, none is left.
func (n *sshNode) racing(ctx context.Context, t *testing.T) {
	job := n.batch(t)
	var started []*exec.Cmd
	for i := range 8 {
		cmd := n.ssh(ctx, "sleep 7777")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		started = append(started, cmd)
		if i == 3 {
			n.do(t, "root", "scancel", strconv.Itoa(job))
		}
	}
	for _, cmd := range started {
		if err := cmd.Wait(); err == nil {
			t.Error("a session has outlived its job")
		}
	}
	n.gone(t)
	n.idle(t)
}
