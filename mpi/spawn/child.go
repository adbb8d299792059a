package spawn

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/step"
	"stepd/step/launch"
)

// sendTimeout bounds a send to a stepd that does not read.
const sendTimeout = 10 * time.Second

// askGrace is how much longer than who has asked for it an answer of noded's is
// waited for: a noded that is gone must not hold up this step's end. A step that is
// made all the same ends by itself, since no client attaches to it.
const askGrace = 5 * time.Second

// child is one spawned step, of which this stepd is the launcher.
type child struct {
	s    *Services
	rank int // who has spawned it
	id   step.ID
	conn *stepapi.Conn

	// launched gets one value when the tasks run, or will not.
	launched chan error
	told     bool           // launched has its value; of the receivers of the step's reports, as is:
	failed   map[int]string // the tasks that could not be started
	cause    string         // of the last one of them
	done     chan struct{}

	mu      sync.Mutex
	started bool   // guarded by mu: there is a conn
	ending  string // guarded by mu: why it is to end, "" if not
	given   bool   // guarded by mu: its end concerns no caller here
	seq     uint32 // guarded by mu
}

// start asks noded for the step and hands its stepd the streams.
func (c *child) start(ctx context.Context, req *step.Request, r launch.SpawnRequest) error {
	doc, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("cannot encode the request of a spawned step: %w", err)
	}
	// Not under ctx: once noded was asked there may be a step to be ended.
	asking, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(askGrace, func() { giveUp(context.Cause(ctx)) })
	})()
	a, err := c.s.ask(asking, &stepapi.Ask{Do: stepapi.AskSpawn, Request: doc, Preput: r.Preput})
	if err != nil {
		return err
	}
	if a.ID == nil {
		return fmt.Errorf("internal error: noded names no step that it has spawned")
	}
	c.id = *a.ID
	conn, err := stepapi.DialDir(a.SocketDir, a.SocketName)
	if err != nil {
		return fmt.Errorf("cannot reach the stepd of step %s: %w", c.id, err)
	}
	if err := c.attach(conn); err != nil {
		conn.Close()
		return fmt.Errorf("cannot launch step %s: %w", c.id, err)
	}
	c.begun(conn)
	return nil
}

// begun notes the connection to the step. Who wanted its end meanwhile has it now.
func (c *child) begun(conn *stepapi.Conn) {
	c.mu.Lock()
	c.conn, c.started = conn, true
	ending := c.ending
	c.mu.Unlock()
	if ending != "" {
		c.sendCancel(ending)
	}
}

// attach makes this stepd the launcher. The tasks write where the rank does that
// has asked for them; what it has closed is /dev/null to them.
func (c *child) attach(conn *stepapi.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := conn.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleLaunch}); err != nil {
		return err
	}
	m := &stepapi.Msg{Type: stepapi.TypeAttach}
	var fds []int
	for fd := 1; fd <= 2; fd++ {
		own, err := c.s.Stream(c.rank, fd)
		if err != nil {
			c.s.Log(fmt.Sprintf("descriptor %d of step %s is /dev/null: %v", fd, c.id, err))
			continue
		}
		fds = append(fds, own)
		m.Streams = append(m.Streams, stepapi.StreamFD{FD: fd, Rank: launch.AllRanks})
	}
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if len(fds) > 0 {
		if err := conn.Send(m, fds...); err != nil {
			return err
		}
	}
	return conn.Send(&stepapi.Msg{Type: stepapi.TypeAttachDone})
}

// follow receives the step's messages until its end.
func (c *child) follow() {
	defer c.conn.Close()
	go c.endWithParent()
	for {
		m, fds, err := c.conn.Recv()
		for _, fd := range fds {
			unix.Close(fd) // stepd has none to give
		}
		if err != nil {
			c.ended(nil)
			return
		}
		switch m.Type {
		case stepapi.TypeMessage:
			c.s.Say(m.Text)
		case stepapi.TypeTaskExit:
			if m.Status != nil && *m.Status != 0 {
				c.say("task %s: %s", step.FormatCPUList(m.Ranks), m.Status.Describe())
			}
		case stepapi.TypeHello, stepapi.TypeReply:
			if m.Error != "" {
				c.s.Log(fmt.Sprintf("stepd of step %s: %s", c.id, m.Error))
			}
			c.look(m.Record)
		case stepapi.TypeState:
			c.look(m.Record)
		case stepapi.TypeResult:
			c.ended(m.Record)
			return
		}
	}
}

// endWithParent ends the step when the one that has spawned it does. It returns when
// the step is over, at the latest.
func (c *child) endWithParent() {
	select {
	case <-c.s.Ending():
		c.giveUp("the step that has spawned it, " + c.s.Spec.ID.String() + ", has been ended")
	case <-c.done:
	}
}

func (c *child) say(format string, args ...any) {
	c.s.Say(fmt.Sprintf("stepd-%s: error: step %s: ", c.s.Spec.NodeName, c.id) + fmt.Sprintf(format, args...))
}

// look reports to the spawning rank when all of the step's tasks run, or some cannot.
func (c *child) look(rec *step.Record) {
	if rec == nil || c.told {
		return
	}
	for i := range rec.Tasks {
		if s := rec.Tasks[i].State; s == step.TaskPending || s == step.TaskStarting {
			return
		}
	}
	if len(rec.Tasks) == 0 {
		return
	}
	for i := range rec.Tasks {
		if t := &rec.Tasks[i]; t.State == step.TaskFailed {
			if c.failed == nil {
				c.failed = make(map[int]string)
			}
			c.failed[t.Rank] = fmt.Sprintf("stage %s: %v", t.Stage, unix.Errno(t.Errno))
			c.cause = c.failed[t.Rank]
		}
	}
	c.tellLaunched()
}

// tellLaunched reports the result of the start to the spawning rank, once.
func (c *child) tellLaunched() {
	c.told = true
	if len(c.failed) == 0 {
		c.launched <- nil
		return
	}
	c.giveUp("not all of its tasks could be started")
	c.launched <- &launch.SpawnError{ID: c.id, Failed: c.failed, Cause: c.cause}
}

// ended comes with the step's last record, nil where its stepd has gone without
// one. A step that was aborted takes this one with it: their ranks are connected,
// and would wait for each other.
func (c *child) ended(rec *step.Record) {
	c.look(rec)
	reason := "its stepd is gone"
	code := 1
	if rec != nil {
		reason = strings.TrimSpace(string(rec.State) + ": " + rec.Reason)
		if rec.ExitCode != nil {
			code = *rec.ExitCode
		}
	}
	if !c.told {
		c.told = true
		c.launched <- &launch.SpawnError{ID: c.id, Cause: reason}
		return
	}
	c.mu.Lock()
	given := c.given
	c.mu.Unlock()
	switch {
	case given, rec != nil && rec.State == step.Completed:
	case rec != nil && rec.State == step.Failed && !rec.Aborted && rec.PluginCrash == nil && !lostTasks(rec):
		// Its tasks' exit codes, which were reported, and are not ours.
	default:
		c.s.Abort(c.rank, max(code, 1), fmt.Sprintf("step %s, which it has spawned, has ended: %s", c.id, reason))
	}
}

// lostTasks reports whether there are tasks whose end is unknown: tasks of a node that
// was lost, or whose stepd was lost.
func lostTasks(rec *step.Record) bool {
	return slices.ContainsFunc(rec.Tasks, func(t step.Task) bool { return t.Status == nil && t.State != step.TaskFailed })
}

// cancel ends the step, which goes on reporting.
func (c *child) cancel(reason string) {
	c.mu.Lock()
	if c.ending != "" {
		c.mu.Unlock()
		return
	}
	c.ending = reason
	started := c.started
	c.mu.Unlock()
	if started {
		c.sendCancel(reason)
	}
}

// giveUp is cancel of a step whose end is no news.
func (c *child) giveUp(reason string) {
	c.mu.Lock()
	c.given = true
	c.mu.Unlock()
	c.cancel(reason)
}

func (c *child) sendCancel(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	m := &stepapi.Msg{Type: stepapi.TypeCancel, Seq: c.seq, Text: reason}
	_ = c.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := c.conn.Send(m); err != nil {
		c.s.Log(fmt.Sprintf("cannot end step %s, it is ending already: %v", c.id, err))
	}
}
