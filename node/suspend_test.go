package node

import (
	"context"
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

// TestAddToSuspended: only a step that is new to its job takes over that the job is suspended: a
// step that was found again may have been resumed by itself.
func TestAddToSuspended(t *testing.T) {
	for phase, want := range map[stepPhase]bool{stepReserved: true, stepStarting: false} {
		r := testRegistry([]int{0}, selection.Memory{}, nil)
		j := r.adopt(state.Job{ID: 1, UID: 1000, Suspended: &state.Suspension{By: 7}}, selection.Saved{Share: selection.Share{CPUs: []int{0}}}, 1)
		f := &follower{id: step.ID{Job: 1}, job: j, phase: phase}
		r.add(f)
		if got := f.suspendBy != nil && *f.suspendBy == 7; got != want {
			t.Errorf("a step that is %s is suspended with its job: %v, want %v", phase, got, want)
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
