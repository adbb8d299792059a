package replay

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
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
