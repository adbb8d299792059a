// Package nodes joins a stepd to the others of its step (docs/adr/0009): it turns
// what package stepnet carries into what the step's story knows, and back, and
// makes the pipes through which the tasks' streams go to the launcher.
package nodes

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"stepd/api/stepapi"
	"stepd/daemon"
	"stepd/step"
	"stepd/stepio"
	"stepd/stepnet"
	"stepd/task"
)

// Tree is the other nodes of one step. Make it with Join.
type Tree struct {
	*stepnet.Node // there from Begin on
	spec          *step.Spec
	log           func(text string)
	outs          []taskOutput // from Begin on
	terminal      *os.File     // of rank 0 where that is here: the launcher's end, for hangUp

	mu      sync.Mutex
	tap     func(fd, rank int, data []byte) // guarded by mu
	dropped int                             // guarded by mu: lines that the launcher has not got

	beginMu sync.Mutex
	begun   bool          // guarded by beginMu: Node may be used by others
	early   *step.NodeEnd // guarded by beginMu: told before Begin, by a cancel
}

var _ daemon.Network = (*Tree)(nil)

// Join makes the tree of a step that has a layout. Nothing is sent before Begin.
func Join(spec *step.Spec, log func(text string)) (daemon.Network, error) {
	if err := spec.Layout.Check(spec.NodeID, spec.NTasks); err != nil {
		return nil, err
	}
	return &Tree{spec: spec, log: log}, nil
}

// Begin joins the other nodes, and hands the tasks their streams.
func (t *Tree) Begin(st *task.Step, view daemon.View) error {
	f := os.NewFile(stepapi.FDPeers, "peers")
	ln, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("cannot listen for the step's other nodes on descriptor %d: %w", stepapi.FDPeers, err)
	}
	ears := &ears{t: t, st: st, joined: make(chan struct{})}
	n, err := stepnet.New(stepnet.Config{
		ID: t.spec.ID, Self: int(t.spec.NodeID), Layout: t.spec.Layout, Key: t.spec.NetKey,
		Listener: ln, InputNodes: t.inputNodes(), Handler: ears, Log: t.log,
		Watch: func(conn net.Conn) { watch(conn, view) },
	})
	if err != nil {
		ln.Close()
		return err
	}
	t.spec.NetKey = nil // nobody else needs it
	t.mu.Lock()
	t.Node = n
	n.SetTap(t.tap)
	t.mu.Unlock()
	close(ears.joined)
	t.tellEarly()
	if err := t.attach(st, view.Terminal); err != nil {
		return fmt.Errorf("cannot make the tasks' streams: %w", err)
	}
	return nil
}

// SetTap is that of daemon.Network.
func (t *Tree) SetTap(tap func(fd, rank int, data []byte)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tap = tap
	if t.Node != nil {
		t.Node.SetTap(tap)
	}
}

// inputNodes are the nodes whose tasks read the launcher's input.
func (t *Tree) inputNodes() []int {
	in := t.spec.Stdin
	if t.spec.Terminal != nil {
		return []int{t.spec.RankNodes()[0]}
	}
	if in.Kind != step.StreamClient {
		return nil
	}
	if in.Rank != nil {
		return []int{t.spec.RankNodes()[*in.Rank]}
	}
	all := make([]int, len(t.spec.Layout.Nodes))
	for i := range all {
		all[i] = i
	}
	return all
}

// attach makes a pipe for each stream of each task here that is the launcher's.
func (t *Tree) attach(st *task.Step, terminal func() (fd int, err error)) (err error) {
	ranks := t.spec.LocalRanks()
	var input []*os.File
	defer func() { t.Input(input) }()
	if t.spec.Terminal != nil && slices.Contains(ranks, 0) {
		input, err = t.attachTerminal(terminal)
		return err
	}
	for fd, s := range [3]step.Stream{t.spec.Stdin, t.spec.Stdout, t.spec.Stderr} {
		if s.Kind != step.StreamClient {
			continue
		}
		of := ranks
		if s.Rank != nil {
			of = nil
			if slices.Contains(ranks, *s.Rank) {
				of = []int{*s.Rank}
			}
		}
		for _, rank := range of {
			ours, theirs, err := stepio.Pipe(int(t.spec.User.UID), fd == 0)
			if err != nil {
				return err
			}
			if fd == 0 {
				input = append(input, ours)
			} else {
				t.outs = append(t.outs, taskOutput{fd, rank, ours})
				t.Output(fd, rank, ours)
			}
			handle, err := stepio.TakeFD(theirs)
			if err == nil {
				err = st.Attach(fd, rank, handle)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// EndStep tells all other nodes that the step ends. A cancel may come before Begin.
func (t *Tree) EndStep(e step.NodeEnd) {
	t.beginMu.Lock()
	begun := t.begun
	if !begun {
		t.early = &e
	}
	t.beginMu.Unlock()
	if begun {
		t.tellEnd(e)
	}
}

// tellEarly tells what EndStep was given before there was anybody to tell.
func (t *Tree) tellEarly() {
	t.beginMu.Lock()
	t.begun = true
	early := t.early
	t.beginMu.Unlock()
	if early != nil {
		t.tellEnd(*early)
	}
}

func (t *Tree) hasBegun() bool {
	t.beginMu.Lock()
	defer t.beginMu.Unlock()
	return t.begun
}

func (t *Tree) tellEnd(e step.NodeEnd) {
	b, err := json.Marshal(e)
	if err == nil {
		err = t.Node.Tell(b)
	}
	if err != nil {
		t.log(fmt.Sprintf("cannot tell the other nodes that the step ends: %v", err))
	}
	t.Hurry()
}

const (
	// ranksMax are told at once: a word to the launcher has at most 64 KiB.
	ranksMax = 4096
	// lineMax bounds a line for the user.
	lineMax = 16 << 10
)

// Tell sends a record to the launcher.
func (t *Tree) Tell(m *stepapi.Msg) {
	switch {
	case !t.hasBegun():
		// What is told before is noded's to hear: nothing has been done yet.
	case m.Type == stepapi.TypeMessage:
		t.line(m)
	case len(m.Ranks) > ranksMax:
		for ranks := range slices.Chunk(m.Ranks, ranksMax) {
			part := *m
			part.Ranks = ranks
			t.Tell(&part)
		}
	default:
		if err := t.TellLauncher(encode(m)); err != nil {
			t.log(err.Error())
		}
	}
}

func encode(m *stepapi.Msg) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		return nil // a Msg holds nothing that cannot be encoded
	}
	return b
}

// line sends a line for the user's stderr, and says where some are missing.
func (t *Tree) line(m *stepapi.Msg) {
	if len(m.Text) > lineMax {
		cut := *m
		cut.Text = m.Text[:lineMax] + "..."
		m = &cut
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped > 0 {
		text := fmt.Sprintf("stepd-%s: error: %d lines were dropped here: they came faster than they were read", t.spec.NodeName, t.dropped)
		if !t.TellLine(encode(&stepapi.Msg{Type: stepapi.TypeMessage, Text: text})) {
			t.dropped++
			return
		}
		t.dropped = 0
	}
	if !t.TellLine(encode(m)) {
		t.dropped++
	}
}
