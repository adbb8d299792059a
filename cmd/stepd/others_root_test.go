package main_test

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"stepd/api/stepapi"
	"stepd/step"
	"stepd/stepnet"
)

// others are node 0 of a step and its launcher, played by the test.
type others struct {
	node     *stepnet.Node
	launcher *stepnet.Launcher
	ended    chan step.NodeEnd // size 16: what node 1 has told

	mu      sync.Mutex
	said    []string          // guarded by mu
	exits   map[int]string    // guarded by mu: by rank
	written map[[2]int]string // guarded by mu: by stream and rank
}

// startNode starts the stepd of node 1 of 2.
func startNode(t *testing.T, spec *step.Spec) (*daemon, *others) {
	t.Helper()
	o := &others{ended: make(chan step.NodeEnd, 16), exits: make(map[int]string), written: make(map[[2]int]string)}
	var keys [][]byte
	listeners := make([]*net.TCPListener, 2)
	for i := range listeners {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = ln.(*net.TCPListener)
		key, hash, err := stepnet.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
		spec.Layout.Nodes[i].Key, spec.Layout.Nodes[i].Addr = hash, ln.Addr().String()
	}
	spec.NetKey = keys[1]
	launcherKey, hash, err := stepnet.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	spec.Layout.Launcher = hash
	peers, err := listeners[1].File()
	if err != nil {
		t.Fatal(err)
	}
	defer peers.Close()
	listeners[1].Close()
	var all []int
	if spec.Stdin.Kind == step.StreamClient {
		all = []int{0, 1}
	}
	o.node, err = stepnet.New(stepnet.Config{ID: spec.ID, Layout: spec.Layout, Key: keys[0], Listener: listeners[0], Handler: o, InputNodes: all})
	if err != nil {
		t.Fatal(err)
	}
	o.node.Input(nil)
	d := startAs(t, "stepd-net", spec, peers)
	o.launcher, err = stepnet.Dial(t.Context(), stepnet.LauncherConfig{ID: spec.ID, Layout: spec.Layout, Key: launcherKey, Sink: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if o.launcher != nil {
			o.launcher.Close()
		}
		o.node.Close()
	})
	return d, o
}

// result waits for the end of node 1's part, and of the step.
func (o *others) result(t *testing.T, d *daemon) (*step.Record, []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := o.node.Finish(ctx); err != nil {
		t.Error(err)
	}
	if o.launcher != nil {
		if err := o.launcher.Wait(); err != nil {
			t.Error(err)
		}
	}
	go o.node.Close()
	for {
		m, _, err := d.control.Recv()
		if err != nil {
			t.Fatalf("stepd ended without a result: %v", err)
		}
		if m.Type == stepapi.TypeResult {
			d.control.Send(&stepapi.Msg{Type: stepapi.TypeAck})
			o.mu.Lock()
			defer o.mu.Unlock()
			return m.Record, slices.Clone(o.said)
		}
	}
}

func (o *others) LauncherReady()              {}
func (o *others) LauncherLost()               {}
func (o *others) NodeLost(*stepnet.LostError) {}
func (o *others) Ordered([]byte)              {}
func (o *others) Told(_ int, words []byte) {
	var e step.NodeEnd
	if json.Unmarshal(words, &e) == nil {
		o.ended <- e
	}
}

func (o *others) Output(fd, rank int, data []byte, _ bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written[[2]int{fd, rank}] += string(data)
}

func (o *others) Record(_ int, words []byte) {
	m := new(stepapi.Msg)
	if json.Unmarshal(words, m) != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch m.Type {
	case stepapi.TypeMessage:
		o.said = append(o.said, m.Text)
	case stepapi.TypeTaskExit:
		for _, r := range m.Ranks {
			o.exits[r] = m.Status.Describe()
		}
	}
}
