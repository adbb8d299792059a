package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/internal/testkit"
	"stepd/step"
)

// testTimeout bounds every wait of these tests.
const testTimeout = 20 * time.Second

// fakeNode is a node with these records, whose jobs do not run. What it does not have panics.
type fakeNode struct {
	Backend
	recs []*step.Record
	full error // why it takes no reservation, nil if it does
}

func (n *fakeNode) ClientConfig() *api.ConfigReply     { return &api.ConfigReply{Node: "n1"} }
func (n *fakeNode) Status(context.Context) api.Node    { return api.Node{Name: "n1"} }
func (n *fakeNode) Owner(uint32) (uid uint32, ok bool) { return 0, false }

func (n *fakeNode) Run(_ context.Context, _ api.Peer, in *api.RunRequest) (*api.RunReply, error) {
	if in.Bytes == 0 {
		panic("the request has no size")
	}
	return nil, api.Errorf(api.InvalidArgument, "ntasks: %d tasks", in.Request.NTasks)
}

func (n *fakeNode) Reserve(context.Context, api.Peer, *api.RunRequest) (*api.RunReply, error) {
	return new(api.RunReply), n.full
}

func (n *fakeNode) Launch(api.Peer, *api.LaunchRequest) (*api.RunReply, error) {
	return new(api.RunReply), nil
}

func (n *fakeNode) List(_ bool, behind step.ID) (ids []step.ID) {
	if behind.Job != 0 {
		return nil
	}
	for _, rec := range n.recs {
		ids = append(ids, rec.ID)
	}
	return ids
}

func (n *fakeNode) IDs(ref api.StepRef) ([]step.ID, error) {
	if ref.StepID == nil {
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", ref.JobID)
	}
	return []step.ID{{Job: ref.JobID, Step: *ref.StepID}}, nil
}

// Await returns when the job's number has been given to uid 1001.
func (n *fakeNode) Await(_ context.Context, ref api.StepRef) ([]step.ID, error) {
	for _, rec := range n.recs {
		rec.UID = 1001
	}
	return n.IDs(ref)
}

func (n *fakeNode) Step(id step.ID) (*step.Record, error) {
	for _, rec := range n.recs {
		if rec.ID == id {
			return rec, nil
		}
	}
	return nil, api.Errorf(api.NotFound, "no such step %q", id)
}

type noMeter struct{}

func (noMeter) Request(string, string, time.Duration) {}

// testServer is a server of a fakeNode.
type testServer struct {
	*Server
	node *fakeNode
	t    testing.TB
}

func start(t testing.TB, change func(*Config)) *testServer {
	c := Config{Connections: 2048, RequestBytes: 64 << 20, Meter: noMeter{}, Log: logrus.New()}
	c.Log.SetOutput(io.Discard)
	if change != nil {
		change(&c)
	}
	n := new(fakeNode)
	return &testServer{New(n, c), n, t}
}

func fresh(t testing.TB) *testServer { return start(t, nil) }

// serveAs serves clients who are all who uid says when they connect.
func serveAs(t *testing.T, tn *testServer, uid func() uint32, change func(*Server)) *api.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	tn.PeerOf = func(c *net.UnixConn) (api.Peer, error) {
		p, err := api.PeerOf(c)
		p.UID = uid()
		return p, err
	}
	if change != nil {
		change(tn.Server)
	}
	served := make(chan error, 1)
	go func() { served <- tn.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		tn.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &api.Client{Socket: socket}
}

// request is a request for a step.
func request(argv ...string) step.Request {
	null := step.Stream{Kind: step.StreamNull}
	return step.Request{
		Schema: step.Schema, Name: "test", NTasks: 1, NNodes: 1, CPUsPerTask: 1,
		Argv: argv, Env: []string{"PATH=/bin"}, Cwd: "/", Stdin: null, Stdout: null, Stderr: null,
	}
}

// connections waits until so many are counted.
func (tn *testServer) connections(want int) {
	tn.t.Helper()
	for deadline := time.Now().Add(testTimeout); tn.Connections() != want; {
		if time.Now().After(deadline) {
			tn.t.Fatalf("%d connections are counted, want %d", tn.Connections(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

// begin sends the head of a request of run and a part of its body.
func begin(t *testing.T, c net.Conn, size, sent int) {
	t.Helper()
	_, err := fmt.Fprintf(c, "POST /v1/run HTTP/1.1\r\nHost: noded\r\nContent-Length: %d\r\n\r\n", size)
	if err == nil {
		_, err = c.Write(make([]byte, sent))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// bytes is what each user has under way.
func (f *inFlight) bytes() map[uint32]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.byUser)
}

// underWay waits until uid has so many bytes under way.
func (tn *testServer) underWay(uid uint32, ok func(int) bool) {
	tn.t.Helper()
	for deadline := time.Now().Add(testTimeout); !ok(tn.clients.inFlight.bytes()[uid]); {
		if time.Now().After(deadline) {
			tn.t.Fatalf("uid %d has %d bytes under way", uid, tn.clients.inFlight.bytes()[uid])
		}
		time.Sleep(time.Millisecond)
	}
}

// TestPerUserInFlight: a user who sends many large requests, and never ends one, has no more
// of the memory than the limit; others do not notice, and the user still sees what runs.
func TestPerUserInFlight(t *testing.T) {
	const limit, each = 512 << 10, 60 << 10
	tn := start(t, func(c *Config) { c.RequestBytes = limit })
	uids := make(chan uint32, 1)
	client := serveAs(t, tn, func() uint32 { return <-uids }, nil)
	ask := func(uid uint32) error {
		uids <- uid
		req := request(strings.Repeat("x", each))
		req.NTasks = -1 // refused, but not by the limit
		_, err := client.Run(t.Context(), &api.RunRequest{Request: &req})
		return err
	}
	var slow []net.Conn
	for range 6 {
		uids <- 1000
		c := testkit.Dial(t, client.Socket, testTimeout)
		begin(t, c, 10*each, each)
		slow = append(slow, c)
	}
	const before = 6 * (callBytes + 64<<10) // buffers grow by doubling
	tn.underWay(1000, func(n int) bool { return n == before })
	if err := ask(1000); api.CodeOf(err) != api.ResourceExhausted || !strings.Contains(err.Error(), "uid 1000 has requests under way whose bytes are at the limit of 524288 (UserRequestBytes)") {
		t.Errorf("one more of the user: %v", err)
	}
	for _, uid := range []uint32{1001, 0} {
		if err := ask(uid); api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
	uids <- 1000
	if _, err := client.Config(t.Context()); err != nil {
		t.Errorf("a small request at the limit: %v", err)
	}
	tn.underWay(1000, func(n int) bool { return n == before })
	// A connection that ends counts no more.
	for _, c := range slow {
		c.Close()
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
	if err := ask(1000); api.CodeOf(err) != api.InvalidArgument {
		t.Errorf("afterwards: %v", err)
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
}

// TestRequestsCount: a request counts before any of its body has come.
func TestRequestsCount(t *testing.T) {
	tn := fresh(t)
	client := serveAs(t, tn, testkit.Always(1000), nil)
	for n := 1; n <= 3; n++ {
		begin(t, testkit.Dial(t, client.Socket, testTimeout), 1000, 0)
		tn.underWay(1000, func(have int) bool { return have == n*(callBytes+1001) })
	}
}

// TestRefusedRequestLeavesOthers: a request beyond the limit costs its user nothing else.
func TestRefusedRequestLeavesOthers(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	tn := start(t, func(c *Config) { c.RequestBytes = limit })
	client := serveAs(t, tn, testkit.Always(1000), nil)
	run := func(size int) error {
		req := request(strings.Repeat("x", size))
		req.NTasks = -1 // refused, but not by the limit
		_, err := client.Run(t.Context(), &api.RunRequest{Request: &req})
		return err
	}
	for range 8 {
		if err := run(2 * limit); api.CodeOf(err) != api.ResourceExhausted {
			t.Errorf("a request above the limit: %v", err)
		}
		if err := run(limit / 2); api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("one below it, behind: %v", err)
		}
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
	tn.connections(0)
}

// TestNumberGivenAgain: a client does not get the record of another user's step that has its
// step's number by now.
func TestNumberGivenAgain(t *testing.T) {
	tn := fresh(t)
	id := step.ID{Job: 7}
	tn.node.recs = []*step.Record{{ID: id, UID: 1000, State: step.Running}}
	client := serveAs(t, tn, testkit.Always(1000), nil)
	if recs, err := client.Show(t.Context(), api.Ref(id)); err != nil || len(recs) != 1 {
		t.Errorf("%v, %v", recs, err)
	}
	if recs, err := client.Wait(t.Context(), api.Ref(id)); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("%v, %v", recs, err)
	}
}

// TestNoCredentials: a request of a connection whose peer is not known is served to no user.
func TestNoCredentials(t *testing.T) {
	server := fresh(t).Server
	for _, verb := range server.Verbs() {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/"+verb, strings.NewReader(`{"schema":1}`)))
		var r api.Refusal
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || r.Error == nil || r.Error.Code != api.Unauthenticated {
			t.Errorf("%s: %s", verb, w.Body)
		}
	}
}

// TestBodyLimit: a body beyond the limit is refused by name, with and without its length.
func TestBodyLimit(t *testing.T) {
	tn := fresh(t)
	client := serveAs(t, tn, testkit.Always(0), nil)
	for name, head := range map[string]string{
		"length": fmt.Sprintf("Content-Length: %d\r\n\r\n", api.RequestMax+1),
		"chunks": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", api.RequestMax+100),
	} {
		c := testkit.Dial(t, client.Socket, testTimeout)
		go func() { // noded may close first
			_, _ = io.WriteString(c, "POST /v1/run HTTP/1.1\r\nHost: noded\r\n"+head)
			_, _ = c.Write(bytes.Repeat([]byte(" "), api.RequestMax+1))
		}()
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, _ := io.ReadAll(r.Body)
		if r.StatusCode != 400 || !bytes.Contains(body, []byte("the limit is 16777216")) {
			t.Errorf("%s: %d %s", name, r.StatusCode, body)
		}
	}
}

// do makes a request by net/http, as another language's client does.
func do(t *testing.T, client *api.Client, method, path, body string, header http.Header) (status int, reply string) {
	t.Helper()
	h := &http.Client{Timeout: testTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", client.Socket)
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://noded"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	r, err := h.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Header.Get(api.VersionHeader); v != "1" {
		t.Errorf("%s %s: version %q", method, path, v)
	}
	return r.StatusCode, string(b)
}

// TestEnvelope: what is no request of this API is refused with what is wrong.
func TestEnvelope(t *testing.T) {
	tn := start(t, func(c *Config) { c.Version = "1.7" })
	client := serveAs(t, tn, testkit.Always(0), nil)
	old := http.Header{api.VersionHeader: {"2"}, "User-Agent": {"stepctl 3.0"}}
	for name, tc := range map[string]struct {
		method, path, body string
		header             http.Header
		status             int
		says               string
	}{
		"good":              {"POST", "/v1/config", `{"schema":1}`, nil, 200, `"node":"n1"`},
		"lines":             {"POST", "/v1/list", `{"schema":1}`, nil, 200, `{"schema":1,"end":true}`},
		"an unknown verb":   {"POST", "/v1/frob", `{"schema":1}`, nil, 501, `no request \"frob\"`},
		"no verb":           {"POST", "/", `{"schema":1}`, nil, 412, "version 1 of its API"},
		"a method":          {"GET", "/v1/config", "", nil, 400, "want POST"},
		"another version":   {"POST", "/v2/config", `{"schema":1}`, nil, 412, `speaks version \"2\"`},
		"of the program":    {"POST", "/v1/config", `{"schema":1}`, old, 412, `noded is 1.7 and speaks version 1 of its API, \"stepctl 3.0\" speaks version \"2\"`},
		"no schema":         {"POST", "/v1/config", `{}`, nil, 400, "schema: is 0, want 1"},
		"an unknown field":  {"POST", "/v1/cancel", `{"schema":1,"job_id":1,"frob":2}`, nil, 400, `unknown field \"frob\"`},
		"in the request":    {"POST", "/v1/run", `{"schema":1,"request":{"frob":2}}`, nil, 400, `unknown field \"frob\"`},
		"two documents":     {"POST", "/v1/config", `{"schema":1}{}`, nil, 400, "bytes after the document"},
		"no JSON":           {"POST", "/v1/config", "schema=1", nil, 400, "cannot parse request"},
		"no body":           {"POST", "/v1/config", "", nil, 400, "cannot parse request"},
		"no request":        {"POST", "/v1/run", `{"schema":1}`, nil, 400, "request: is missing"},
		"no change":         {"POST", "/v1/launch", `{"schema":1,"job_id":1,"step_id":0}`, nil, 400, "change: is missing"},
		"an unknown step":   {"POST", "/v1/show", `{"schema":1,"job_id":9,"step_id":0}`, nil, 404, `no such step \"9.0\"`},
		"an unknown job":    {"POST", "/v1/show", `{"schema":1,"job_id":9}`, nil, 404, `no such job \"9\"`},
		"events of a job":   {"POST", "/v1/events", `{"schema":1,"job_id":9}`, nil, 400, "step_id: is missing"},
		"output of no step": {"POST", "/v1/output", `{"schema":1,"job_id":9,"step_id":1}`, nil, 404, "no such step"},
	} {
		status, reply := do(t, client, tc.method, tc.path, tc.body, tc.header)
		if status != tc.status || !strings.Contains(reply, tc.says) || !strings.Contains(reply, `"schema":1`) {
			t.Errorf("%s: %d %s, want %d with %q", name, status, reply, tc.status, tc.says)
		}
	}
}

// logText is noded's log as text: noded and what passes on its stepds' words write to it at once.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TestReplyUnread: a client that does not read its reply is cut off, and named in the log;
// until then the reply is bounded, and costs a record at a time.
func TestReplyUnread(t *testing.T) {
	t.Parallel()
	var log logText
	tn := start(t, func(c *Config) {
		c.Log.SetOutput(&log)
		c.RequestBytes = 256 << 10
	})
	const commandMax = 8 << 10
	for i := range uint32(50) {
		tn.node.recs = append(tn.node.recs, &step.Record{ID: step.ID{Job: i + 1}, UID: 1000, State: step.Completed, Command: []string{strings.Repeat("x", commandMax)}})
	}
	client := serveAs(t, tn, testkit.Always(1000), func(s *Server) { s.replyTime = 300 * time.Millisecond })
	var conns []net.Conn
	for range 10 {
		c := testkit.Dial(t, client.Socket, testTimeout)
		if _, err := io.WriteString(c, "POST /v1/list HTTP/1.0\r\nContent-Length: 23\r\n\r\n{\"schema\":1,\"all\":true}"); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	tn.underWay(1000, func(n int) bool { return n > 10*callBytes })
	for deadline := time.Now().Add(testTimeout); tn.Connections() > 0; time.Sleep(time.Millisecond) {
		if n := tn.clients.inFlight.bytes()[1000]; n > 10*(callBytes+commandMax+4<<10) {
			t.Fatalf("%d bytes are under way for 10 listings", n)
		}
		if time.Now().After(deadline) {
			t.Fatal("the connections are open")
		}
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
	if !strings.Contains(log.String(), "list: the client has not read its reply for 300ms: its connection is closed") {
		t.Errorf("log: %s", log.String())
	}
	// What it reads then has no end.
	b, _ := io.ReadAll(conns[0])
	if bytes.Contains(b, []byte(`"end":true`)) {
		t.Error("the reply is complete")
	}
}

// TestPanic: a mistake in one request is an error of that request.
func TestPanic(t *testing.T) {
	var log logText
	tn := start(t, func(c *Config) { c.Log.SetOutput(&log) })
	client := serveAs(t, tn, testkit.Always(1000), func(s *Server) {
		s.table["config"] = func(*call) error { panic("a mistake") }
		s.table["list"] = func(c *call) error {
			if err := c.event([]byte("{}")); err != nil {
				return err
			}
			panic("another mistake")
		}
	})
	if _, err := client.Config(t.Context()); api.CodeOf(err) != api.Internal || !strings.Contains(err.Error(), "a mistake") {
		t.Error(err)
	}
	for _, err := range client.List(t.Context(), true) {
		if err != nil && (api.CodeOf(err) != api.Internal || !strings.Contains(err.Error(), "another mistake")) {
			t.Error(err)
		}
	}
	if _, err := client.Node(t.Context()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "internal error: config: a mistake") || !strings.Contains(log.String(), "serve_test.go") {
		t.Errorf("log: %s", log.String())
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
}

// TestVerbsAreDocumented: docs/api.md has each verb, and no other.
func TestVerbsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for line := range strings.Lines(string(doc)) {
		if verb, ok := strings.CutPrefix(line, "### "); ok {
			verb = strings.TrimSpace(verb)
			has = append(has, verb)
			if !strings.Contains(string(doc), "http://noded/v1/"+verb+" -d") {
				t.Errorf("%s has no example", verb)
			}
		}
	}
	slices.Sort(has)
	if served := fresh(t).Verbs(); !slices.Equal(has, served) {
		t.Errorf("docs/api.md has %q, served are %q", has, served)
	}
}

// TestListWithoutTasks: a list has the tasks of all records, or with no_tasks of none, which are the
// same otherwise.
func TestListWithoutTasks(t *testing.T) {
	tn := fresh(t)
	tasks := []step.Task{{Rank: 0, State: step.TaskRunning}, {Rank: 1, State: step.TaskRunning}}
	tn.node.recs = []*step.Record{
		{ID: step.ID{Job: 1}, UID: 1000, Name: "a", State: step.Running, NTasks: 2, Tasks: tasks},
		{ID: step.ID{Job: 2}, UID: 1000, Name: "b", State: step.Completed, NTasks: 2, Tasks: tasks},
	}
	client := serveAs(t, tn, testkit.Always(1000), nil)
	documents := func(list iter.Seq2[*step.Record, error], tasks int) (all []string) {
		for rec, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			if rec.Tasks == nil || len(rec.Tasks) != tasks {
				t.Errorf("step %s has tasks %v, want %d", rec.ID, rec.Tasks, tasks)
			}
			rec.Tasks = nil
			doc, err := json.Marshal(rec)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(doc))
		}
		return all
	}
	with, without := documents(client.List(t.Context(), true), 2), documents(client.Overview(t.Context(), true), 0)
	if len(with) != 2 || !slices.Equal(with, without) {
		t.Errorf("with tasks %q\nwithout    %q", with, without)
	}
}
