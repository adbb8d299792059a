package slurm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// faultRun is one point as it is tried.
type faultRun struct {
	fault
	site *faultSite
	name string // the job's
	wd   string // of its FIFOs
	gate *os.File
	stop *os.File // nil where the step does not stop
	job  int
	hit  bool
	// limit is the client's; 0 is as long as others have.
	limit time.Duration
	done  chan struct{} // closed with the client's end
	// The client: srun, or sbatch that waits.
	client *exec.Cmd
	said   bytes.Buffer
	killed time.Time
	ended  time.Time // the client
}

// run starts the step, kills at the moment, lets the rest go on and looks at the result.
func (f *faultRun) run(t *testing.T) {
	f.prepare(t)
	defer f.release()
	defer f.open(t)
	f.start(t)
	if f.at.phase == phaseEnding {
		f.open(t)
	}
	if f.job = f.await(t); f.job == 0 {
		return
	}
	f.strike(t)
	f.open(t)
	f.wait(t)
	f.judge(t)
	eventually(t, endsIn, func() error { return left(f.site.Cluster, f.site.space, f.job) })
}

// prepare makes the FIFOs.
func (f *faultRun) prepare(t *testing.T) {
	t.Helper()
	f.name = f.site.number()
	f.wd = filepath.Join(f.site.wd, f.name)
	must(t, os.Mkdir(f.wd, 0o755))
	for _, name := range []string{"gate", "stop"} {
		path := filepath.Join(f.wd, name)
		must(t, unix.Mkfifo(path, 0o666))
		must(t, os.Chmod(path, 0o666))
	}
	var err error
	f.gate, err = os.OpenFile(filepath.Join(f.wd, "gate"), os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { f.gate.Close() })
}

// open lets the tasks end.
func (f *faultRun) open(t *testing.T) {
	t.Helper()
	_, err := f.gate.WriteString("\n\n")
	must(t, err)
}

// release lets the daemon go on where it has stopped.
func (f *faultRun) release() {
	if f.stop != nil {
		_, _ = f.stop.WriteString("\n") // EPIPE where it was killed
		f.stop.Close()
		f.stop = nil
	}
}

// start starts the client.
func (f *faultRun) start(t *testing.T) {
	t.Helper()
	f.client = f.site.Command(t.Context(), "alice", "timeout", append([]string{"-k", "1", fmt.Sprint(cmp.Or(f.limit, 2*faultWait).Seconds())}, f.kind.args(f.name)...)...)
	f.client.Env = append(f.client.Env, "GATE="+filepath.Join(f.wd, "gate"))
	f.client.Env = append(f.client.Env, "STEPD_STOP="+f.at.line, "STEPD_STOP_FIFO="+filepath.Join(f.wd, "stop"))
	f.client.Stdout, f.client.Stderr = &f.said, &f.said
	must(t, f.client.Start())
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		_ = f.client.Wait() // its exit code is looked at
		f.ended = time.Now()
	}()
}

// await returns the job when the step is at the moment.
func (f *faultRun) await(t *testing.T) int {
	t.Helper()
	path := filepath.Join(f.wd, "stop")
	opened := make(chan *os.File, 1)
	go func() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0) // waits for the daemon
		if err == nil {
			opened <- file
		}
		close(opened)
	}()
	select {
	case f.stop = <-opened:
		return reader(t, f.site.space, path)
	case <-f.done:
	case <-time.After(faultWait):
	}
	t.Errorf("the moment did not come: exit code %d: %s", f.client.ProcessState.ExitCode(), f.said.String())
	if file, err := os.OpenFile(path, os.O_RDWR, 0); err == nil { // ends the wait
		defer file.Close()
		if stop := <-opened; stop != nil {
			stop.Close()
		}
	}
	return 0
}

// strike kills, and waits for what is to follow while the step stops where it is.
func (f *faultRun) strike(t *testing.T) {
	t.Helper()
	s := f.site
	all := processes(s.space, f.job)
	victim := named(all, f.victim)
	if f.victim == client {
		victim = s.client(f.name)
	}
	f.killed = time.Now()
	if f.victim == both {
		f.hit = killBoth(t, all)
	} else {
		f.hit = kill(t, victim, unix.SIGKILL)
	}
	defer f.release()
	switch f.victim {
	case both:
		s.swept(t, f.job, f.name)
	case "slurmstepd":
		eventually(t, endsIn, func() error { return left(s.Cluster, s.space, f.job) })
	case "spankhost":
		f.release()
		eventually(t, endsIn, func() error { return left(s.Cluster, s.space, f.job) })
	case client: // its second process cancels the job
		f.release()
		eventually(t, faultWait, func() error { return left(s.Cluster, s.space, f.job) })
		return
	case "stepkeeper":
		if !f.hit || f.at.phase == phaseEnding {
			return
		}
		eventually(t, keeperIn, func() error {
			if next := named(processes(s.space, f.job), f.victim); next.pid == 0 || next.pid == victim.pid {
				return errors.New("no new keeper")
			}
			return nil
		})
		s.note(&s.again, time.Since(f.killed), f)
		return
	}
	s.note(&s.slow, time.Since(f.killed), f)
}

// wait waits for the client.
func (f *faultRun) wait(t *testing.T) {
	t.Helper()
	select {
	case <-f.done:
	case <-time.After(faultWait):
		t.Errorf("%v after the kill the client has not ended", time.Since(f.killed))
		<-f.done // timeout(1)
	}
	if f.hit && f.victim == "slurmstepd" && !f.kind.batch && f.at.phase != phaseEnding {
		f.site.note(&f.site.told, f.ended.Sub(f.killed), f)
	}
}

// judge looks at what the user and slurmctld have been told.
func (f *faultRun) judge(t *testing.T) {
	t.Helper()
	own := f.client.ProcessState.ExitCode() == 7
	switch {
	case (f.victim == both || f.victim == client) && f.hit: // srun has been killed
	case f.client.ProcessState.ExitCode() <= 0:
		t.Errorf("exit code %d", f.client.ProcessState.ExitCode())
	case !own && (f.victim == "stepkeeper" || !f.hit):
		t.Errorf("exit code %d, want 7", f.client.ProcessState.ExitCode())
	case !own && f.victim == "slurmstepd" && f.at.phase == phaseEnding && f.at.name != "task_exit":
		t.Errorf("exit code %d: the keeper knows that the tasks have ended with 7", f.client.ProcessState.ExitCode())
	case own && f.hit && f.victim != "stepkeeper" && f.at.phase != phaseEnding:
		t.Errorf("exit code 7, of a step that was killed")
	// sbatch asks slurmctld at times of its own.
	case f.hit && f.victim == "slurmstepd" && !f.kind.batch && f.at.phase != phaseEnding && f.ended.Sub(f.killed) > endsIn:
		t.Errorf("the client ended %v after the kill", f.ended.Sub(f.killed))
	}
	patience := faultWait
	if f.victim == "munged" {
		patience = mungedWait
	}
	eventually(t, patience, func() error {
		out, err := f.site.Command(t.Context(), "root", "scontrol", "-o", "show", "job", strconv.Itoa(f.job)).Output()
		if err == nil && !slices.ContainsFunc(f.states(), func(s string) bool { return strings.Contains(string(out), " JobState="+s+" ") }) {
			err = fmt.Errorf("scontrol show job: %s", out)
		}
		return err
	})
	if t.Failed() {
		t.Logf("it printed: %s", f.said.String())
		f.site.log(t, f.job)
	}
}

// states are the states that the job may end in.
func (f *faultRun) states() []string {
	switch {
	case f.victim == client && f.hit:
		return []string{"FAILED", "CANCELLED", "COMPLETED"}
	case f.victim == both:
		return []string{"FAILED", "CANCELLED"}
	case f.victim == "slurmstepd" && strings.Contains(f.said.String(), "srun: error: _server_read: "):
		// An srun that finds its streams broken before it is told why completes its job by itself.
		return []string{"FAILED", "COMPLETED"}
	}
	return []string{"FAILED"}
}
