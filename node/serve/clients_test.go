package serve

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"stepd/api"
	"stepd/internal/testkit"
	"stepd/step"
)

func TestPerUserConnections(t *testing.T) {
	c := newClients(2, 0, 0)
	for i := range c.open.most + toldMax {
		refusal, err := c.enter(1000)
		if err != nil || (refusal != "") != (i >= c.open.most) {
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
	for range c.open.most + toldMax {
		c.open.drop(1000, 1)
	}
	if refusal, err := c.enter(1000); refusal != "" || err != nil {
		t.Errorf("after the others have gone: %q, %v", refusal, err)
	}
	if n := c.open.total(); n != 102 {
		t.Errorf("%d connections are counted", n)
	}
}

func TestManyClients(t *testing.T) {
	tn := start(t, func(c *Config) { c.Connections = 3 })
	client := serveAs(t, tn, testkit.Always(1000), nil)
	var conns []net.Conn
	for range 3 {
		conns = append(conns, testkit.Dial(t, client.Socket, testTimeout))
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
		conns = append(conns, testkit.Dial(t, client.Socket, testTimeout))
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

// TestRefusalsArePaced: a user whose requests are refused without end is answered more slowly, no
// other user is, and after a while that one is not any more.
func TestRefusalsArePaced(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	for i := range vainFree {
		if wait := p.next(1000, now); wait != 0 {
			t.Fatalf("refusal %d waits %v", i, wait)
		}
	}
	const many = 2000
	for i := range many { // at once: 200 a second, whatever the number of connections
		if wait, want := p.next(1000, now), time.Duration(i+1)*vainEvery; wait != want {
			t.Fatalf("refusal %d waits %v, want %v", vainFree+i, wait, want)
		}
	}
	for _, uid := range []uint32{0, 1001} {
		if wait := p.next(uid, now); wait != 0 {
			t.Errorf("a refusal of uid %d waits %v", uid, wait)
		}
	}
	p.undo(1000)
	if wait := p.next(1000, now); wait != many*vainEvery {
		t.Errorf("after one that came to something a refusal waits %v", wait)
	}
	later := now.Add((many + vainFree) * vainEvery)
	if wait := p.next(1000, later); wait != 0 {
		t.Errorf("later one waits %v", wait)
	}
	p.next(1002, later.Add(time.Second))
	if len(p.byUser) != 1 {
		t.Errorf("%d users are remembered", len(p.byUser))
	}

	tn := fresh(t)
	client := serveAs(t, tn, func() uint32 { return 1000 }, nil)
	reserve := func() {
		req := request("true")
		if _, err := client.Reserve(t.Context(), &api.RunRequest{Request: &req}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 * vainFree {
		reserve()
		if _, err := client.Launch(t.Context(), &api.LaunchRequest{StepRef: api.StepRef{JobID: 1, StepID: new(uint32)}, Change: new(step.LaunchChange)}); err != nil {
			t.Fatal(err)
		}
	}
	if wait := tn.pace.next(1000, time.Now()); wait != 0 {
		t.Errorf("after as many launches as reservations one waits %v", wait)
	}
	refused := func() {
		if _, err := client.Show(t.Context(), api.StepRef{JobID: 1}); api.CodeOf(err) != api.NotFound {
			t.Fatalf("Show of no job: %v", err)
		}
	}
	for name, do := range map[string]func(){"refusals": refused, "reservations": reserve} {
		began := time.Now()
		for range 2 * vainFree {
			do()
		}
		if took := time.Since(began); took < vainFree*vainEvery {
			t.Errorf("%d %s took %v", 2*vainFree, name, took)
		}
	}
}

// durations is a Meter that has the times of requests.
type durations chan time.Duration

func (m durations) Request(_, _ string, dur time.Duration) { m <- dur }

// TestRefusalWaitsOnce: a refused reservation waits once, not as a reservation and as a refusal; the
// wait is no part of the time in the metrics, and ends when noded stops.
func TestRefusalWaitsOnce(t *testing.T) {
	times := make(durations, 2) // size 2: the requests below
	tn := start(t, func(c *Config) { c.Meter = times })
	tn.node.full = api.NewError(api.ResourceExhausted, "full")
	client := serveAs(t, tn, func() uint32 { return 1000 }, nil)
	queue := func(wait time.Duration) time.Time {
		due := time.Now().Add(wait)
		tn.pace.mu.Lock()
		defer tn.pace.mu.Unlock()
		tn.pace.byUser = map[uint32]time.Time{1000: due}
		return due
	}
	after := func(due time.Time) time.Duration {
		tn.pace.mu.Lock()
		defer tn.pace.mu.Unlock()
		return tn.pace.byUser[1000].Sub(due)
	}
	reserve := func() error {
		req := request("true")
		_, err := client.Reserve(t.Context(), &api.RunRequest{Request: &req})
		return err
	}
	const wait = time.Second
	due := queue(wait)
	if err := reserve(); api.CodeOf(err) != api.ResourceExhausted || time.Now().Before(due) {
		t.Errorf("before its turn: %v", err)
	}
	if n := after(due); n != vainEvery {
		t.Errorf("it counts as %v, want %v", n, vainEvery)
	}
	if dur := <-times; dur >= wait {
		t.Errorf("the metrics have %v, with the wait", dur)
	}
	due = queue(time.Hour)
	failed := make(chan error, 1)
	go func() { failed <- reserve() }()
	for after(due) == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	tn.Shutdown(ctx)
	if err := <-failed; api.CodeOf(err) != api.ResourceExhausted || ctx.Err() != nil {
		t.Errorf("at noded's stop: %v", err)
	}
}

// TestNewUsers: while the name service is asked about many uids, or does not answer, other users are
// served, and uids that it would have to be asked about are, too: they count as unknown ones.
func TestNewUsers(t *testing.T) {
	var uid, asked atomic.Uint32
	answer := make(chan struct{})
	tn := start(t, func(c *Config) {
		c.Known = func(_ context.Context, uid uint32) (bool, error) {
			asked.Add(1)
			if uid >= 2000 {
				<-answer
			}
			return true, nil
		}
	})
	client := serveAs(t, tn, uid.Load, nil)
	served := func(as uint32) {
		t.Helper()
		uid.Store(as)
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		if _, err := client.Config(ctx); err != nil {
			t.Errorf("uid %d: %v", as, err)
		}
	}
	served(1000)
	var held []net.Conn
	for i := range uint32(lookupsMax) {
		uid.Store(2000 + i)
		held = append(held, testkit.Dial(t, client.Socket, testTimeout))
		for deadline := time.Now().Add(testTimeout); asked.Load() < i+2; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d uids were asked about", asked.Load())
			}
		}
	}
	served(3000)
	served(1000)
	tn.connections(0)
	tn.payers.mu.Lock()
	tn.payers.list[1000] = payer{uid: 1000} // an old answer, which is better than none
	tn.payers.mu.Unlock()
	for i, as := range []uint32{1000, 3000} {
		uid.Store(as)
		held = append(held, testkit.Dial(t, client.Socket, testTimeout))
		tn.connections(i + 1)
	}
	tn.clients.open.mu.Lock()
	own, unknown := tn.clients.open.byUser[1000], tn.clients.open.byUser[unknownUsers]
	tn.clients.open.mu.Unlock()
	if own != 1 || unknown != 1 || asked.Load() != lookupsMax+1 {
		t.Errorf("%d connections count for the user, %d as unknown, and %d uids were asked about", own, unknown, asked.Load())
	}
	close(answer)
	tn.connections(len(held))
	served(3000)
	if asked.Load() != lookupsMax+2 {
		t.Errorf("%d uids were asked about", asked.Load())
	}
	for _, c := range held {
		c.Close()
	}

	l := &clientListener{asking: make(chan struct{}, 2*lookupsFree)}
	now := time.Unix(1000, 0)
	count := func() (n int) {
		for l.mayAsk(now) {
			n++
		}
		return n
	}
	if n := count(); n != lookupsFree {
		t.Errorf("%d questions at once", n)
	}
	now = now.Add(3 * lookupEvery)
	if n := count(); n != 3 {
		t.Errorf("%d questions later", n)
	}
}

// counts is a Meter that counts requests by verb and code.
type counts struct {
	mu sync.Mutex
	by map[string]int // guarded by mu
}

func (m *counts) Request(verb, code string, _ time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.by[verb+" "+code]++
}

// TestRefusalsAreCounted: each refused request and connection is counted by a bounded number of
// names, whatever its client has written.
func TestRefusalsAreCounted(t *testing.T) {
	meter := &counts{by: make(map[string]int)}
	tn := start(t, func(c *Config) { c.Connections, c.Meter = 1, meter })
	var anonymous atomic.Bool
	client := serveAs(t, tn, testkit.Always(1000), func(s *Server) {
		peerOf := s.PeerOf
		s.PeerOf = func(c *net.UnixConn) (api.Peer, error) {
			if anonymous.Load() {
				return api.Peer{}, errors.New("no credentials")
			}
			return peerOf(c)
		}
	})
	is := func(after, what string, want int) {
		t.Helper()
		for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
			meter.mu.Lock()
			got := meter.by[what]
			meter.mu.Unlock()
			if got == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d of %q, want %d", after, got, what, want)
			}
		}
	}
	refused := func(request string) {
		t.Helper()
		c := testkit.Dial(t, client.Socket, testTimeout)
		if _, err := io.WriteString(c, request+" HTTP/1.0\r\nContent-Length: 0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil {
			t.Fatal(err)
		}
		c.Close()
		tn.connections(0)
	}
	refused("POST /v1/" + strings.Repeat("x", 100))
	is("a verb that is none", "unknown unimplemented", 1)
	refused("GET /v1/config")
	is("another method", "unknown invalid_argument", 1)
	refused("POST /v7/config")
	is("another version", "unknown failed_precondition", 1)
	if _, err := client.Show(t.Context(), api.StepRef{JobID: 1}); api.CodeOf(err) != api.NotFound {
		t.Fatal(err)
	}
	is("no such job", "show not_found", 1)
	tn.connections(0)
	held := []net.Conn{testkit.Dial(t, client.Socket, testTimeout)}
	tn.connections(1)
	if _, err := client.Config(t.Context()); api.CodeOf(err) != api.ResourceExhausted {
		t.Fatal(err)
	}
	is("a connection too many", "connect resource_exhausted", 1)
	tn.connections(1)
	for range toldMax + 5 {
		held = append(held, testkit.Dial(t, client.Socket, testTimeout))
	}
	is("connections that are closed", "connect resource_exhausted", 1+5)
	for _, c := range held {
		c.Close()
	}
	tn.connections(0)
	anonymous.Store(true)
	testkit.Dial(t, client.Socket, testTimeout).Close()
	is("a client without credentials", "connect unauthenticated", 1)
	if len(meter.by) != 6 {
		t.Errorf("counted are %v", meter.by)
	}
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
