package node

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	prefaceBytes = len(http2.ClientPreface)
	headBytes    = 9 // of a frame (RFC 9113, 4.1)
)

// frameWalk finds the frames in the bytes that pass by. The zero value is between two
// frames.
type frameWalk struct {
	skip  int // bytes that come before the next frame's head
	head  [headBytes]byte
	have  int  // bytes of head
	block bool // a block of headers has begun and not ended: nothing may come between
}

// frameHead is what a frame says of itself.
type frameHead struct {
	bytes  int // without the head
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

// walk tells of each frame whose head ends in p.
func (w *frameWalk) walk(p []byte, tell func(frameHead)) {
	for len(p) > 0 {
		n, h, ok := w.next(p)
		if p = p[n:]; ok {
			tell(h)
		}
	}
}

// next goes to the end of the next head in p, which ok tells of, or to that of p.
func (w *frameWalk) next(p []byte) (n int, h frameHead, ok bool) {
	n = min(w.skip, len(p))
	w.skip -= n
	got := copy(w.head[w.have:], p[n:])
	w.have += got
	n += got
	if w.have < headBytes {
		return n, h, false
	}
	w.have = 0
	h = frameHead{
		bytes: int(w.head[0])<<16 | int(w.head[1])<<8 | int(w.head[2]),
		kind:  http2.FrameType(w.head[3]), flags: http2.Flags(w.head[4]),
		stream: binary.BigEndian.Uint32(w.head[5:]) &^ (1 << 31),
	}
	w.skip = h.bytes
	if h.kind == http2.FrameHeaders || h.kind == http2.FrameContinuation {
		w.block = !h.flags.Has(http2.FlagHeadersEndHeaders)
	}
	return n, h, true
}

// between tells whether another frame may be put in here.
func (w *frameWalk) between() bool { return w.skip == 0 && w.have == 0 && !w.block }
