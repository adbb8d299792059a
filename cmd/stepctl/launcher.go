package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
	"stepd/stepio"
	"stepd/stepnet"
)

// followNodes is follow for a step of several nodes: streams, messages and orders
// go over the network, to node 0's stepd. The end is known to noded alone, which
// makes one record of all parts.
func (l *launch) followNodes(reply *api.RunReply, spec *step.Spec, files *clientFiles) (*step.Record, error) {
	orders := &switchable{}
	t := &nodeLaunch{l: l, spec: spec, states: make([]step.State, len(spec.Layout.Nodes)), remote: stepio.NewRemote(spec, stepio.Options{
		Stdout: files.files[1], Stderr: files.files[2], Of: files.rank, Unbuffered: l.opt.unbuffered, Label: l.opt.label,
		Failed: func(err error) { l.streamFailed(err); unread(orders, files, err) },
	})}
	if l.screen != nil {
		if err := t.openScreen(); err != nil {
			l.giveUp(err.Error())
			return nil, err
		}
		defer t.closeScreen()
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	dialling := &beforeNodes{l: l, giveUp: cancel}
	orders.set(dialling)
	stop := l.catchSignals(orders)
	defer stop()
	watching, unwatch := context.WithCancel(ctx)
	go l.watchEnd(watching, cancel)
	a, err := stepnet.Dial(ctx, stepnet.LauncherConfig{ID: spec.ID, Layout: spec.Layout, Key: reply.LauncherKey, Sink: t})
	unwatch()
	if err != nil {
		if !dialling.cancelled() && !errors.Is(err, errEnded) {
			// Nobody would take what the tasks write.
			say("error: %s", err)
			dialling.Send(&stepapi.Msg{Type: stepapi.TypeCancel, Reason: "its launcher cannot reach it"})
		}
		return l.wait()
	}
	defer a.Close()
	orders.set(nodeOrders{a})
	if l.screen != nil {
		t.showScreen(a)
	}
	if spec.Stdin.Kind == step.StreamClient {
		// Not waited for: it may be blocked in a read of the terminal when the
		// step ends.
		go t.sendInput(a, files.files[0])
	}
	err = a.Wait()
	if l.screen != nil {
		t.closeScreen()
	}
	if left := l.endScreen(err == nil); left {
		return nil, nil
	}
	if err != nil {
		say("error: %s", err)
		if spec.NoKill {
			// What the tasks write goes nowhere from now on, but they run.
			orders.set(nodedOrders{l})
		}
	}
	t.remote.End()
	return l.wait()
}

// unread tells the nodes that the client's file for a stream takes no more: tasks that
// write on get SIGPIPE, as from any pipe that nobody reads. What goes to a file for each
// rank is dropped here instead, since another rank's file may well take more.
func unread(to orderer, files *clientFiles, err error) {
	if e, ok := errors.AsType[*stepio.StreamError](err); ok && e.FD > 0 && files.ranks[e.FD] == nil {
		// A step that is gone needs no order.
		_ = to.Send(&stepapi.Msg{Type: stepapi.TypeUnread, FD: e.FD})
	}
}

// errEnded says that the step has ended before it could be reached.
var errEnded = errors.New("the step has ended")

// watchEnd gives up a step that ends before its stepds can be reached, as when the
// prolog of a node fails.
func (l *launch) watchEnd(ctx context.Context, giveUp context.CancelCauseFunc) {
	_, err := l.client.Wait(ctx, &api.StepRef{JobId: l.id.Job, StepId: &l.id.Step})
	if err == nil {
		giveUp(errEnded)
	}
}

// nodeLaunch takes what the nodes tell.
type nodeLaunch struct {
	l      *launch
	spec   *step.Spec
	remote *stepio.Remote
	// terminal is this end of the connection to screen, which has the other; nil without.
	terminal, screen *os.File

	// By one goroutine: that of Record.
	states  []step.State // of the nodes, as far as they were told
	refused uint32       // the order that some node has refused
}

func (t *nodeLaunch) Output(fd, rank int, data []byte, end bool) {
	if t.terminal != nil {
		t.toScreen(data)
		return
	}
	t.remote.Output(fd, rank, data, end)
}

// Record takes the words of one node.
func (t *nodeLaunch) Record(node int, words []byte) {
	m := new(stepapi.Msg)
	if node < 0 || node >= len(t.states) || json.Unmarshal(words, m) != nil {
		return
	}
	name := t.spec.Layout.Nodes[node].Name
	switch m.Type {
	case stepapi.TypeMessage:
		sayLine(shown(m.Text))
	case stepapi.TypeTaskExit:
		if m.Status != nil {
			t.l.taskExit(name, m.Ranks, *m.Status)
		}
	case stepapi.TypeReply:
		// All nodes answer, most of them the same: one answer is enough.
		if m.Error != "" && m.Seq != t.refused {
			t.refused = m.Seq
			say("error: %s: %s", name, m.Error)
		}
	case stepapi.TypeState:
		t.states[node] = m.State
		t.tellState()
	}
}

// tellState: the step runs when it does on all nodes.
func (t *nodeLaunch) tellState() {
	for _, s := range t.states {
		if s == "" || s == step.Pending || s == step.Starting {
			return
		}
	}
	waiting.clear() // what the tasks write comes now
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	t.l.state = step.Running
}

// sendInput sends the client's standard input, or a file, until its end, or until no task
// reads it.
func (t *nodeLaunch) sendInput(a *stepnet.Launcher, from *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && a.Input(append([]byte(nil), buf[:n]...)) != nil {
			return
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				say("error: cannot read standard input: %s", err)
			}
			a.Input(nil)
			return
		}
	}
}

// orderer takes what the client's user orders: signals, and cancels.
type orderer interface {
	Send(m *stepapi.Msg, fds ...int) error
}

// nodeOrders sends orders to all nodes.
type nodeOrders struct{ a *stepnet.Launcher }

func (o nodeOrders) Send(m *stepapi.Msg, _ ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot encode %q record: %w", m.Type, err)
	}
	return o.a.Order(b)
}

// nodedOrders gives orders to noded, where no stepd can be reached.
type nodedOrders struct{ l *launch }

func (o nodedOrders) Send(m *stepapi.Msg, _ ...int) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	ref := &api.StepRef{JobId: o.l.id.Job, StepId: &o.l.id.Step}
	switch m.Type {
	case stepapi.TypeSignal:
		_, err = o.l.client.Signal(ctx, &api.SignalRequest{Step: ref, Signal: int32(m.Signal), Scope: m.Scope})
	case stepapi.TypeCancel:
		_, err = o.l.client.Cancel(ctx, &api.CancelRequest{Step: ref, Reason: m.Reason})
	}
	if err != nil {
		say("error: cannot %s step %s: %s", m.Type, o.l.id, plain(err))
	}
	return err
}

// beforeNodes takes orders while node 0's stepd is not reached yet: noded does what
// it is asked.
type beforeNodes struct {
	l      *launch
	giveUp context.CancelCauseFunc

	mu   sync.Mutex
	over bool // guarded by mu: it was cancelled
}

func (b *beforeNodes) Send(m *stepapi.Msg, _ ...int) error {
	if m.Type != stepapi.TypeCancel {
		say("error: the step has not started yet: the signal is not sent")
		return nil
	}
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	err := nodedOrders{b.l}.Send(m)
	b.giveUp(errors.New(m.Reason))
	return err
}

func (b *beforeNodes) cancelled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}

// switchable is an orderer that becomes another.
type switchable struct {
	mu sync.Mutex
	to orderer // guarded by mu
}

func (s *switchable) set(to orderer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = to
}

func (s *switchable) Send(m *stepapi.Msg, fds ...int) error {
	s.mu.Lock()
	to := s.to
	s.mu.Unlock()
	return to.Send(m, fds...)
}
