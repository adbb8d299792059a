package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"stepd/api"
	"stepd/internal/testkit"
	"stepd/node/serve"
	"stepd/step"
)

// service sends requests to a node's server, from the document to the reply, but without a
// socket: so a test can be any user.
type service struct{ *serve.Server }

// peerKey is the context key of the api.Peer that sends a request.
type peerKey struct{}

func newService(n *Node) *service { return &service{newServer(n, nil)} }

// newServer is the server of a node; peerOf is nil for api.PeerOf.
func newServer(n *Node, peerOf func(*net.UnixConn) (api.Peer, error)) *serve.Server {
	c := n.Config()
	return serve.New(n.API(), serve.Config{
		Version: c.Version, Connections: c.PerUser.Connections, RequestBytes: c.PerUser.RequestBytes, Meter: c.Meter, Log: c.Log, PeerOf: peerOf,
	})
}

// send sends the bytes of a request as the peer of ctx, or of a connection without one. refusal
// is the answer to a client with too many connections, else "".
func (s *service) send(ctx context.Context, verb string, doc []byte, refusal string) (reply []byte, err error) {
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/"+verb, bytes.NewReader(doc))
	if p, ok := ctx.Value(peerKey{}).(api.Peer); ok {
		s.ServePeer(w, r, p, refusal)
	} else {
		s.ServeHTTP(w, r)
	}
	lines := bytes.Split(bytes.TrimSpace(w.Body.Bytes()), []byte("\n"))
	var last api.Line
	if json.Unmarshal(lines[len(lines)-1], &last) == nil && last.Error != nil {
		return nil, last.Error
	}
	if w.Code != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.Bytes(), nil
}

// ask sends a request, and returns its reply.
func (s *service) ask(ctx context.Context, verb string, in interface{ Stamp() }) ([]byte, error) {
	in.Stamp()
	doc, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	return s.send(ctx, verb, doc, "")
}

// askFor is ask for a reply of one document.
func askFor[Out any](ctx context.Context, s *service, verb string, in interface{ Stamp() }) (*Out, error) {
	reply, err := s.ask(ctx, verb, in)
	if err != nil {
		return nil, err
	}
	out := new(Out)
	return out, json.Unmarshal(reply, out)
}

// lines asks for a reply of several documents.
func (s *service) lines(ctx context.Context, verb string, in interface{ Stamp() }) (lines []api.Line, err error) {
	reply, err := s.ask(ctx, verb, in)
	for text := range bytes.Lines(reply) {
		var line api.Line
		if err := json.Unmarshal(text, &line); err != nil {
			return nil, err
		}
		if line.End {
			return lines, nil
		}
		lines = append(lines, line)
	}
	if err == nil {
		err = fmt.Errorf("the reply %q has no end", reply)
	}
	return nil, err
}

func (s *service) records(ctx context.Context, verb string, in interface{ Stamp() }) (recs []*step.Record, err error) {
	lines, err := s.lines(ctx, verb, in)
	for _, line := range lines {
		recs = append(recs, line.Step)
	}
	return recs, err
}

func (s *service) Run(ctx context.Context, in *api.RunRequest) (*api.RunReply, error) {
	return askFor[api.RunReply](ctx, s, "run", in)
}

func (s *service) DryRun(ctx context.Context, in *api.RunRequest) (*api.DryRunReply, error) {
	return askFor[api.DryRunReply](ctx, s, "dryrun", in)
}

func (s *service) Reserve(ctx context.Context, in *api.RunRequest) (*api.RunReply, error) {
	return askFor[api.RunReply](ctx, s, "reserve", in)
}

func (s *service) Launch(ctx context.Context, in *api.LaunchRequest) (*api.RunReply, error) {
	return askFor[api.RunReply](ctx, s, "launch", in)
}

func (s *service) Alloc(ctx context.Context, in *api.RunRequest) (*api.AllocReply, error) {
	return askFor[api.AllocReply](ctx, s, "alloc", in)
}

func (s *service) Release(ctx context.Context, in *api.ReleaseRequest) (*api.Empty, error) {
	return askFor[api.Empty](ctx, s, "release", in)
}

func (s *service) Signal(ctx context.Context, in *api.SignalRequest) (*api.EndReply, error) {
	return askFor[api.EndReply](ctx, s, "signal", in)
}

func (s *service) Cancel(ctx context.Context, in *api.CancelRequest) (*api.EndReply, error) {
	return askFor[api.EndReply](ctx, s, "cancel", in)
}

func (s *service) Drain(ctx context.Context, in *api.DrainRequest) (*api.Empty, error) {
	return askFor[api.Empty](ctx, s, "drain", in)
}

func (s *service) Resume(ctx context.Context, in *api.Empty) (*api.Empty, error) {
	return askFor[api.Empty](ctx, s, "resume", in)
}

func (s *service) Node(ctx context.Context, in *api.Empty) (*api.NodeReply, error) {
	return askFor[api.NodeReply](ctx, s, "node", in)
}

func (s *service) Config(ctx context.Context, in *api.Empty) (*api.ConfigReply, error) {
	return askFor[api.ConfigReply](ctx, s, "config", in)
}

// Events returns how many events a step's log has.
func (s *service) Events(ctx context.Context, id step.ID) (int, error) {
	lines, err := s.lines(ctx, "events", &api.EventsRequest{StepRef: ref(id)})
	return len(lines), err
}

// serveAs serves the node to clients who are all who uid says when they connect.
func serveAs(t *testing.T, tn *testNode, uid func() uint32) (*api.Client, *serve.Server) {
	t.Helper()
	l, err := tn.Listen()
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(tn.Node, func(c *net.UnixConn) (api.Peer, error) {
		p, err := api.PeerOf(c)
		p.UID = uid()
		return p, err
	})
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
	return &api.Client{Socket: filepath.Join(tn.cfg.RunDir, hiddenSocket)}, server
}

// TestSteps: a step by the socket, from the request to its record, its events and its
// output.
func TestSteps(t *testing.T) {
	tn := fresh(t)
	client, _ := serveAs(t, tn, testkit.Always(1000))
	req := request("exit", "6")
	r, err := client.Run(t.Context(), &api.RunRequest{Request: &req})
	if err != nil {
		t.Fatal(err)
	}
	id := step.ID{Job: r.JobID, Step: r.StepID}
	recs, err := client.Wait(t.Context(), api.Ref(id))
	if err != nil || len(recs) != 1 || recs[0].ExitCode == nil || *recs[0].ExitCode != 6 || recs[0].ID != id {
		t.Fatalf("%+v, %v", recs, err)
	}
	events := 0
	for _, err := range client.Events(t.Context(), id, true) {
		if err != nil {
			t.Fatal(err)
		}
		events++
	}
	if events < 2 {
		t.Errorf("%d events", events)
	}
	want := bytes.Repeat([]byte("kept"), 50_000)
	if err := os.WriteFile(tn.spool.Output(id), want, 0o600); err != nil {
		t.Fatal(err)
	}
	kept, err := client.Output(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if got, err := io.ReadAll(kept); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of output, %v", len(got), err)
	}
	listed := 0
	for rec, err := range client.List(t.Context(), true) {
		if err != nil || rec.ID != id {
			t.Errorf("%+v, %v", rec, err)
		}
		listed++
	}
	if listed != 1 {
		t.Errorf("%d steps are listed", listed)
	}
}

// TestClientGone: a request that waits ends with its client.
func TestClientGone(t *testing.T) {
	tn := fresh(t)
	client, server := serveAs(t, tn, testkit.Always(1000))
	id := tn.run(1000, request("wait"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := client.Wait(ctx, api.Ref(id))
		done <- err
	}()
	tn.eventually("a connection", func() bool { return server.Connections() == 1 })
	cancel()
	if err := <-done; api.CodeOf(err) != api.Canceled {
		t.Error(err)
	}
	tn.eventually("the connection's end", func() bool { return server.Connections() == 0 })
}

// TestConfigBesideFallbacks: the program reads the configuration when plugins in slurmd context,
// which it has started before, may end at any moment and add a fallback.
func TestConfigBesideFallbacks(t *testing.T) {
	tn := fresh(t)
	added := make(chan struct{})
	go func() {
		defer close(added)
		tn.AddFallback(Fallback{What: "plugins", Why: "they have ended"})
	}()
	name := tn.Config().NodeName
	if <-added; name == "" || len(tn.Config().Fallbacks) != 1 {
		t.Errorf("node %q has fallbacks %v", name, tn.Config().Fallbacks)
	}
}
