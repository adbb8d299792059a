package node

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/node/selection"
	"stepd/step"
)

func TestPerUserConnections(t *testing.T) {
	c := newClients(PerUser{Connections: 2})
	for i := range c.most + toldMax {
		refusal, err := c.enter(1000)
		if err != nil || (refusal != "") != (i >= c.most) {
			t.Errorf("connection %d: %q, %v", i, refusal, err)
		}
	}
	if _, err := c.enter(1000); err == nil || !strings.Contains(err.Error(), "uid 1000 has 2 connections to noded, the limit (UserConnectionsMax)") {
		t.Errorf("one more: %v", err)
	}
	for range 100 {
		if refusal, err := c.enter(0); refusal != "" || err != nil {
			t.Fatalf("root: %q, %v", refusal, err)
		}
	}
	if refusal, err := c.enter(1001); refusal != "" || err != nil {
		t.Errorf("another user: %q, %v", refusal, err)
	}
	for range c.most + toldMax {
		c.leave(1000)
	}
	if refusal, err := c.enter(1000); refusal != "" || err != nil {
		t.Errorf("after the others have gone: %q, %v", refusal, err)
	}
	if n := c.count(); n != 102 {
		t.Errorf("%d connections are counted", n)
	}
}

// serveAs serves the node to clients who are all who uid says when they connect.
func serveAs(t *testing.T, tn *testNode, uid func() uint32, change func(*Server)) *api.Client {
	t.Helper()
	l, err := tn.Listen()
	if err != nil {
		t.Fatal(err)
	}
	server := tn.Server()
	server.peerOf = func(c *net.UnixConn) (api.Peer, error) {
		p, err := api.PeerOf(c)
		p.UID = uid()
		return p, err
	}
	if change != nil {
		change(server)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		server.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &api.Client{Socket: filepath.Join(tn.cfg.RunDir, hiddenSocket)}
}

// always is a uid function.
func always(uid uint32) func() uint32 { return func() uint32 { return uid } }

func TestManyClients(t *testing.T) {
	tn := start(t, t.TempDir(), func(c *Config) { c.PerUser.Connections = 3 })
	defer func() { tn.stop() }()
	client := serveAs(t, tn, always(1000), nil)
	var conns []net.Conn
	for range 3 {
		conns = append(conns, dial(t, client))
	}
	tn.connections(3)
	if _, err := client.Config(t.Context()); api.CodeOf(err) != api.ResourceExhausted || !strings.Contains(err.Error(), "UserConnectionsMax") {
		t.Errorf("one more: %v", err)
	}
	for _, c := range conns {
		c.Close()
	}
	tn.connections(0)
	if _, err := client.Config(t.Context()); err != nil {
		t.Errorf("after the others have gone: %v", err)
	}
	tn.connections(0) // else one of the next is turned away in its place
	// Beyond those that are told so they are closed.
	conns = nil
	for range 3 + toldMax {
		conns = append(conns, dial(t, client))
	}
	tn.connections(3 + toldMax)
	if _, err := client.Config(t.Context()); api.CodeOf(err) != api.Unavailable {
		t.Errorf("far beyond: %v", err)
	}
	for _, c := range conns {
		c.Close()
	}
	tn.connections(0)
}

// dial connects and says nothing.
func dial(t *testing.T, client *api.Client) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	return c
}

// connections waits until so many are counted.
func (tn *testNode) connections(want int) {
	tn.t.Helper()
	for deadline := time.Now().Add(testTimeout); tn.clients.count() != want; {
		if time.Now().After(deadline) {
			tn.t.Fatalf("%d connections are counted, want %d", tn.clients.count(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestPerUserReplay(t *testing.T) {
	r := newRegistry([]int{0}, selection.Memory{}, nil)
	r.users.limits.ReplayBytes = 250
	for _, want := range []int64{100, 100, 50, 0} {
		if got := r.users.keepReplay(1000, 100); got != want {
			t.Errorf("kept %d, want %d", got, want)
		}
	}
	if got := r.users.keepReplay(0, 1000); got != 1000 {
		t.Errorf("root: %d", got)
	}
	r.users.dropReplay(1000, 100)
	if got := r.users.keepReplay(1000, 100); got != 100 {
		t.Errorf("after a step has ended: %d", got)
	}
	tn := start(t, t.TempDir(), func(c *Config) { c.ReplayBytes, c.PerUser.ReplayBytes = 100, 150 })
	defer func() { tn.stop() }()
	first, second := tn.run(1000, request("wait")), tn.run(1000, request("wait"))
	if a, b := tn.reg.follower(first).replay, tn.reg.follower(second).replay; a != 100 || b != 50 {
		t.Errorf("two steps keep %d and %d", a, b)
	}
	for _, id := range []step.ID{first, second} {
		if err := tn.cancel(id); err != nil {
			t.Error(err)
		}
		tn.wait(id)
	}
	for deadline := time.Now().Add(testTimeout); len(tn.reg.followers()) > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if tn.reg.users.mu.Lock(); len(tn.reg.users.replay) > 0 {
		t.Errorf("bytes are still counted: %v", tn.reg.users.replay)
	}
	tn.reg.users.mu.Unlock()
}

// TestRefusalsAreBounded: a user's refused requests do not fill the log.
func TestRefusalsAreBounded(t *testing.T) {
	var r refusals
	now := time.Unix(1000, 0)
	told := 0
	for range 1000 {
		if ok, _ := r.tell(1000, now); ok {
			told++
		}
	}
	if told != refusalBurst {
		t.Errorf("%d lines at once", told)
	}
	if ok, _ := r.tell(1001, now); !ok {
		t.Error("another user is silenced")
	}
	if ok, silent := r.tell(1000, now.Add(refusalEvery)); !ok || silent != 1000-refusalBurst {
		t.Errorf("a second later: %v, %d silent", ok, silent)
	}
	for uid := range uint32(100) {
		r.tell(5000+uid, now.Add(time.Hour))
	}
	r.tell(6000, now.Add(2*time.Hour))
	if len(r.byUser) > 3 {
		t.Errorf("%d users are remembered", len(r.byUser))
	}
}

// TestShellReplayOverRestart: what the interactive step of an allocation may keep of its
// output counts as before the restart.
func TestShellReplayOverRestart(t *testing.T) {
	limits := func(c *Config) { c.ReplayBytes, c.PerUser.ReplayBytes = 100, 150 }
	tn := start(t, t.TempDir(), limits)
	defer func() { tn.stop() }()
	job, err := tn.alloc(newClient(t, 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	shell := request("wait")
	shell.Job, shell.Interactive = &job, true
	id := tn.run(1000, shell)
	tn.until(id, step.Running)
	tn.stop()
	tn = start(t, tn.dir, limits)
	if got := tn.reg.follower(tn.run(1000, request("wait"))).replay; got != 50 {
		t.Errorf("beside a shell, which keeps 100 of 150 bytes, another step keeps %d", got)
	}
	if err := tn.cancel(id); err != nil {
		t.Error(err)
	}
	tn.wait(id)
}
