package node

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// inFlightFree is what the calls of one connection may have whatever the user's others
// have: who is at the limit still sees and ends what is there.
const inFlightFree = 4 << 10

// inFlight counts the bytes of the calls that are under way, by user: gRPC has them in
// memory from the first byte that comes to the answer.
type inFlight struct {
	most int

	mu     sync.Mutex
	byUser map[uint32]int // guarded by mu
}

// add counts n more bytes of uid. It returns false, and counts none, where they would be
// more than uid may have; free ones are counted in any case.
func (f *inFlight) add(uid uint32, n int, free bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !free && f.byUser[uid]+n > f.most {
		return false
	}
	f.byUser[uid] += n
	return true
}

func (f *inFlight) drop(uid uint32, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byUser[uid] -= n; f.byUser[uid] <= 0 {
		delete(f.byUser, uid)
	}
}

// requestConn counts the bytes of the calls on a connection while they pass, and answers a
// call with an error whose bytes would be too many. gRPC tells of a call when all of
// it has come, which is too late; so the frames of HTTP/2 are looked at here.
type requestConn struct {
	net.Conn
	uid      uint32
	inFlight *inFlight

	// Only Read has these.
	in       frameWalk
	newest   uint32   // stream
	refused  []uint32 // streams that gRPC is to be told have ended, before the next frame
	injected []byte   // what Read gives before anything that comes

	mu      sync.Mutex
	streams map[uint32]int // guarded by mu: bytes of each call; nil when closed
	all     int            // guarded by mu: their sum

	writing sync.Mutex
	out     frameWalk // guarded by writing
	owed    []byte    // guarded by writing: frames that wait for the end of another
}

func newRequestConn(c net.Conn, uid uint32, f *inFlight) *requestConn {
	return &requestConn{Conn: c, uid: uid, inFlight: f, in: frameWalk{skip: prefaceBytes}, streams: make(map[uint32]int)}
}

// Read gives what has come, and the ends of the calls that were refused.
func (c *requestConn) Read(p []byte) (int, error) {
	if len(c.refused) > 0 && c.in.between() {
		c.injected, c.refused = resets(c.refused, http2.ErrCodeCancel), nil
	}
	if len(c.injected) > 0 {
		n := copy(p, c.injected)
		c.injected = c.injected[n:]
		return n, nil
	}
	if len(c.refused) > 0 {
		p = p[:min(len(p), c.in.left())] // to the place where they may be told
	}
	n, err := c.Conn.Read(p)
	c.in.walk(p[:n], c.received)
	return n, err
}

// Write passes on what noded answers.
func (c *requestConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.Conn.Write(p)
	c.out.walk(p[:n], c.sent)
	if err == nil {
		err = c.settle()
	}
	return n, err
}

// settle writes what is owed as soon as that may be. c.writing is held.
func (c *requestConn) settle() error {
	if len(c.owed) == 0 || !c.out.between() {
		return nil
	}
	_, err := c.Conn.Write(c.owed)
	c.owed = nil
	return err
}

// Close closes the connection, and its calls with it.
func (c *requestConn) Close() error {
	c.mu.Lock()
	c.inFlight.drop(c.uid, c.all)
	c.streams, c.all = nil, 0
	c.mu.Unlock()
	return c.Conn.Close()
}

// received hears of a frame of the client's.
func (c *requestConn) received(h frameHead) {
	switch h.kind {
	case http2.FrameHeaders:
		if h.stream > c.newest {
			c.newest = h.stream
			c.begin(h.stream)
		}
	case http2.FrameData:
		if why := c.count(h.stream, h.bytes); why != "" {
			c.refused = append(c.refused, h.stream)
			// The client may not read, and what it has sent is to go all the same.
			// Ends with the connection.
			go c.refuse(h.stream, why)
		}
	case http2.FrameRSTStream:
		c.end(h.stream)
	}
}

// sent hears of a frame of ours.
func (c *requestConn) sent(h frameHead) {
	last := h.kind == http2.FrameHeaders || h.kind == http2.FrameData
	if h.kind == http2.FrameRSTStream || last && h.flags.Has(http2.FlagDataEndStream) {
		c.end(h.stream)
	}
}

func (c *requestConn) begin(stream uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams != nil {
		c.streams[stream] = 0
	}
}

// count adds n bytes to a call. It returns why that cannot be; the call is not counted
// any more then.
func (c *requestConn) count(stream uint32, n int) (why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have, ok := c.streams[stream]
	if !ok {
		return "" // it has ended, and gRPC drops them
	}
	if c.inFlight.add(c.uid, n, c.all+n <= inFlightFree) {
		c.streams[stream] += n
		c.all += n
		return ""
	}
	delete(c.streams, stream)
	c.all -= have
	c.inFlight.drop(c.uid, have)
	return fmt.Sprintf("uid %d has requests under way whose bytes are at the limit of %d (UserRequestBytes): wait until noded has answered the others", c.uid, c.inFlight.most)
}

func (c *requestConn) end(stream uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight.drop(c.uid, c.streams[stream])
	c.all -= c.streams[stream]
	delete(c.streams, stream)
}

// refuse answers a call. An error is the connection's end, of which Read hears.
func (c *requestConn) refuse(stream uint32, why string) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.owed = append(c.owed, refusalFrames(stream, why)...)
	_ = c.settle()
}

// refusalFrames are an answer of nothing but an error, with all that belongs to it: no
// part of the answers that gRPC itself compresses.
func refusalFrames(stream uint32, why string) []byte {
	var block, out bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":status", "200"}, {"content-type", "application/grpc"},
		{"grpc-status", strconv.Itoa(int(codes.ResourceExhausted))}, {"grpc-message", strings.ReplaceAll(why, "%", "%25")},
	} {
		// Sensitive: it does not enter the table of the connection, which is gRPC's. A
		// buffer takes everything.
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
	}
	_ = http2.NewFramer(&out, nil).WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	})
	// The rest of the call is not wanted (RFC 9113, 8.1).
	return append(out.Bytes(), resets([]uint32{stream}, http2.ErrCodeNo)...)
}

// resets are frames that end streams.
func resets(streams []uint32, code http2.ErrCode) []byte {
	var out bytes.Buffer
	framer := http2.NewFramer(&out, nil)
	for _, s := range streams {
		_ = framer.WriteRSTStream(s, code) // of a stream that a client has begun, into a buffer
	}
	return out.Bytes()
}

// bytes is what each user has under way.
func (f *inFlight) bytes() map[uint32]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.byUser)
}
