package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"stepd/api"
	"stepd/eventlog"
	"stepd/step"
)

// letGo waits until only a prolog holds the job, and reports whether one does: else the
// job's end has been begun by then.
func (s *scripted) letGo(j *job) (kept bool) {
	s.t.Helper()
	await(s.t, func() bool {
		s.reg.mu.Lock()
		defer s.reg.mu.Unlock()
		kept = j.present > 0
		return j.running == 0
	})
	return kept
}

// wantJob checks what the node's document has of its one job.
func (s *scripted) wantJob(state, doing string) {
	s.t.Helper()
	if d := s.doc(); len(d.Jobs) != 1 || d.Jobs[0].State != state || d.Jobs[0].Doing != doing {
		s.t.Errorf("the jobs are %+v, want one that is %s and does %q", d.Jobs, state, doing)
	}
}

// TestIdleJob: a job whose stepd has not gone yet is in no epilog.
func TestIdleJob(t *testing.T) {
	s := newScripted(t, "", "", nil)
	rec := s.until(s.run(1000, request("linger")), step.Completed)
	s.letGo(s.reg.job(rec.ID.Job))
	s.wantJob("COMPLETING", "")
	if err := syscall.Kill(rec.StepdPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
}

// TestPrologOfEndedAllocation: a prolog is run to its end where the allocation ends before,
// and the epilog comes after it.
func TestPrologOfEndedAllocation(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScripted(t, "read x <"+gate+"\nprintf 'ended \\n' >>$0.out", "test -e ${0%/*}/prolog.sh.out", func(c *Config) { c.Scripts.AtAlloc = true })
	c := newClient(t, 1000)
	answer := make(chan error, 1)
	go func() { _, err := s.alloc(c, nil); answer <- err }()
	open, err := os.OpenFile(gate, os.O_WRONLY, 0) // when the prolog runs
	if err != nil {
		t.Fatal(err)
	}
	j := s.reg.job(1)
	s.wantJob("RUNNING", "prolog")
	c.kill()
	if !s.letGo(j) {
		t.Error("the job ends beside its prolog")
	}
	s.wantJob("COMPLETING", "prolog")
	open.Close()
	if err := <-answer; err != nil {
		t.Error(err)
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
	if d := s.doc(); d.State == "DRAINED" { // as the epilog does that comes before
		t.Errorf("node %+v", d)
	}
}

// slowCreate are containers that take their time to be made.
type slowCreate struct {
	*fakeContainers
	at, on chan struct{}
}

func (c slowCreate) Create(ctx context.Context, job uint32, user step.User) error {
	c.at <- struct{}{}
	<-c.on
	return c.fakeContainers.Create(ctx, job, user)
}

// TestAllocationEndsBeforeProlog: an allocation that ends while its container is made, before
// its prolog has begun. The prolog runs, the epilog after it, and nothing is left.
func TestAllocationEndsBeforeProlog(t *testing.T) {
	for name, noHold := range map[string]bool{"Alloc": false, "NoHold": true} {
		t.Run(name, func(t *testing.T) {
			slow := slowCreate{at: make(chan struct{}), on: make(chan struct{})}
			s := newScripted(t, "", "", func(c *Config) {
				slow.fakeContainers = c.Containers.(*fakeContainers)
				c.Containers = slow
				c.Scripts.AtAlloc, c.Scripts.NoHold = true, noHold
			})
			c := newClient(t, 1000)
			answer := make(chan error, 1)
			go func() { _, err := s.alloc(c, nil); answer <- err }()
			<-slow.at
			j := s.reg.job(1)
			c.kill()
			if !s.letGo(j) {
				t.Error("the job ends before its prolog")
				<-j.ended
			}
			close(slow.on)
			if err := <-answer; err != nil {
				t.Error(err)
			}
			s.idle()
			await(t, func() bool { return slices.Contains(s.told(), "prolog.sh") })
			s.wantTold("prolog.sh", "epilog.sh")
			if slow.has(1) {
				t.Error("the job's container is left")
			}
			// A job that has ended cannot be opened.
			if err := s.openAlloc(j, step.User{UID: 1000}); err != nil || s.takesSteps(j) || s.reg.keep(j) {
				t.Errorf("a job that has ended: %v, it takes steps: %v", err, s.takesSteps(j))
			}
			s.wantTold("prolog.sh", "epilog.sh")
		})
	}
}

// TestAdoptionEndsBeforeProlog: as TestAllocationEndsBeforeProlog, where the prolog is due
// with a process that is adopted.
func TestAdoptionEndsBeforeProlog(t *testing.T) {
	slow := slowCreate{at: make(chan struct{}), on: make(chan struct{})}
	s := newScripted(t, "", "", func(c *Config) {
		slow.fakeContainers = c.Containers.(*fakeContainers)
		c.Containers = slow
	})
	c := newClient(t, 1000)
	id, err := s.alloc(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	j := s.reg.job(id)
	answer := make(chan error, 1)
	go func() { _, err := launcher{s.Node}.extern(as(0), j); answer <- err }()
	<-slow.at
	go s.svc.Release(as(1000), &api.ReleaseRequest{JobID: id})
	if !s.letGo(j) {
		t.Error("the job ends before its prolog")
		<-j.ended
	}
	close(slow.on)
	select {
	case err := <-answer:
		if api.CodeOf(err) != api.NotFound {
			t.Errorf("adopted into a job that has ended: %v", err)
		}
	case <-time.After(testTimeout):
		t.Fatal("the adoption is not answered")
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
	if slow.has(1) {
		t.Error("the job's container is left")
	}
}

// TestBatchStepdOverKill: a batch job whose stepd was started when noded was killed, and is
// gone, is lost, though its pid was never stored.
func TestBatchStepdOverKill(t *testing.T) {
	t.Parallel()
	hold := filepath.Join(t.TempDir(), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScripted(t, "while test -e "+hold+"; do sleep 0.01; done", "", nil)
	id := s.batch("wait")
	await(t, func() bool { running, _ := s.scripts.Prologs(); return running == 1 })
	kill := s.asKilled()
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	pid := s.until(id, step.Running).StepdPID
	await(t, func() bool {
		return slices.ContainsFunc(s.eventLines(id), func(e eventlog.Event) bool { return e.Event == eventlog.EventState })
	})
	s.stop()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, pid)
	kill()
	s.testNode = start(t, s.dir, s.cfg)
	s.lost(id)
	s.idle()
}

// takesSteps reports whether a job takes steps.
func (s *scripted) takesSteps(j *job) bool {
	return s.reg.newest(func(other *job) bool { return other == j }) != nil
}
