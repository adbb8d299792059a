package stepnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"stepd/internal/wire"
)

// A frame on the wire is a length (4 bytes, big endian, of what follows), a kind
// (1 byte) and a body, of the fields of package wire. Numbers are 4 bytes.

type kind byte

const (
	kindPing       kind = iota + 1 // nothing else to say
	kindLost                       // to all: node, cause
	kindDone                       // up: all below are done
	kindOver                       // down: so are all
	kindGatherUp                   // name, nodes, problem, entries
	kindGatherDown                 // the same, with all entries
	kindCall                       // to, from, number, name, bytes
	kindReply                      // to, number, problem, bytes
	kindEnd                        // one beyond the last
)

// frame is one as it goes over the wire: the length and the kind in front. It
// is never changed: one frame goes out on many connections.
type frame []byte

const frameHead = 5

// encoder builds a frame.
type encoder struct{ wire.Writer }

func newFrame(k kind, size int) *encoder {
	e := &encoder{wire.Writer{B: make([]byte, frameHead, frameHead+size)}}
	e.B[4] = byte(k)
	return e
}

func (e *encoder) num(v int) *encoder      { e.U32(uint32(v)); return e }
func (e *encoder) str(s string) *encoder   { e.Str(s); return e }
func (e *encoder) bytes(b []byte) *encoder { e.Bytes(b); return e }

func (e *encoder) done() frame {
	binary.BigEndian.PutUint32(e.B, uint32(len(e.B)-4))
	return e.B
}

// errFrame is a frame that no stepd sends.
var errFrame = errors.New("a frame that makes no sense")

// decoder takes a body apart. Bytes share the frame's memory. After the first mistake it
// gives zero values, and end tells.
type decoder struct{ wire.Reader }

func newDecoder(body []byte) decoder { return decoder{wire.Reader{B: body}} }

func (d *decoder) num() int    { return int(int32(d.U32())) }
func (d *decoder) str() string { return string(d.Bytes()) }

// end is an error where the body was too short or too long.
func (d *decoder) end() error {
	if d.Err != nil || len(d.B) != 0 {
		return errFrame
	}
	return nil
}

// readFrame reads one frame of at most limit bytes of body. Its memory grows with
// what has come, not with what is promised.
func readFrame(r io.Reader, limit int) (kind, []byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:])) - 1
	k := kind(head[4])
	if n < 0 || n > limit || k == 0 || k >= kindEnd {
		return 0, nil, fmt.Errorf("%w: kind %d, %d bytes, at most %d", errFrame, k, n, limit)
	}
	const piece = 1 << 20
	body := make([]byte, min(n, piece))
	got := 0
	for {
		m, err := io.ReadFull(r, body[got:])
		got += m
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, err
		}
		if got == n {
			return k, body, nil
		}
		grown := make([]byte, min(n, 2*got))
		copy(grown, body)
		body = grown
	}
}

// part is what some nodes have given to a gathering.
type part struct {
	name, nodes string
	problem     string // why it has failed, "" has not
	entries     []entry
}

type entry struct {
	node int
	data []byte
}

func (p *part) frame(k kind) frame {
	size := 32 + len(p.name) + len(p.nodes) + len(p.problem)
	for _, e := range p.entries {
		size += 8 + len(e.data)
	}
	f := newFrame(k, size).str(p.name).str(p.nodes).str(p.problem).num(len(p.entries))
	for _, e := range p.entries {
		f.num(e.node).bytes(e.data)
	}
	return f.done()
}

func parsePart(body []byte) (*part, error) {
	d := newDecoder(body)
	p := &part{name: d.str(), nodes: d.str(), problem: d.str()}
	n := d.num()
	if n < 0 || n > len(d.B)/8 {
		return nil, errFrame
	}
	for range n {
		p.entries = append(p.entries, entry{d.num(), d.Bytes()})
	}
	return p, d.end()
}

// call is one question, or with reply its answer.
type call struct {
	to, from, number int
	name             string // of a call
	problem          string // of an answer
	data             []byte
}

func (c *call) frame(k kind) frame {
	f := newFrame(k, 32+len(c.name)+len(c.problem)+len(c.data)).num(c.to)
	if k == kindCall {
		return f.num(c.from).num(c.number).str(c.name).bytes(c.data).done()
	}
	return f.num(c.number).str(c.problem).bytes(c.data).done()
}

func parseCall(k kind, body []byte) (*call, error) {
	d := newDecoder(body)
	c := &call{to: d.num()}
	if k == kindCall {
		c.from, c.number, c.name = d.num(), d.num(), d.str()
	} else {
		c.number, c.problem = d.num(), d.str()
	}
	c.data = d.Bytes()
	return c, d.end()
}

func lostFrame(node int, cause string) frame {
	return newFrame(kindLost, 8+len(cause)).num(node).str(cause).done()
}

func parseLost(body []byte) (node int, cause string, err error) {
	d := newDecoder(body)
	node, cause = d.num(), d.str()
	return node, cause, d.end()
}

func plainFrame(k kind) frame { return newFrame(k, 0).done() }
