package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
)

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
