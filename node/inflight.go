package node

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

const (
	// callsMax is how many calls a connection may have at a time, and headersMax what
	// one may say of itself: a call of ours has 500 bytes.
	callsMax   = 128
	headersMax = 2 << 10
	// callBytes is what a call costs whatever its request has: noded has from 11 to 17 KiB
	// of memory for one whose headers are as large as they may be.
	callBytes = 16 << 10
	// frameBytes is what a frame of a request costs besides its bytes: one may have one.
	frameBytes = 64
	// inFlightFree is what the calls of one connection may have whatever the user's others
	// have, two small ones at a time: who is at the limit still sees and ends what is there.
	inFlightFree = 2 * (callBytes + 4<<10)
	// owedMax is how many refusals a client may leave unread. Until he knows of one it
	// counts against callsMax for him.
	owedMax = 4 * callsMax
	// toldAtOnce is how many of them are written at a time.
	toldAtOnce = 32
)

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
	in      frameWalk
	newest  uint32   // stream
	refused []uint32 // streams that gRPC is to be told have ended, before the next frame
	ready   []byte   // what Read gives before anything that comes

	mu      sync.Mutex
	streams map[uint32]int // guarded by mu: bytes of each call; nil when closed
	all     int            // guarded by mu: their sum

	owing   sync.Mutex
	owed    []uint32 // guarded by owing: refused streams that the client is to be told of
	telling bool     // guarded by owing: tell runs

	writing sync.Mutex
	out     frameWalk // guarded by writing
}

func newRequestConn(c net.Conn, uid uint32, f *inFlight) *requestConn {
	return &requestConn{Conn: c, uid: uid, inFlight: f, in: frameWalk{skip: prefaceBytes}, streams: make(map[uint32]int)}
}

// Read gives what has come, and the ends of the calls that were refused.
func (c *requestConn) Read(p []byte) (int, error) {
	for {
		if n := copy(p, c.ready); n > 0 {
			if c.ready = c.ready[n:]; len(c.ready) == 0 {
				c.ready = nil
			}
			return n, nil
		}
		n, err := c.Conn.Read(p)
		if n = c.sift(p[:n]); n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// sift returns how much of p, which has come, gRPC may have at once; else what it is to
// have is ready. It gets no part of a frame's head, and before a request's frame that is
// too much it gets the end of the call: so of what is refused nothing is ever done.
func (c *requestConn) sift(p []byte) int {
	b := p
	if c.in.have > 0 {
		b = slices.Concat(c.in.head[:c.in.have], p)
		c.in.have = 0
	}
	var out []byte
	from := 0
	end := func(at int) {
		if len(c.refused) > 0 {
			out = append(append(out, b[from:at]...), resets(c.refused, http2.ErrCodeCancel)...)
			from, c.refused = at, nil
		}
	}
	for at := 0; at < len(b); {
		within := c.in.block
		n, h, ok := c.in.next(b[at:])
		if at += n; !ok {
			continue
		}
		if !within {
			end(at - headBytes)
		}
		if !c.received(h) {
			c.refused = append(c.refused, h.stream)
			c.refuse(h.stream)
			if h.kind == http2.FrameData && !within {
				end(at - headBytes)
			} // else gRPC is to know the call first
		}
	}
	whole := len(b) - c.in.have
	if c.in.skip == 0 && !c.in.block {
		end(whole)
	}
	if out == nil && len(b) == len(p) {
		return whole
	}
	c.ready = append(out, b[from:whole]...)
	return 0
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

// refuse has the client told that a call was refused. Who does not hear of it is closed.
func (c *requestConn) refuse(stream uint32) {
	c.owing.Lock()
	defer c.owing.Unlock()
	c.owed = append(c.owed, stream)
	if len(c.owed) > owedMax {
		c.Conn.Close() // Read hears of it
		return
	}
	if !c.telling {
		c.telling = true
		// The client may not read, and what it has sent is to go all the same.
		// Ends with the connection.
		go c.tell()
	}
}

// tell writes what is owed, or leaves it to a Write that has begun a frame. An error is
// the connection's end, of which Read hears.
func (c *requestConn) tell() {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		err := c.settle()
		c.owing.Lock()
		if err != nil || len(c.owed) == 0 || !c.out.between() {
			c.telling = false
			c.owing.Unlock()
			return
		}
		c.owing.Unlock()
	}
}

// settle writes what is owed as soon as that may be. c.writing is held.
func (c *requestConn) settle() error {
	for c.out.between() {
		c.owing.Lock()
		now := slices.Clone(c.owed[:min(len(c.owed), toldAtOnce)])
		c.owed = c.owed[len(now):]
		c.owing.Unlock()
		if len(now) == 0 {
			return nil
		}
		why := fmt.Sprintf("uid %d has requests under way whose bytes are at the limit of %d (UserRequestBytes): wait until noded has answered the others", c.uid, c.inFlight.most)
		var frames []byte
		for _, stream := range now {
			frames = append(frames, refusalFrames(stream, why)...)
		}
		if _, err := c.Conn.Write(frames); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the connection, and its calls with it.
func (c *requestConn) Close() error {
	c.mu.Lock()
	c.inFlight.drop(c.uid, c.all)
	c.streams, c.all = nil, 0
	c.mu.Unlock()
	return c.Conn.Close()
}

// received hears of a frame of the client's, and tells whether its call may go on.
func (c *requestConn) received(h frameHead) bool {
	switch h.kind {
	case http2.FrameHeaders:
		if h.stream > c.newest {
			c.newest = h.stream
			c.begin(h.stream)
			return c.count(h.stream, max(h.bytes, callBytes))
		}
	case http2.FrameContinuation:
		return c.count(h.stream, h.bytes)
	case http2.FrameData:
		if h.bytes > 0 {
			return c.count(h.stream, h.bytes+frameBytes)
		}
	case http2.FrameRSTStream:
		c.end(h.stream)
	}
	return true
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

// count adds n bytes to a call, and tells whether that may be; if not, the call is not
// counted any more.
func (c *requestConn) count(stream uint32, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	have, ok := c.streams[stream]
	if !ok {
		return true // it has ended, and gRPC drops them
	}
	if c.inFlight.add(c.uid, n, c.all+n <= inFlightFree) {
		c.streams[stream] += n
		c.all += n
		return true
	}
	delete(c.streams, stream)
	c.all -= have
	c.inFlight.drop(c.uid, have)
	return false
}

func (c *requestConn) end(stream uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight.drop(c.uid, c.streams[stream])
	c.all -= c.streams[stream]
	delete(c.streams, stream)
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
