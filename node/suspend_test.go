package node

import (
	"context"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/internal/linux"
	"stepd/node/selection"
	"stepd/node/state"
	"stepd/step"
)

// suspended asks the step's stepd which user has suspended the step, when stepd has heard what
// was asked before; nil is that the step does not stand still.
func (tn *testNode) suspended(id step.ID) *uint32 {
	tn.t.Helper()
	f := tn.reg.follower(id)
	<-f.caughtUp
	reply, err := f.ask(context.Background(), &stepapi.Msg{Type: stepapi.TypeStat})
	if err != nil {
		tn.t.Fatal(err)
	}
	return reply.Record.SuspendedBy
}

// TestSuspendedBeforeItsNumber: a step that gets its place before its job is suspended and its
// number after it stands still with the job, and goes on with it.
func TestSuspendedBeforeItsNumber(t *testing.T) {
	tn := fresh(t)
	job, err := tn.alloc(newClient(t, 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	req := request("wait")
	req.Job, req.Overlap, req.MPI = &job, true, "none"
	a, err := tn.reg.admit(context.Background(), &req, step.User{UID: 1000}, false)
	if err != nil {
		t.Fatal(err)
	}
	whole := &api.RefRequest{StepRef: api.StepRef{JobID: job}}
	if _, err := tn.svc.ask(as(0), "suspend", whole); err != nil {
		t.Fatal(err)
	}
	n := launcher{tn.Node}
	f, _, err := n.reserveAdmitted(api.Peer{UID: 1000}, step.User{Name: "u", UID: 1000, GID: 1000}, a, order{req: &req, state: step.Starting, received: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if !f.claim() {
		t.Fatal("the step is not to be launched")
	}
	if _, err := f.launch(nil); err != nil {
		t.Fatal(err)
	}
	tn.until(f.id, step.Running)
	if by := tn.suspended(f.id); by == nil || *by != 0 {
		t.Errorf("the step of a job that root has suspended: by %v", by)
	}
	if _, err := tn.svc.ask(as(0), "unsuspend", whole); err != nil {
		t.Fatal(err)
	}
	if by := tn.suspended(f.id); by != nil {
		t.Errorf("the job was resumed, and its step stands still: by %d", *by)
	}
}

// TestResumedBeforeItsLaunch: a step of a suspended job that was resumed by itself before it had
// a stepd runs.
func TestResumedBeforeItsLaunch(t *testing.T) {
	tn := fresh(t)
	c := newClient(t, 1000)
	job, err := tn.alloc(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	req := request("wait")
	req.Job, req.Overlap = &job, true
	id := tn.reserve(c, req)
	if _, err := tn.svc.ask(as(1000), "suspend", &api.RefRequest{StepRef: api.StepRef{JobID: job}}); err != nil {
		t.Fatal(err)
	}
	if _, err := tn.svc.ask(as(1000), "unsuspend", &api.RefRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	if err := tn.launch(c.ctx, id, step.LaunchChange{}); err != nil {
		t.Fatal(err)
	}
	tn.until(id, step.Running)
	if by := tn.suspended(id); by != nil {
		t.Errorf("the step was resumed, and stands still: by %d", *by)
	}
}

// TestResumedWhileLaunched: a job that is resumed while its step is launched does not leave the
// step standing still, whichever of the two requests stepd would read first.
func TestResumedWhileLaunched(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	c := newClient(t, 1000)
	job, err := tn.alloc(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := &api.RefRequest{StepRef: api.StepRef{JobID: job}}
	for range 20 {
		req := request("wait")
		req.Job, req.Overlap = &job, true
		id := tn.reserve(c, req)
		if _, err := tn.svc.ask(as(1000), "suspend", whole); err != nil {
			t.Fatal(err)
		}
		if err := tn.launch(c.ctx, id, step.LaunchChange{}); err != nil {
			t.Fatal(err)
		}
		if _, err := tn.svc.ask(as(1000), "unsuspend", whole); err != nil {
			t.Fatal(err)
		}
		tn.until(id, step.Running)
		if by := tn.suspended(id); by != nil {
			t.Fatalf("the job was resumed, and step %s stands still: by %d", id, *by)
		}
		if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil {
			t.Fatal(err)
		}
		tn.wait(id)
	}
}

// TestAddToSuspended: a step that is new to its job takes over that the job is suspended. One that
// was found again may have been resumed by itself, unless the job's CPUs are free.
func TestAddToSuspended(t *testing.T) {
	for _, c := range []struct {
		phase stepPhase
		free  bool
		want  bool
	}{{stepReserved, false, true}, {stepReserved, true, true}, {stepStarting, false, false}, {stepStarting, true, true}} {
		r := testRegistry([]int{0}, selection.Memory{}, nil)
		j := r.adopt(state.Job{ID: 1, UID: 1000, Suspended: &state.Suspension{By: 7, CPUsFree: c.free}}, selection.Saved{Share: selection.Share{CPUs: []int{0}}}, 1)
		f := &follower{id: step.ID{Job: 1}, job: j, phase: c.phase}
		r.add(f)
		if got := f.suspendBy != nil && *f.suspendBy == 7; got != c.want {
			t.Errorf("%+v: suspended with its job: %v", c, got)
		}
	}
}

// TestResumeDuringSuspend: a resume does not wait for the answer to a suspend that is under way:
// it ends that.
func TestResumeDuringSuspend(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	f := tn.reg.follower(id)
	l, err := bindIn(tn.spool.StepsDir(), tn.spool.SocketName(id), unix.SOCK_SEQPACKET)
	if err != nil { // in the place of stepd's, which takes requests and answers none
		t.Fatal(err)
	}
	defer l.Close()
	patience := unix.NsecToTimeval(testTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(int(l.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	answers := make(chan error, 2)
	go func() { answers <- f.suspend(ctx, 1000) }()
	go func() { answers <- f.unsuspend(ctx, 1000) }()
	var conns []int
	for range 2 {
		fd, err := linux.Uninterrupted(func() (int, error) { // with a time limit it is not begun anew after a signal
			fd, _, err := unix.Accept4(int(l.Fd()), unix.SOCK_CLOEXEC)
			return fd, err
		})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, fd)
	}
	cancel()
	for range conns {
		if err := <-answers; err == nil {
			t.Error("a request that stepd has not answered is met")
		}
	}
	for _, fd := range conns {
		unix.Close(fd)
	}
	if err := f.n.killStepd(f.proc); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
}

// TestSuspendAfterResume: a suspend of a job asks its steps when they have answered the resume that
// came before: the tasks of a resume that comes late would run on CPUs that are free.
func TestSuspendAfterResume(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	ask := func(verb string) error {
		_, err := tn.svc.ask(as(1000), verb, &api.RefRequest{StepRef: api.StepRef{JobID: id.Job}})
		return err
	}
	if err := ask("suspend"); err != nil {
		t.Fatal(err)
	}
	l, err := bindIn(tn.spool.StepsDir(), tn.spool.SocketName(id), unix.SOCK_SEQPACKET)
	if err != nil { // in the place of stepd's
		t.Fatal(err)
	}
	defer l.Close()
	// asked returns the connection of a request for the step, -1 where none comes for so long.
	asked := func(patience time.Duration) int {
		t.Helper()
		n, err := linux.Uninterrupted(func() (int, error) {
			return unix.Poll([]unix.PollFd{{Fd: int32(l.Fd()), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		})
		if err != nil || n == 0 {
			return -1
		}
		fd, _, err := unix.Accept4(int(l.Fd()), unix.SOCK_CLOEXEC)
		if err != nil {
			t.Error(err)
		}
		return fd
	}
	answers := make(chan error, 2)
	go func() { answers <- ask("unsuspend") }()
	resume := asked(testTimeout)
	go func() { answers <- ask("suspend") }()
	if asked(200*time.Millisecond) >= 0 {
		t.Error("the step is asked to suspend before it has answered the resume")
	}
	unanswered := func(fd int) {
		t.Helper()
		unix.Close(fd)
		if err := <-answers; err == nil {
			t.Error("a request that stepd has not answered is met")
		}
	}
	unanswered(resume)
	unanswered(asked(testTimeout))
	if jobs := tn.doc().Jobs; len(jobs) != 1 || jobs[0].CPUsFree {
		t.Errorf("the CPUs of a job that does not stand still are free: %+v", jobs)
	}
	if err := tn.reg.follower(id).n.killStepd(tn.reg.follower(id).proc); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
}

// TestRestartSuspends: a noded that ended before it had suspended a new step of a job whose CPUs are
// free leaves that to the next one.
func TestRestartSuspends(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	id := tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	if err := tn.store.SetSuspended(id.Job, &state.Suspension{Since: time.Now(), By: 1000, CPUsFree: true}); err != nil {
		t.Fatal(err)
	}
	tn.stop()
	tn = start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	if by := tn.suspended(id); by == nil || *by != 1000 {
		t.Errorf("the step runs on CPUs that other jobs may have: by %v", by)
	}
}

// TestResumeOfNothing: the resume of a step that has ended, or that root has suspended, leaves the
// CPUs of its job free.
func TestResumeOfNothing(t *testing.T) {
	tn := fresh(t)
	job, err := tn.alloc(newClient(t, 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	ended, roots := tn.stepOf(job, 1000, "exit", "0"), tn.stepOf(job, 1000, "wait")
	tn.wait(ended)
	tn.until(roots, step.Running)
	if _, err := tn.svc.ask(as(0), "suspend", &api.RefRequest{StepRef: ref(roots)}); err != nil {
		t.Fatal(err)
	}
	tn.eventually("the record", func() bool { return tn.reg.follower(roots).record().Suspended != nil })
	if _, err := tn.svc.ask(as(1000), "suspend", &api.RefRequest{StepRef: api.StepRef{JobID: job}}); err != nil {
		t.Fatal(err)
	}
	resume := func(uid uint32, id step.ID) (free bool, err error) {
		_, err = tn.svc.ask(as(uid), "unsuspend", &api.RefRequest{StepRef: ref(id)})
		return tn.doc().Jobs[0].CPUsFree, err
	}
	if free, err := resume(1000, ended); !free || err == nil {
		t.Errorf("a step that has ended: CPUs free: %v, %v", free, err)
	}
	if free, err := resume(1000, roots); !free || err == nil {
		t.Errorf("a step that root has suspended: CPUs free: %v, %v", free, err)
	}
	if free, err := resume(0, roots); free || err != nil {
		t.Errorf("a step: CPUs free: %v, %v", free, err)
	}
}

// TestSuspendOfEnding: the CPUs of a job are not free before its epilog.
func TestSuspendOfEnding(t *testing.T) {
	s := newScripted(t, "", "", nil)
	s.askMax = 30 * time.Millisecond // its stepd answers no more
	rec := s.until(s.run(1000, request("linger")), step.Completed)
	s.letGo(s.reg.job(rec.ID.Job))
	if _, err := s.svc.ask(as(1000), "suspend", &api.RefRequest{StepRef: api.StepRef{JobID: rec.ID.Job}}); err != nil {
		t.Fatal(err)
	}
	if jobs := s.doc().Jobs; len(jobs) != 1 || jobs[0].CPUsFree || jobs[0].State != "COMPLETING" {
		t.Errorf("the jobs are %+v", jobs)
	}
	if err := syscall.Kill(rec.StepdPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.idle()
}
