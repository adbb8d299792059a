package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"stepd/api"
)

// daemonDoc is what noded itself takes, in `node status --json`.
type daemonDoc struct {
	Goroutines int    `json:"goroutines"`
	OpenFiles  *int   `json:"open_files"`
	HeapBytes  uint64 `json:"heap_bytes"`
}

func (n *node) daemon(t testing.TB) daemonDoc {
	t.Helper()
	var doc struct {
		Node struct {
			Daemon daemonDoc `json:"daemon"`
		} `json:"node"`
	}
	r := n.ctlRoot(t, "node", "status", "--json")
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || doc.Node.Daemon.OpenFiles == nil {
		t.Fatalf("%v, %v", err, r)
	}
	return doc.Node.Daemon
}

// sameAs waits until noded has no more goroutines and files open than it had.
func (n *node) sameAs(t testing.TB, before daemonDoc) {
	t.Helper()
	eventually(t, callTimeout, "noded as it was", func() error {
		now := n.daemon(t)
		if now.Goroutines > before.Goroutines+3 || *now.OpenFiles > *before.OpenFiles+2 {
			return fmt.Errorf("%d goroutines and %d files, before %d and %d", now.Goroutines, *now.OpenFiles, before.Goroutines, *before.OpenFiles)
		}
		return nil
	})
}

const (
	// floodRequests are sent by floodClients, floodAtOnce of each at a time.
	floodRequests = 10_000
	floodClients  = 16
	floodAtOnce   = 8
)

// TestRootFlood: 10,000 requests as fast as they go, half of them garbage: each is
// answered as it should be, others are served meanwhile, and nothing is left of it.
func TestRootFlood(t *testing.T) {
	n := startNode(t, site{})
	n.serves(t)
	before := n.daemon(t)
	good := func(ctx context.Context, c api.NodeClient, i int) error {
		switch i % 3 {
		case 0:
			_, err := c.ClientConfig(ctx, &api.Empty{})
			return err
		case 1:
			_, err := c.List(ctx, &api.ListRequest{})
			return err
		}
		if _, err := c.Show(ctx, &api.StepRef{JobId: 4_000_000}); status.Code(err) != codes.NotFound {
			return fmt.Errorf("show of an unknown job: %w", err)
		}
		return nil
	}
	var conns []*grpc.ClientConn
	for range floodClients {
		conn, err := grpc.NewClient("unix:"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		conns = append(conns, conn)
	}
	var wg sync.WaitGroup
	var sent atomic.Int64
	var failed atomic.Value
	began := time.Now()
	for w := range floodClients * floodAtOnce {
		wg.Go(func() {
			conn := conns[w%floodClients]
			client, noise := api.NewNodeClient(conn), rand.NewChaCha8([32]byte{byte(w)})
			for i := sent.Add(1); i <= floodRequests; i = sent.Add(1) {
				ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
				err := error(nil)
				if i%2 == 0 {
					err = good(ctx, client, int(i/2))
				} else if err = garbage(ctx, conn, noise, int(i/2)); status.Code(err) == codes.Unavailable || status.Code(err) == codes.OK {
					err = fmt.Errorf("garbage is answered with: %v", err)
				} else {
					err = nil
				}
				cancel()
				if err != nil {
					failed.Store(err.Error())
					return
				}
			}
		})
	}
	// Beside them, one that is no protocol at all, and somebody who works.
	for i := range 50 {
		if c, err := net.Dial("unix", n.socket()); err == nil {
			_, _ = c.Write([]byte(strings.Repeat("garbage\r\n", i))) // noded may close first
			c.Close()
		}
	}
	if r := n.ctl(t, "run", "echo", "served"); r.code != 0 || r.out != "served\n" {
		t.Errorf("a step meanwhile: %v", r)
	}
	wg.Wait()
	took := time.Since(began)
	if why := failed.Load(); why != nil {
		t.Error(why)
	}
	t.Logf("%d requests in %v: %.0f a second", floodRequests, took.Round(time.Millisecond), floodRequests/took.Seconds())
	for _, c := range conns {
		c.Close()
	}
	n.sameAs(t, before)
	if lines := strings.Count(n.log.String(), "request refused"); lines > 100 {
		t.Errorf("%d lines of the log are about refused requests", lines)
	}
	n.serves(t)
}

// garbage asks for what there is not, in what is no request.
func garbage(ctx context.Context, conn *grpc.ClientConn, noise *rand.ChaCha8, i int) error {
	b := make([]byte, i%2000)
	_, _ = noise.Read(b) // never fails
	switch i % 3 {
	case 0:
		_, err := api.NewNodeClient(conn).Run(ctx, &api.RunRequest{Request: b})
		return err
	case 1:
		return conn.Invoke(ctx, "/stepd.v1.Node/NoSuchMethod", rawMessage(b), new(rawMessage), grpc.ForceCodec(rawCodec{}))
	}
	return conn.Invoke(ctx, api.Node_Launch_FullMethodName, rawMessage(append([]byte{0xff, 0xff}, b...)), new(rawMessage), grpc.ForceCodec(rawCodec{}))
}

// rawMessage is bytes in the place of a message.
type rawMessage []byte

// rawCodec sends them as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	if m, ok := v.(rawMessage); ok {
		return m, nil
	}
	return nil, fmt.Errorf("not bytes: %T", v)
}

func (rawCodec) Unmarshal(b []byte, v any) error {
	if m, ok := v.(*rawMessage); ok {
		*m = b
	}
	return nil
}

// cutConn ends a connection after so many bytes from its client.
type cutConn struct {
	net.Conn
	left int64
	sent func(int)
}

func (c *cutConn) Write(b []byte) (int, error) {
	defer c.sent(len(b))
	if int64(len(b)) < c.left {
		c.left -= int64(len(b))
		return c.Conn.Write(b)
	}
	if c.left > 0 {
		_, _ = c.Conn.Write(b[:c.left]) // the rest never comes
		c.left = 0
	}
	c.Conn.Close()
	return 0, net.ErrClosed
}

// TestRootVanishingClients: a client of each method there is that vanishes in the middle
// of its request, and while it waits for the answer.
func TestRootVanishingClients(t *testing.T) {
	n := startNode(t, site{})
	p := n.start(t, call{args: []string{"run", "sleep", "1000"}})
	id := n.running(t)
	ref := &api.StepRef{JobId: id.JobID, StepId: &id.StepID}
	run := &api.RunRequest{Request: request(t, []string{"true"}, []string{"PATH=/bin"}, nil)}
	requests := map[string]proto.Message{
		"RunRequest": run, "StepRef": ref, "LaunchRequest": &api.LaunchRequest{Step: ref, Change: []byte(`{"env":[]}`)}, "ReleaseRequest": &api.ReleaseRequest{JobId: id.JobID},
		"ListRequest": &api.ListRequest{All: true}, "SignalRequest": &api.SignalRequest{Step: ref, Signal: 18}, "CancelRequest": &api.CancelRequest{Step: &api.StepRef{JobId: 77}},
		"EventsRequest": &api.EventsRequest{Step: ref, Follow: true}, "DrainRequest": &api.DrainRequest{Reason: "vanished"}, "Empty": &api.Empty{},
		"AdoptRequest": &api.AdoptRequest{Pid: 1<<22 - 1}, // a process that there is not
	}
	must(t, n.ctlErrorRoot(t, "show", id.id()))
	before := n.daemon(t)
	methods := api.File_api_node_proto.Services().ByName("Node").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		in := requests[string(m.Input().Name())]
		if in == nil {
			t.Errorf("%s wants a %s, of which this test has none", m.Name(), m.Input().Name())
			continue
		}
		if m.Name() == "Suspend" {
			continue // it takes two seconds by its nature; Unsuspend and Signal go the same way
		}
		b, err := proto.Marshal(in)
		must(t, err)
		method := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		whole := n.vanish(t, method, b, 1<<40)
		if whole < int64(len(b)+len(method)) {
			t.Errorf("%s: %d bytes were sent of a request of %d", method, whole, len(b))
		}
		for part := range int64(3) {
			n.vanish(t, method, b, 1+whole*part/3)
		}
	}
	if r := n.ctlRoot(t, "node", "resume"); r.code != 0 {
		t.Error(r)
	}
	if doc := n.show(t, id.id()); doc.State != "RUNNING" {
		t.Errorf("the step is %s", doc.State)
	}
	// What they have reserved and allocated is this process's, which lives.
	// A request may come to its end after its client's.
	eventually(t, callTimeout, "the end of all jobs", func() error {
		jobs := n.status(t).Jobs
		for _, j := range jobs {
			_ = n.ctlRoot(t, "cancel", fmt.Sprint(j.JobID)) // it may be over
		}
		if len(jobs) > 0 {
			return fmt.Errorf("jobs %+v", jobs)
		}
		return nil
	})
	p.wait(t)
	n.sameAs(t, before)
	n.serves(t)
	n.checkClean(t)
}

// connStart are the bytes that a connection of HTTP/2 begins with: the preface, and a
// frame of settings.
const connStart = 24 + 9

// vanish calls a method on a connection that ends after so many bytes, or soon after the
// whole request. It returns how many there were.
func (n *node) vanish(t testing.TB, method string, request []byte, bytes int64) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var sent atomic.Int64
	enough := min(bytes, int64(connStart+len(method)+len(request)))
	vanishes := sync.OnceFunc(func() { time.AfterFunc(15*time.Millisecond, cancel) })
	conn, err := grpc.NewClient("passthrough:noded", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", n.socket())
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: c, left: bytes, sent: func(bytes int) {
			if sent.Add(int64(bytes)) >= enough {
				vanishes()
			}
		}}, nil
	}))
	must(t, err)
	_ = conn.Invoke(ctx, method, rawMessage(request), new(rawMessage), grpc.ForceCodec(rawCodec{})) // it fails, or is cut off
	conn.Close()
	return sent.Load()
}
