package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"

	"stepd/api"
	"stepd/step"
)

const (
	// callBytes is what a request costs whatever it has: its connection's buffers and
	// goroutines.
	callBytes = 16 << 10
	// callFree is what each request may have whatever the user's others have: a user at
	// the limit still sees and ends existing steps.
	callFree = callBytes + 8<<10
	// idBytes is the size of a step.ID.
	idBytes = 8
	// bodyFirst is what is made ready for a body at first. pieceMax is how much of a reply
	// is written at a time.
	bodyFirst = 4 << 10
	pieceMax  = 64 << 10
)

// call is one request and its reply.
type call struct {
	s       *Server
	w       http.ResponseWriter
	r       *http.Request
	control *http.ResponseController
	ctx     context.Context // ends with the connection
	peer    api.Peer
	payer   uint32    // the user for whom bytes are counted: see payerOf
	ids     []step.ID // the steps that the request names, where it is their owner's
	counted int       // bytes of the user's that the request has
	// bodyBytes is the size of the request's document.
	bodyBytes int
	paced     bool          // vain has counted the request
	waited    time.Duration // in vain
	lines     bool          // the head of a reply of several documents is written
	whole     bool          // the reply is written
}

func newCall(s *Server, w http.ResponseWriter, r *http.Request, p api.Peer, payer uint32) *call {
	return &call{s: s, w: w, r: r, peer: p, payer: payer, ctx: r.Context(), control: http.NewResponseController(w)}
}

// count adds n bytes to what the user's requests have under way, and to *sum.
func (c *call) count(n int, sum *int) error {
	most := c.s.clients.inFlight.most
	limit := most
	if c.counted+n <= callFree {
		limit = math.MaxInt
	}
	if _, ok := c.s.clients.inFlight.add(c.payer, n, limit); !ok {
		return api.Errorf(api.ResourceExhausted, "uid %d has requests under way whose bytes are at the limit of %d (UserRequestBytes): wait until noded has answered the others", c.peer.UID, most)
	}
	*sum += n
	return nil
}

func (c *call) uncount(sum *int) { c.s.clients.inFlight.drop(c.payer, *sum) }

// body reads the request's document. It is counted before it is read.
func (c *call) body() ([]byte, error) {
	if n := c.r.ContentLength; n > api.RequestMax {
		return nil, api.TooLarge(n)
	}
	// The deadline ends with the body: net/http reads on, to see the client go.
	_ = c.control.SetReadDeadline(time.Now().Add(bodyTime)) // of a unix socket
	var b []byte
	for {
		if len(b) == cap(b) {
			room := min(max(bodyFirst, 2*cap(b)), api.RequestMax+1)
			if n := int(c.r.ContentLength); n >= len(b) {
				room = min(room, n+1) // one more, to see the end
			}
			if err := c.count(room-cap(b), &c.counted); err != nil {
				return nil, err
			}
			b = append(make([]byte, 0, room), b...)
		}
		n, err := c.r.Body.Read(b[len(b):cap(b)])
		if b = b[:len(b)+n]; len(b) > api.RequestMax {
			return nil, api.TooLarge(int64(len(b)))
		}
		if errors.Is(err, io.EOF) {
			_ = c.control.SetReadDeadline(time.Time{}) // as above
			return b, nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, api.Errorf(api.DeadlineExceeded, "the request did not come within %v", bodyTime)
		}
		if err != nil {
			return nil, api.Errorf(api.Canceled, "cannot read the request: %v", err)
		}
	}
}

// decode reads the request's document. What it has that noded does not know is refused by
// name: it must not be dropped silently by an older noded.
func (c *call) decode(in interface{ Version() int }) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	if err := api.Decode(body, in); err != nil {
		return api.Errorf(api.InvalidArgument, "cannot parse request: %v", err)
	}
	if v := in.Version(); v != api.Schema {
		return api.Errorf(api.InvalidArgument, "schema: is %d, want %d", v, api.Schema)
	}
	c.bodyBytes = len(body)
	return nil
}

// record writes the next record of a reply. load returns it, or nil where there is
// none any more; it is called when it is the user's turn to have one more in memory.
func (c *call) record(load func() (*step.Record, error)) error {
	return c.line("step", func() ([]byte, error) {
		rec, err := load()
		if rec == nil || err != nil {
			return nil, err
		}
		return encode(rec)
	})
}

// event writes an event, which is JSON already.
func (c *call) event(doc []byte) error {
	return c.line("event", func() ([]byte, error) { return doc, nil })
}

// line writes {"key": document}. The documents of one user are made one at a time, and
// count until they are written.
func (c *call) line(key string, document func() ([]byte, error)) error {
	var counted int
	doc, err := func() ([]byte, error) {
		defer c.s.clients.inFlight.turn(c.payer)()
		doc, err := document()
		if doc == nil || err != nil {
			return nil, err
		}
		return doc, c.count(len(doc), &counted)
	}()
	if doc == nil || err != nil {
		return err
	}
	defer c.uncount(&counted)
	if err := c.beginLines(); err != nil {
		return err
	}
	for _, part := range [][]byte{[]byte(`{"` + key + `":`), doc, []byte("}\n")} {
		if err := c.write(part); err != nil {
			return err
		}
	}
	return c.flush()
}

// beginLines writes the head of a reply of several documents, once.
func (c *call) beginLines() error {
	if c.lines {
		return nil
	}
	c.lines = true
	c.head("application/jsonl")
	c.w.WriteHeader(http.StatusOK)
	return c.flush()
}

// end writes the last line: without it a client knows that the reply was cut off.
func (c *call) end() error {
	if err := c.beginLines(); err != nil {
		return err
	}
	c.whole = true
	return c.write(fmt.Appendf(nil, `{"schema":%d,"end":true}`+"\n", api.Schema))
}

// reply writes a reply of one document.
func (c *call) reply(out any) error {
	doc, err := encode(out)
	if err != nil {
		return err
	}
	if err := c.count(len(doc), &c.counted); err != nil {
		return err
	}
	c.document(http.StatusOK, append(doc, '\n'))
	return nil
}

// document writes a whole reply. An error is the connection's end.
func (c *call) document(status int, doc []byte) {
	c.whole = true
	c.head("application/json")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(doc)))
	c.w.WriteHeader(status)
	_ = c.write(doc) // it is logged where the client does not read
}

func (c *call) head(contentType string) {
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set(api.VersionHeader, strconv.Itoa(api.Schema))
	h["Date"] = nil // the client has the same clock
}

// file writes a file's first size bytes as the reply.
func (c *call) file(f io.Reader, size int64) error {
	c.whole = true
	c.head("application/octet-stream")
	c.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	buf := make([]byte, pieceMax)
	for size > 0 {
		n, err := f.Read(buf[:min(size, pieceMax)])
		if err := c.write(buf[:n]); err != nil {
			return err
		}
		size -= int64(n)
		if err != nil { // the client sees by the length that the rest is missing
			return api.Errorf(api.Internal, "cannot read kept output: %v", err)
		}
	}
	return nil
}

// vain waits where the user has too many requests that came to nothing, whether the client is still
// there or not: its connection counts so long. A request waits once.
func (c *call) vain() {
	if c.paced {
		return
	}
	c.paced = true
	begin := time.Now()
	if wait := c.s.pace.next(c.payer, begin); wait > 0 {
		select {
		case <-time.After(wait):
		case <-c.s.stopping:
		}
		c.waited = time.Since(begin)
	}
}

// refuse answers a request that is not served, and of which nothing more is read.
func (c *call) refuse(err error) {
	c.vain()
	c.w.Header().Set("Connection", "close")
	e := asError(err)
	doc, err := json.Marshal(api.Refusal{Envelope: api.Envelope{Schema: api.Schema}, Error: e})
	if err != nil { // of words and a code
		panic(err)
	}
	c.document(e.Code.HTTPStatus(), append(doc, '\n'))
}

// asError is err as the client gets it.
func asError(err error) *api.Error {
	if e, ok := api.AsError(err); ok {
		return e
	}
	return &api.Error{Code: api.Internal, Message: err.Error()}
}

// finish ends a reply with the error of its request.
func (c *call) finish(name string, err error) {
	if err == nil {
		return
	}
	switch {
	case errors.Is(err, errUnread):
		c.s.logRefused(c.payer, c.peer.UID, "%s: the client has not read its reply for %v: its connection is closed", name, c.s.replyTime)
		panic(http.ErrAbortHandler)
	case c.whole, errors.Is(err, errHungUp):
		panic(http.ErrAbortHandler) // the client must not take it for complete
	case !c.lines:
		c.refuse(err)
	default:
		if doc, merr := json.Marshal(api.Line{Schema: api.Schema, Error: asError(err)}); merr == nil {
			_ = c.write(append(doc, '\n')) // or the client sees that there is no end
		}
	}
}

var (
	// errUnread is that a client does not read its reply, errHungUp that it has gone.
	errUnread = api.NewError(api.DeadlineExceeded, "the client does not read its reply")
	errHungUp = api.NewError(api.Canceled, "the client has gone")
)

// write writes a part of the reply, with a deadline for each piece.
func (c *call) write(p []byte) error {
	for len(p) > 0 {
		piece := p[:min(len(p), pieceMax)]
		p = p[len(piece):]
		_ = c.control.SetWriteDeadline(time.Now().Add(c.s.replyTime)) // of a unix socket
		if _, err := c.w.Write(piece); err != nil {
			return lost(err)
		}
	}
	return nil
}

func (c *call) flush() error {
	if err := c.control.Flush(); err != nil {
		return lost(err)
	}
	return nil
}

// lost is the error of a reply that cannot be written.
func lost(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errUnread
	}
	return errHungUp
}
