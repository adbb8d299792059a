package replay

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"
)

// Head begins a kept output.
type Head struct {
	Schema int `json:"schema"`
	// Terminal: the bytes are a terminal's, with its control sequences.
	Terminal bool `json:"terminal"`
	// Bytes are as many as were written, of which the first Skipped are not kept.
	Bytes   int64 `json:"bytes"`
	Skipped int64 `json:"skipped"`
}

// keptSchema is the version of a kept output: a line of JSON (Head), then records of
// u32 length, little endian, and as many bytes, which are a Frame.
const keptSchema = 1

// WriteKept writes what the ring keeps. modes are a terminal's where the ring
// begins, nil where there is none.
func WriteKept(w io.Writer, r *Ring, modes *Modes) error {
	out := bufio.NewWriterSize(w, 32<<10)
	head, err := json.Marshal(Head{Schema: keptSchema, Terminal: modes != nil, Bytes: r.End(), Skipped: r.First()})
	if err != nil {
		return fmt.Errorf("cannot encode the head: %w", err)
	}
	out.Write(append(head, '\n'))
	packet := make([]byte, 0, FrameHead+FrameMax)
	put := func(p Piece) {
		f := Frame{Kind: KindOutput, Piece: p}
		packet = f.Append(packet[:0])
		out.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(packet))))
		out.Write(packet)
	}
	if modes != nil && modes.Set() != "" {
		put(Piece{FD: 1, Data: []byte(modes.Set())})
	}
	buf := make([]byte, FrameMax)
	for pos := r.First(); ; {
		p, next, _ := r.Read(pos, buf)
		if len(p.Data) == 0 {
			return out.Flush() // returns the first error of all writes
		}
		put(p)
		pos = next
	}
}

// headMax bounds the line of a Head.
const headMax = 4 << 10

// ReadKept hands each piece of a kept output to each; the data is valid until that
// returns. It reads what others may have cut short.
func ReadKept(r io.Reader, each func(Piece) error) (Head, error) {
	var h Head
	in := bufio.NewReaderSize(r, headMax)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return h, fmt.Errorf("cannot read the head of a kept output: %w", err)
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, fmt.Errorf("cannot parse the head of a kept output: %w", err)
	}
	if h.Schema != keptSchema {
		return h, fmt.Errorf("cannot read a kept output of schema %d: this program knows %d", h.Schema, keptSchema)
	}
	var length [4]byte
	packet := make([]byte, FrameHead+FrameMax)
	for {
		if _, err := io.ReadFull(in, length[:]); errors.Is(err, io.EOF) {
			return h, nil
		} else if err != nil {
			return h, fmt.Errorf("a kept output is cut short: %w", err)
		}
		n := binary.LittleEndian.Uint32(length[:])
		if n > FrameHead+FrameMax {
			return h, fmt.Errorf("a record of a kept output has %d bytes: the limit is %d", n, FrameHead+FrameMax)
		}
		if _, err := io.ReadFull(in, packet[:n]); err != nil {
			return h, fmt.Errorf("a kept output is cut short: %w", err)
		}
		f, err := Parse(packet[:n])
		if err != nil {
			return h, fmt.Errorf("cannot read a kept output: %w", err)
		}
		if f.Kind == KindOutput {
			if err := each(f.Piece); err != nil {
				return h, err
			}
		}
	}
}

// Kind says what a frame is.
type Kind byte

// Frames go over a SOCK_SEQPACKET pair, one a packet, and are the records of a kept
// output.
const (
	// From stepd: KindOutput is a piece of what a rank wrote; KindGap says that N bytes
	// are missing here; KindEnd that nothing follows.
	KindOutput Kind = 'o'
	KindGap    Kind = 'g'
	KindEnd    Kind = 'e'
	// To stepd: KindInput is typed into the terminal, KindSize is the window's size.
	KindInput Kind = 'i'
	KindSize  Kind = 'w'
)

// FrameMax bounds a frame's data, and FrameHead is what is before it.
const (
	FrameMax  = 16 << 10
	FrameHead = 6
)

// Frame is one of them; which fields count depends on Kind.
type Frame struct {
	Kind Kind
	Piece
	N uint64 // of a gap
	// Rows and Cols are the window's; Redraw asks the programs in it to draw it anew.
	Rows, Cols uint16
	Redraw     bool
}

// Append encodes the frame behind b.
func (f *Frame) Append(b []byte) []byte {
	b = append(b, byte(f.Kind))
	switch f.Kind {
	case KindOutput:
		b = append(b, byte(f.FD))
		b = binary.LittleEndian.AppendUint32(b, uint32(f.Rank))
		b = append(b, f.Data...)
	case KindInput:
		b = append(b, f.Data...)
	case KindGap:
		b = binary.LittleEndian.AppendUint64(b, f.N)
	case KindSize:
		b = binary.LittleEndian.AppendUint16(b, f.Rows)
		b = binary.LittleEndian.AppendUint16(b, f.Cols)
		redraw := byte(0)
		if f.Redraw {
			redraw = 1
		}
		b = append(b, redraw)
	}
	return b
}

var errShort = errors.New("a frame is too short")

// Parse decodes a packet; Data stays part of b.
func Parse(b []byte) (f Frame, err error) {
	if len(b) == 0 {
		return f, errShort
	}
	f.Kind, b = Kind(b[0]), b[1:]
	switch f.Kind {
	case KindOutput:
		if len(b) < FrameHead-1 {
			return f, errShort
		}
		f.FD, f.Rank, f.Data = int(b[0]), int(int32(binary.LittleEndian.Uint32(b[1:]))), b[5:]
		if f.FD != 1 && f.FD != 2 || f.Rank < -1 {
			return f, fmt.Errorf("a frame is of stream %d of rank %d", f.FD, f.Rank)
		}
	case KindInput:
		f.Data = b
	case KindGap:
		if len(b) != 8 {
			return f, errShort
		}
		f.N = binary.LittleEndian.Uint64(b)
	case KindSize:
		if len(b) != 5 {
			return f, errShort
		}
		f.Rows, f.Cols = binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:])
		f.Redraw = b[4] != 0
	case KindEnd:
	default:
		return f, fmt.Errorf("a frame is of unknown kind %d", f.Kind)
	}
	return f, nil
}

// ErrCut is the end of a connection without a KindEnd: stepd is gone, or was not waited for.
var ErrCut = errors.New("the connection has ended before the output")

// Frames yields the frames that stepd sends, a packet each, up to its KindEnd, which it leaves
// out. An error is the last pair: ErrCut, or that a frame cannot be parsed. A frame's Data is
// valid until the next one.
func Frames(conn io.Reader) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		buf := make([]byte, FrameHead+FrameMax)
		for {
			n, err := conn.Read(buf)
			if err != nil || n == 0 {
				yield(Frame{}, ErrCut)
				return
			}
			f, err := Parse(buf[:n])
			if err == nil && f.Kind == KindEnd || !yield(f, err) || err != nil {
				return
			}
		}
	}
}

// Piece is a part of what one rank wrote to one of its streams.
type Piece struct {
	FD   int // 1 or 2
	Rank int // -1 where all ranks share the stream
	Data []byte
}

// Ring keeps the last bytes of a step's output, of all ranks and both streams in the
// order in which they came. Bytes have positions, which count from the first one that
// was ever added. Memory grows with what is added, to the limit and half of it more
// for who wrote what, and bytes in it are never moved: to add takes as long as the
// data is, however large the ring. The zero value keeps nothing; its methods need a lock
// of the caller's.
type Ring struct {
	limit  int
	first  int64    // position of the oldest byte
	end    int64    // position behind the newest
	blocks []*block // one behind the other; the first one has the oldest byte
	spare  *block   // one that has been read out, for the next
	segs   int      // of all blocks
	// Evicted is called with the bytes that are forgotten, in their order; nil: no call.
	// They are the ring's.
	Evicted func(fd, rank int, data []byte)
}

// block is a part of the ring.
type block struct {
	at   int64     // position of data
	data []byte    // of blockSize at the most
	segs []segment // the first one begins with data, or before it
}

// segment is a run of bytes of one stream; it ends where the next one begins, or the
// block.
type segment struct {
	at       int64
	fd, rank int32
}

const (
	// blockSize is what a block holds; the first one begins with blockStart.
	blockSize, blockStart = 16 << 10, 4 << 10
	// segmentCost is how many bytes of the limit one segment stands for: a rank that
	// writes single bytes in turn with another must not fill memory with segments.
	segmentCost = 32
	// segmentsMin is how many segments there may be in any case.
	segmentsMin = 16
)

// NewRing makes a ring that keeps the last limit bytes.
func NewRing(limit int) *Ring { return &Ring{limit: max(limit, 0)} }

// Limit is how many bytes are kept at most.
func (r *Ring) Limit() int { return r.limit }

// First is the position of the oldest byte that is kept, End the one behind the newest.
func (r *Ring) First() int64 { return r.first }

// End is the position behind the newest byte.
func (r *Ring) End() int64 { return r.end }

// Add appends what rank wrote on fd; data stays the caller's.
func (r *Ring) Add(fd, rank int, data []byte) {
	for len(data) > 0 {
		b := r.room()
		n := min(len(data), blockSize-len(b.data))
		if last := len(b.segs) - 1; last < 0 || b.segs[last].fd != int32(fd) || b.segs[last].rank != int32(rank) {
			if r.first == r.end { // nothing is left of the one in place
				r.segs -= len(b.segs)
				b.segs = b.segs[:0]
			}
			b.segs = append(b.segs, segment{r.end, int32(fd), int32(rank)})
			r.segs++
		}
		b.data = append(b.data, data[:n]...)
		r.end += int64(n)
		r.evict(r.end - int64(r.limit))
		data = data[n:]
	}
	for r.segs > r.limit/segmentCost+segmentsMin {
		r.evictSegment()
	}
}

// room is the last block, which has room.
func (r *Ring) room() *block {
	if n := len(r.blocks); n > 0 && len(r.blocks[n-1].data) < blockSize {
		return r.blocks[n-1]
	}
	b := r.spare
	r.spare = nil
	if b == nil {
		size := blockSize
		if len(r.blocks) == 0 {
			size = blockStart
		}
		b = &block{data: make([]byte, 0, size)}
	}
	b.at = r.end
	r.blocks = append(r.blocks, b)
	return b
}

// evict forgets what is before a position.
func (r *Ring) evict(to int64) {
	for r.first < to {
		b := r.blocks[0]
		end := min(to, b.at+int64(len(b.data)))
		if len(b.segs) > 1 {
			end = min(end, b.segs[1].at)
		}
		if r.Evicted != nil {
			r.Evicted(int(b.segs[0].fd), int(b.segs[0].rank), b.data[r.first-b.at:end-b.at])
		}
		r.first = end
		switch {
		case end == b.at+int64(len(b.data)) && len(b.data) == blockSize:
			r.segs -= len(b.segs)
			r.blocks[0] = nil
			r.blocks = r.blocks[1:] // append moves what is left, once in as many
			*b = block{data: b.data[:0]}
			r.spare = b
		case len(b.segs) > 1 && end == b.segs[1].at:
			r.segs--
			b.segs = b.segs[1:]
		}
	}
}

// evictSegment forgets the oldest segment.
func (r *Ring) evictSegment() {
	b := r.blocks[0]
	if len(b.segs) > 1 {
		r.evict(b.segs[1].at)
		return
	}
	r.evict(b.at + int64(len(b.data)))
}

// Read copies what is kept at pos into buf, of one stream: next is where to go on, and
// skipped counts the bytes before it that are forgotten. A piece without data is the
// end.
func (r *Ring) Read(pos int64, buf []byte) (p Piece, next, skipped int64) {
	if pos < r.first {
		skipped, pos = r.first-pos, r.first
	}
	if pos >= r.end {
		return Piece{}, pos, skipped
	}
	for i := r.blockOf(pos); i < len(r.blocks) && len(p.Data) < len(buf); i++ {
		b := r.blocks[i]
		s := sort.Search(len(b.segs), func(i int) bool { return b.segs[i].at > pos }) - 1
		seg, end := b.segs[s], b.at+int64(len(b.data))
		if len(p.Data) > 0 && (p.FD != int(seg.fd) || p.Rank != int(seg.rank)) {
			break
		}
		whole := s+1 == len(b.segs)
		if !whole {
			end = b.segs[s+1].at
		}
		at := len(p.Data)
		n := copy(buf[at:], b.data[pos-b.at:end-b.at])
		p = Piece{FD: int(seg.fd), Rank: int(seg.rank), Data: buf[:at+n]}
		pos += int64(n)
		if !whole {
			break
		}
	}
	return p, pos, skipped
}

// blockOf is the place of the block that has a position, which is kept.
func (r *Ring) blockOf(pos int64) int {
	// All but the last are full.
	return int((pos - r.blocks[0].at) / blockSize)
}
