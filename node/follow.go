package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/node/child"
	"stepd/node/selection"
	"stepd/step"
)

// follower is noded's side of one step: who owns its state changes from the
// reservation (Launch or its end) to the launch, and from the start of stepd (or
// its adoption) to the loop, until nothing of the step is left.
type follower struct {
	n   *Node
	id  step.ID
	job *job
	log *logrus.Entry

	// proc and conn are the loop's. conn is nil where stepd could not be
	// reached: then its end is all that is awaited.
	proc *child.Process
	conn *stepapi.Conn
	// settled: the final record is made and, where possible, stored. known: the store
	// has the stepd already.
	settled, known bool
	// launched: this noded has started it. foreign is then that it is not of this release,
	// "" where it is.
	launched bool
	foreign  string

	mu    sync.Mutex
	rec   step.Record // guarded by mu; only the owner changes it
	stage stage       // guarded by mu
	// cancelled is why the step was cancelled before it had a stepd, "" if not.
	cancelled string // guarded by mu
	// begun: stepd can be told things. orphaned: the process that has launched the step
	// has ended while it started.
	begun, orphaned bool // guarded by mu
	// suspendBy is the user who has suspended the step before it had a stepd, nil if none.
	suspendBy *uint32 // guarded by mu
	// claimed is closed when a reservation is launched or given back.
	claimed chan struct{}
	res     *reservation    // the owner's, until the launch; nil after it
	by      uint32          // who asked for the step
	share   selection.Share // what it has of its job
	parent  *step.ID        // the step that has spawned it, nil without one
	replay  int64           // what it may keep of its output, of its user's
	asks    atomic.Int32    // what stepd has asked and not been answered yet
	sending sync.Mutex      // one goroutine at a time sends on conn

	// met is closed when a stepd that was found again has said how the step is, or
	// will not.
	met  chan struct{}
	meet func() // closes met

	// moved is closed when the step has left STARTING, or has ended.
	moved    chan struct{}
	movedOff func() // closes moved

	// ended is closed when the record is final and nothing is left of the step.
	ended chan struct{}
}

// stage is how far a step has come on its way to a stepd.
type stage int

const (
	reserved  stage = iota // it waits for Launch
	launching              // its launch is under way
	followed               // it has, or had, a stepd
)

const (
	// ackDeadline bounds a send to a stepd that does not read.
	ackDeadline = time.Second
	// leaveMax is what a stepd may take to exit after its result was taken.
	leaveMax = 10 * time.Second
	// lastWords is how long records are awaited of a stepd that has ended: they
	// are in the socket already, unless another process holds its other end.
	lastWords = time.Second
	// stopListen is how long noded listens on when it stops: what a stepd has
	// told its client already is on its way to us too.
	stopListen = 50 * time.Millisecond
	// stopLinger is how long a step that is ending may delay noded's stop, so
	// that nothing of it is left.
	stopLinger = 2 * time.Second
)

func newFollower(n *Node, j *job, rec step.Record) *follower {
	met, moved := make(chan struct{}), make(chan struct{})
	return &follower{
		moved: moved, movedOff: sync.OnceFunc(func() { close(moved) }),
		met: met, meet: sync.OnceFunc(func() { close(met) }), parent: rec.Parent,
		n: n, id: rec.ID, job: j, rec: rec, ended: make(chan struct{}), claimed: make(chan struct{}),
		log: n.log.WithField("step", rec.ID.String()),
	}
}

// begin starts the loop for a stepd that runs now.
func (f *follower) begin(p *child.Process, c *stepapi.Conn) {
	f.proc, f.conn = p, c
	f.mu.Lock()
	found := f.stage == followed // and was never reserved here
	f.stage = followed
	suspendBy, orphaned := f.suspendBy, f.orphaned
	f.begun = true
	f.mu.Unlock()
	if job := f.n.reg.suspended(f.job); job != nil && suspendBy == nil && !found {
		suspendBy = &job.By // it was numbered while its job was suspended
	}
	f.update(func(rec *step.Record) {
		f.known = rec.StepdPID == p.PID && rec.StepdStart == p.Start && rec.BootID == f.n.boot
		rec.StepdPID, rec.StepdStart, rec.BootID = p.PID, p.Start, f.n.boot
	})
	if f.job.Leads(f.id) { // it takes further steps now
		f.n.reg.open(f.job)
	}
	f.n.work.Go(f.follow)
	if orphaned {
		f.n.work.Go(func() { f.send(&stepapi.Msg{Type: stepapi.TypeLauncherLost}) })
	}
	if suspendBy != nil {
		f.n.work.Go(func() { f.suspendLate(*suspendBy) })
	}
}

// hasStepd reports whether there is, or was, a stepd to ask.
func (f *follower) hasStepd() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stage == followed
}

// record returns a copy that the caller may keep.
func (f *follower) record() *step.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.rec
	rec.Tasks = append([]step.Task(nil), f.rec.Tasks...)
	return &rec
}

func (f *follower) update(change func(*step.Record)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.rec)
}

// follow is the loop. It ends when the step is cleaned up, or with noded.
func (f *follower) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	var helpers sync.WaitGroup
	defer helpers.Wait() // after the cancel and the closes below
	defer cancel()
	left := true // stepd has, or goes on without this noded
	defer func() {
		if left {
			f.proc.Close()
		}
	}()
	defer f.meet()

	if !f.known {
		f.storePID()
	}
	msgs := make(chan *stepapi.Msg)
	if f.conn == nil {
		close(msgs)
		f.meet()
	} else {
		defer f.conn.Close()
		helpers.Go(func() { f.receive(ctx, msgs) })
		f.greet()
	}
	exited := make(chan error, 1) // size 1: the waiter never waits for us
	helpers.Go(func() { exited <- f.proc.Wait(ctx) })
	left = f.hearOut(msgs, exited)
}

// hearOut handles what stepd says until it has exited, or noded stops. It returns false
// where stepd does not end: then another one has it.
func (f *follower) hearOut(msgs <-chan *stepapi.Msg, exited <-chan error) (left bool) {
	var leave, stuck, listened, lingered <-chan time.Time
	stopping := f.n.stopping
	in := msgs
	for {
		select {
		case m, ok := <-in:
			if !ok {
				in = nil // stepd closes its end before it exits
				continue
			}
			if f.handle(m) {
				leave = time.After(f.n.leaveMax)
			}
		case <-leave:
			f.log.Warnf("stepd (pid %d) did not exit within %v of its result: killing it", f.proc.PID, f.n.leaveMax)
			if err := f.n.killStepd(f.proc); err != nil {
				f.log.Errorf("cannot kill stepd: %v", err)
			}
			stuck = time.After(f.n.leaveMax)
		case <-stuck:
			f.goOnWithout()
			return false
		case err := <-exited:
			if err != nil {
				f.log.Errorf("cannot wait for stepd (pid %d): %v", f.proc.PID, err)
				return true
			}
			f.drain(in)
			f.finish()
			return true
		case <-stopping:
			stopping = nil
			listened, lingered = time.After(stopListen), time.After(stopLinger)
		case <-listened:
			if !f.ending() {
				return true
			}
		case <-lingered:
			return true
		}
	}
}

// storePID makes the step findable after a restart. A noded that dies before
// finds stepd by its socket.
func (f *follower) storePID() {
	if err := f.n.store.Put(f.record()); err != nil {
		f.log.Errorf("%v", err)
	}
}

func (f *follower) greet() {
	f.send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleNoded})
}

// send tells stepd something. One that could not be reached, since it was going or is of
// another version, is told nothing.
func (f *follower) send(m *stepapi.Msg) {
	if f.conn == nil {
		return
	}
	f.sending.Lock()
	defer f.sending.Unlock()
	// A failed deadline or send means that stepd is going; its exit is told elsewhere.
	_ = f.conn.SetWriteDeadline(time.Now().Add(ackDeadline))
	if err := f.conn.Send(m); err != nil {
		f.log.Debugf("stepd takes no %q record: %v", m.Type, err)
	}
}

// receive hands records to the loop until stepd closes or ctx ends.
func (f *follower) receive(ctx context.Context, msgs chan<- *stepapi.Msg) {
	defer close(msgs)
	stop := context.AfterFunc(ctx, func() { f.conn.Close() })
	defer stop()
	for {
		m, fds, err := f.conn.Recv()
		for _, fd := range fds {
			unix.Close(fd) // stepd has none to give
		}
		if err != nil {
			f.log.Debugf("connection to stepd ended: %v", err)
			return
		}
		select {
		case msgs <- m:
		case <-ctx.Done():
			return
		}
	}
}

// drain handles what a stepd that has exited said last.
func (f *follower) drain(msgs <-chan *stepapi.Msg) {
	if msgs == nil {
		return
	}
	limit := time.NewTimer(lastWords)
	defer limit.Stop()
	for {
		select {
		case m, ok := <-msgs:
			if !ok {
				return
			}
			f.handle(m)
		case <-limit.C:
			return
		}
	}
}
