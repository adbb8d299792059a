package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	good := func(ctx context.Context, c *http.Client, i int) error {
		verb, want := "config", api.OK
		body := `{"schema":1}`
		switch i % 3 {
		case 1:
			verb = "list"
		case 2:
			verb, body, want = "show", `{"schema":1,"job_id":4000000}`, api.NotFound
		}
		if _, err := post(ctx, c, verb, []byte(body)); api.CodeOf(err) != want {
			return fmt.Errorf("%s: %w", verb, err)
		}
		return nil
	}
	var conns []*http.Client
	for range floodClients {
		conns = append(conns, n.web(t))
	}
	var wg sync.WaitGroup
	var sent atomic.Int64
	var failed atomic.Value
	began := time.Now()
	for w := range floodClients * floodAtOnce {
		wg.Go(func() {
			client, noise := conns[w%floodClients], rand.NewChaCha8([32]byte{byte(w)})
			for i := sent.Add(1); i <= floodRequests; i = sent.Add(1) {
				ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
				err := error(nil)
				if i%2 == 0 {
					err = good(ctx, client, int(i/2))
				} else if err = garbage(ctx, client, noise, int(i/2)); api.CodeOf(err) == api.Unavailable || api.CodeOf(err) == api.OK || api.CodeOf(err) == api.Unknown {
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
	// Beside them, one that is no protocol at all, and a client that works.
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
		c.CloseIdleConnections()
	}
	n.sameAs(t, before)
	if lines := strings.Count(n.log.String(), "request refused"); lines > 100 {
		t.Errorf("%d lines of the log are about refused requests", lines)
	}
	n.serves(t)
}

// garbage asks for what does not exist, in what is no request.
func garbage(ctx context.Context, c *http.Client, noise *rand.ChaCha8, i int) error {
	b := make([]byte, i%2000)
	_, _ = noise.Read(b) // never fails
	verb := "run"
	switch i % 3 {
	case 0:
		b = runBody(b)
	case 1:
		verb = "nosuchverb"
	case 2:
		verb, b = "launch", append([]byte{0xff, 0xff}, b...)
	}
	_, err := post(ctx, c, verb, b)
	return err
}

// cutConn ends a connection after so many bytes from its client.
type cutConn struct {
	net.Conn
	left int64
	sent func(int)
}

func (c *cutConn) Write(b []byte) (int, error) {
	c.sent(len(b)) // before the answer can come
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

// TestRootVanishingClients: a client of each verb that vanishes in the middle of its request,
// and while it waits for the answer.
func TestRootVanishingClients(t *testing.T) {
	n := startNode(t, site{})
	p := n.start(t, call{args: []string{"run", "sleep", "1000"}})
	id := n.running(t)
	ref := fmt.Sprintf(`"schema":1,"job_id":%d,"step_id":%d`, id.JobID, id.StepID)
	run := string(runBody(request(t, []string{"true"}, []string{"PATH=/bin"}, nil)))
	requests := map[string]string{
		"run": run, "dryrun": run, "willrun": run, "reserve": run, "alloc": run,
		"launch": "{" + ref + `,"change":{"env":[]}}`, "release": fmt.Sprintf(`{"schema":1,"job_id":%d}`, id.JobID),
		"wait": "{" + ref + "}", "show": "{" + ref + "}", "stat": "{" + ref + "}", "output": "{" + ref + "}",
		"unsuspend": "{" + ref + "}", "events": "{" + ref + `,"follow":true}`, "list": `{"schema":1,"all":true}`,
		"signal": "{" + ref + `,"signal":18}`, "cancel": `{"schema":1,"job_id":77}`,
		"adopt": `{"schema":1,"pid":4194303}`, // a process that does not exist
		"drain": `{"schema":1,"reason":"vanished"}`, "resume": `{"schema":1}`, "node": `{"schema":1}`, "config": `{"schema":1}`,
	}
	must(t, n.ctlErrorRoot(t, "show", id.id()))
	before := n.daemon(t)
	for _, verb := range verbs(t) {
		in, ok := requests[verb]
		if verb == "suspend" {
			continue // it takes two seconds by its nature; unsuspend and signal go the same way
		}
		if !ok {
			t.Errorf("this test has no request for %s", verb)
			continue
		}
		whole := n.vanish(t, verb, []byte(in), 1<<40)
		if whole < int64(len(in)) {
			t.Errorf("%s: %d bytes were sent of a request of %d", verb, whole, len(in))
		}
		for part := range int64(3) {
			n.vanish(t, verb, []byte(in), 1+whole*part/3)
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

// verbs are the verbs of docs/api.md, which node's TestVerbsAreDocumented compares with
// the server's.
func verbs(t testing.TB) (all []string) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("..", "docs", "api.md"))
	must(t, err)
	for line := range strings.Lines(string(doc)) {
		if verb, ok := strings.CutPrefix(line, "### "); ok {
			all = append(all, strings.TrimSpace(verb))
		}
	}
	return all
}

// vanish sends a request on a connection that ends after so many bytes, or soon after the
// whole request. It returns how many were sent.
func (n *node) vanish(t testing.TB, verb string, request []byte, bytes int64) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var sent atomic.Int64
	enough := min(bytes, int64(len(verb)+len(request)))
	vanishes := sync.OnceFunc(func() { time.AfterFunc(15*time.Millisecond, cancel) })
	client := web(func(ctx context.Context) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", n.socket())
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: c, left: bytes, sent: func(bytes int) {
			if sent.Add(int64(bytes)) >= enough {
				vanishes()
			}
		}}, nil
	})
	_, _ = post(ctx, client, verb, request) // it fails, or is cut off
	client.CloseIdleConnections()
	return sent.Load()
}
