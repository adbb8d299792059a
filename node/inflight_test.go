package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

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

// block is a call of Run's headers.
func (r *rawClient) block() []byte {
	r.t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", api.Node_Run_FullMethodName}, {":authority", "noded"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		r.must(enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}))
	}
	return block.Bytes()
}

// begin begins a call of Run with a request of so many bytes, of which none is sent.
func (r *rawClient) begin(stream uint32, size int) {
	r.t.Helper()
	r.must(r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: r.block(), EndHeaders: true}))
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
	server := grpc.NewServer(append(clientLimits(), grpc.Creds(clientCredentials{uidCredentials{api.Credentials(), uid}, tn.clients}))...)
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
	const limit, each = 512 << 10, 32 << 10 // less than a window of HTTP/2, which is not asked for
	const begun = callBytes + 5 + frameBytes
	const slowOne, lastOne = begun + each + 2*frameBytes, begun + each/2 + frameBytes
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
	tn.underWay(1000, func(n int) bool { return n == 7*slowOne })
	last := raw(1000)
	for _, stream := range []uint32{1, 3, 5, 7, 9, 11} {
		last.begin(stream, 10*each)
		last.send(stream, each/2)
	}
	if code, text := last.answer(11); code != "8" || !strings.Contains(text, "uid 1000 has requests under way whose bytes are at the limit of 524288 (UserRequestBytes)") {
		t.Errorf("beyond the limit: %s, %q", code, text)
	}
	tn.underWay(1000, func(n int) bool { return n == 7*slowOne+5*lastOne })
	if err := ask(1000); api.CodeOf(err) != api.ResourceExhausted || !strings.Contains(err.Error(), "UserRequestBytes") {
		t.Errorf("another one of the user: %v", err)
	}
	for _, uid := range []uint32{1001, 0} {
		if err := ask(uid); api.CodeOf(err) != api.InvalidArgument {
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
	tn.underWay(1000, func(n int) bool { return n == 7*slowOne+4*lastOne })
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	for _, r := range slow {
		r.Close()
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
	if err := ask(1000); api.CodeOf(err) != api.InvalidArgument {
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
		if api.CodeOf(err) != api.ResourceExhausted {
			t.Errorf("a request above the limit: %v", err)
		}
		if _, err := client.Run(ctx, &api.RunRequest{Request: make([]byte, limit/2)}); api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("one below it, behind: %v", err)
		}
		cancel()
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
	if n := tn.clients.count(); n != 1 {
		t.Errorf("%d connections are there", n)
	}
}

// TestCallsCount: a call counts before it has sent anything of its request, with all that
// it says of itself; an end of nothing does not.
func TestCallsCount(t *testing.T) {
	const limit = 4 * callBytes
	tn := start(t, t.TempDir(), func(c *Config) { c.PerUser.RequestBytes = limit })
	defer func() { tn.stop() }()
	socket := serveAs(t, tn, func() uint32 { return 1000 })
	r := dialRaw(t, socket)
	block := r.block()
	for _, stream := range []uint32{1, 3, 5} {
		r.must(r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:10]}))
		r.must(r.WriteContinuation(stream, true, block[10:]))
	}
	tn.underWay(1000, func(n int) bool { return n == 3*(callBytes+len(block)-10) })
	r.must(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 7, BlockFragment: block[:10]}))
	r.must(r.WriteContinuation(7, true, block[10:]))
	if code, text := r.answer(7); code != "8" || !strings.Contains(text, "UserRequestBytes") {
		t.Errorf("one call too many: %s, %q", code, text)
	}
	// What others have for nothing puts the user above the limit.
	other := dialRaw(t, socket)
	other.begin(1, 100)
	tn.underWay(1000, func(n int) bool { return n > limit })
	r.must(r.WriteData(5, true, nil))
	if code, text := r.answer(5); code == "8" || code == "" {
		t.Errorf("the end of a call that was counted: %s, %q", code, text)
	}
}

// piecesConn gives what a client has sent in pieces, and takes every answer.
type piecesConn struct {
	net.Conn
	sent []byte
	most int // bytes of a piece
}

func (c *piecesConn) Read(p []byte) (int, error) {
	n := copy(p[:min(c.most, len(p))], c.sent)
	if c.sent = c.sent[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (c *piecesConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *piecesConn) Close() error                { return nil }

// fromPieces is what gRPC has of such a connection, on which nothing is free.
func fromPieces(t *testing.T, sent []byte, most, limit int) []byte {
	t.Helper()
	c := newRequestConn(&piecesConn{sent: sent, most: most}, 1000, &inFlight{most: limit, byUser: make(map[uint32]int)})
	c.all = inFlightFree
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestRefusedAndNotDone: of a call that is refused noded does nothing, though all of it may
// have come at once.
func TestRefusedAndNotDone(t *testing.T) {
	var sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	r := &rawClient{t, nil, http2.NewFramer(&sent, nil)}
	for _, stream := range []uint32{1, 3} {
		r.must(r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: r.block()[:10]}))
		r.must(r.WriteContinuation(stream, true, r.block()[10:]))
		r.must(r.WriteData(stream, true, make([]byte, 100)))
	}
	const refused = " HEADERS 1 CONTINUATION 1 RST_STREAM 1 DATA 1 HEADERS 3 CONTINUATION 3 RST_STREAM 3 DATA 3"
	for _, tc := range []struct {
		limit int
		want  string
	}{
		{1 << 20, strings.ReplaceAll(strings.ReplaceAll(refused, " RST_STREAM 1", ""), " RST_STREAM 3", "")},
		{callBytes + 200, refused}, // the request
		{callBytes + 1, refused},   // the rest of the headers
		{callBytes - 1, refused},   // the call
	} {
		for _, cut := range []int{1, 5, 40, sent.Len()} {
			var got string
			framer := http2.NewFramer(nil, bytes.NewReader(fromPieces(t, sent.Bytes(), cut, tc.limit)[prefaceBytes:]))
			for {
				f, err := framer.ReadFrame()
				if errors.Is(err, io.EOF) {
					break
				}
				r.must(err)
				got += fmt.Sprintf(" %v %d", f.Header().Type, f.Header().StreamID)
			}
			if got != tc.want {
				t.Errorf("a limit of %d, %d bytes at a time:%s; want%s", tc.limit, cut, got, tc.want)
			}
		}
	}
}

// TestRefusalsUnread: who does not read that he is refused costs noded nothing for it.
func TestRefusalsUnread(t *testing.T) {
	tn := start(t, t.TempDir(), func(c *Config) { c.PerUser.RequestBytes = 60 << 10 })
	defer func() { tn.stop() }()
	socket := serveAs(t, tn, func() uint32 { return 1000 })
	r := dialRaw(t, socket)
	r.begin(1, 1<<20)
	r.send(1, 32<<10)
	tn.underWay(1000, func(n int) bool { return n > inFlightFree })
	before, most := runtime.NumGoroutine(), 0
	block := r.block()
	for stream := uint32(3); stream < 20_000; stream += 2 {
		err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndHeaders: true})
		if err == nil {
			err = r.WriteData(stream, false, make([]byte, 5))
		}
		most = max(most, runtime.NumGoroutine()-before)
		if err != nil {
			break // it was closed
		}
		if stream > 19_990 {
			t.Error("10,000 calls were refused, and the connection is there")
		}
	}
	if most > 2*callsMax {
		t.Errorf("%d goroutines more", most)
	}
	tn.underWay(1000, func(n int) bool { return n == 0 })
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
			v.walk(p, func(h frameHead) { parts = append(parts, h) })
		}
		if w != v || !slices.Equal(whole, parts) {
			t.Errorf("in one piece %v, %v; in two %v, %v", w, whole, v, parts)
		}
	})
}

// FuzzRequestConn: what comes goes on unchanged however it is cut, but for a head whose
// rest has not come; to what is refused nothing but ends of calls are added.
func FuzzRequestConn(f *testing.F) {
	f.Add(refusalFrames(5, "why"), uint16(3))
	f.Add([]byte{0, 0, 1, 1, 4, 0, 0, 0, 1, 'h', 0, 0, 4, 0, 1, 0, 0, 0, 1, 'd', 'a', 't', 'a', 0, 0, 0, 4}, uint16(11))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		b = append([]byte(http2.ClientPreface), b...)
		w := frameWalk{skip: prefaceBytes}
		w.walk(b, func(frameHead) {})
		want := b[:len(b)-w.have]
		if got := fromPieces(t, b, int(cut)+1, 1<<40); !bytes.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := fromPieces(t, b, int(cut)+1, 0); (len(got)-len(want))%(headBytes+4) != 0 {
			t.Errorf("got %q of %q", got, want)
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
