package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"stepd/api"
)

// uidCredentials make every connection that of uid, as clientCredentials count it.
type uidCredentials struct {
	credentials.TransportCredentials
	uid func() uint32
}

func (c uidCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(conn)
	if p, ok := info.(api.Peer); ok {
		p.UID = c.uid()
		info = p
	}
	return conn, info, err
}

// rawClient speaks HTTP/2 as no client of ours does.
type rawClient struct {
	t *testing.T
	net.Conn
	*http2.Framer
}

func dialRaw(t *testing.T, path string) *rawClient {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r := &rawClient{t, c, http2.NewFramer(c, c)}
	c.SetDeadline(time.Now().Add(testTimeout))
	_, err = c.Write([]byte(http2.ClientPreface))
	r.must(err)
	r.must(r.WriteSettings())
	return r
}

func (r *rawClient) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// begin begins a call of Run with a request of so many bytes, of which none is sent.
func (r *rawClient) begin(stream uint32, size int) {
	r.t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", api.Node_Run_FullMethodName}, {":authority", "noded"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		r.must(enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}))
	}
	r.must(r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}))
	head := make([]byte, 5)
	binary.BigEndian.PutUint32(head[1:], uint32(size))
	r.must(r.WriteData(stream, false, head))
}

// send sends n bytes of a request.
func (r *rawClient) send(stream uint32, n int) {
	r.t.Helper()
	for n > 0 {
		piece := min(n, 16<<10)
		r.must(r.WriteData(stream, false, make([]byte, piece)))
		n -= piece
	}
}

// answer is what a call of the stream is answered: grpc-status and grpc-message.
func (r *rawClient) answer(stream uint32) (status, message string) {
	r.t.Helper()
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		f, err := r.ReadFrame()
		r.must(err)
		if h, ok := f.(*http2.MetaHeadersFrame); ok && h.StreamID == stream && h.StreamEnded() {
			for _, field := range h.Fields {
				switch field.Name {
				case "grpc-status":
					status = field.Value
				case "grpc-message":
					message = field.Value
				}
			}
			return status, message
		}
	}
}

// serveAs serves the node to clients who are all who uid says when they connect.
func serveAs(t *testing.T, tn *testNode, uid func() uint32) (socket string) {
	t.Helper()
	l, err := tn.Listen()
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(clientCredentials{uidCredentials{api.Credentials(), uid}, tn.clients}), grpc.MaxRecvMsgSize(32<<20))
	api.RegisterNodeServer(server, tn.svc)
	go server.Serve(l) // its end is Stop's
	t.Cleanup(server.Stop)
	return filepath.Join(tn.cfg.RunDir, hiddenSocket)
}

// underWay waits until uid has so many bytes under way.
func (tn *testNode) underWay(uid uint32, ok func(int) bool) {
	tn.t.Helper()
	for deadline := time.Now().Add(testTimeout); !ok(tn.clients.inFlight.bytes()[uid]); {
		if time.Now().After(deadline) {
			tn.t.Fatalf("uid %d has %d bytes under way", uid, tn.clients.inFlight.bytes()[uid])
		}
		time.Sleep(time.Millisecond)
	}
}

// TestPerUserInFlight: who sends many large requests, and never ends one, has no more of
// the memory than the limit; others do not notice.
func TestPerUserInFlight(t *testing.T) {
	const limit, each = 256 << 10, 32 << 10 // less than a window of HTTP/2, which is not asked for
	tn := start(t, t.TempDir(), func(c *Config) { c.PerUser.RequestBytes = limit })
	defer func() { tn.stop() }()
	uids := make(chan uint32, 1)
	socket := serveAs(t, tn, func() uint32 { return <-uids })
	raw := func(uid uint32) *rawClient {
		uids <- uid
		return dialRaw(t, socket)
	}
	ask := func(uid uint32) error {
		uids <- uid
		conn, err := api.Dial(socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		// No job request, and as large as one: what it is answered is not the limit's.
		_, err = api.NewNodeClient(conn).Run(ctx, &api.RunRequest{Request: make([]byte, each)})
		return err
	}
	// Seven connections have a part of a request each, and one has several.
	var slow []*rawClient
	for range 7 {
		r := raw(1000)
		r.begin(1, 10*each)
		r.send(1, each)
		slow = append(slow, r)
	}
	tn.underWay(1000, func(n int) bool { return n >= 7*each })
	last := raw(1000)
	for _, stream := range []uint32{1, 3, 5} {
		last.begin(stream, 10*each)
		last.send(stream, each/2)
	}
	if code, text := last.answer(5); code != "8" || !strings.Contains(text, "uid 1000 has requests under way whose bytes are at the limit of 262144 (UserRequestBytes)") {
		t.Errorf("beyond the limit: %s, %q", code, text)
	}
	tn.underWay(1000, func(n int) bool { return n > limit-each && n <= limit+inFlightFree })
	if err := ask(1000); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "UserRequestBytes") {
		t.Errorf("another one of the user: %v", err)
	}
	for _, uid := range []uint32{1001, 0} {
		if err := ask(uid); status.Code(err) != codes.InvalidArgument {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
	// What is small passes: the user sees and ends what is there.
	uids <- 1000
	conn, err := api.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := api.NewNodeClient(conn).List(t.Context(), &api.ListRequest{}); err != nil {
		t.Errorf("a small call at the limit: %v", err)
	}
	// A call that is given up counts no more, nor a connection that ends.
	last.must(last.WriteRSTStream(3, http2.ErrCodeCancel))
	tn.underWay(1000, func(n int) bool { return n < 8*each })
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	for _, r := range slow {
		r.Close()
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
	if err := ask(1000); status.Code(err) != codes.InvalidArgument {
		t.Errorf("afterwards: %v", err)
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
}

// TestRefusedCallLeavesOthers: on a connection with a refused call the others go on.
func TestRefusedCallLeavesOthers(t *testing.T) {
	const limit = 1 << 20
	tn := start(t, t.TempDir(), func(c *Config) { c.PerUser.RequestBytes = limit })
	defer func() { tn.stop() }()
	socket := serveAs(t, tn, func() uint32 { return 1000 })
	conn, err := api.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := api.NewNodeClient(conn)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		_, err := client.Run(ctx, &api.RunRequest{Request: make([]byte, 2*limit)})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a request above the limit: %v", err)
		}
		if _, err := client.Run(ctx, &api.RunRequest{Request: make([]byte, limit/2)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("one below it, behind: %v", err)
		}
		cancel()
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
	if n := tn.clients.count(); n != 1 {
		t.Errorf("%d connections are there", n)
	}
}

// FuzzFrameWalk: frames are found however the bytes are cut, and no bytes do harm.
func FuzzFrameWalk(f *testing.F) {
	f.Add(refusalFrames(5, "why"), uint16(3))
	f.Add([]byte{0, 0, 4, 0, 1, 0, 0, 0, 1, 'd', 'a', 't', 'a', 0, 0, 0, 4, 1, 0, 0, 0, 0}, uint16(11))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		at := min(int(cut), len(b))
		var whole, parts []frameHead
		var w, v frameWalk
		w.walk(b, func(h frameHead) { whole = append(whole, h) })
		for _, p := range [][]byte{b[:at], b[at:]} {
			if n := v.left(); n < 1 {
				t.Fatalf("%d bytes are left", n)
			}
			v.walk(p, func(h frameHead) { parts = append(parts, h) })
		}
		if w != v || !slices.Equal(whole, parts) {
			t.Errorf("in one piece %v, %v; in two %v, %v", w, whole, v, parts)
		}
	})
}

func TestRefusalFrames(t *testing.T) {
	framer := http2.NewFramer(nil, bytes.NewReader(refusalFrames(7, "50 % of it")))
	framer.ReadMetaHeaders = hpack.NewDecoder(0, nil) // with no table
	f, err := framer.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	h, ok := f.(*http2.MetaHeadersFrame)
	if !ok || !h.StreamEnded() || h.StreamID != 7 || h.PseudoValue("status") != "200" {
		t.Errorf("the first frame is %v", f)
	}
	if f, err = framer.ReadFrame(); err != nil || f.Header().Type != http2.FrameRSTStream {
		t.Errorf("the second frame is %v: %v", f, err)
	}
}
