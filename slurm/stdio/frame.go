package stdio

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"stepd/slurm/wire"
)

// kind is the type of a frame.
type kind uint16

const (
	stdinOne kind = iota // for one task
	stdout
	stderr
	stdinAll // for every task that reads srun's input
	test     // srun asks whether this daemon lives
)

const (
	headerSize = 10
	// dataMax is the most that a frame to srun carries: srun's buffers hold no more.
	dataMax = 1024
	// inputMax is the most that a frame from srun may carry. srun sends up to dataMax.
	inputMax = 64 << 10
)

// header stands before the data of a frame. A frame without data ends its stream.
type header struct {
	kind        kind
	rank, local uint16 // of the task, as many bits as fit
	size        uint32 // of the data
}

func (h header) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(h.kind))
	b = binary.BigEndian.AppendUint16(b, h.rank)
	b = binary.BigEndian.AppendUint16(b, h.local)
	return binary.BigEndian.AppendUint32(b, h.size)
}

// nextFrame reads the first frame of b, a whole one; ok is false where b has none yet. The
// error names what srun does not send.
func nextFrame(b []byte) (h header, data []byte, ok bool, err error) {
	if len(b) < headerSize {
		return header{}, nil, false, nil
	}
	h = header{
		kind(binary.BigEndian.Uint16(b)), binary.BigEndian.Uint16(b[2:]),
		binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint32(b[6:]),
	}
	switch {
	case h.kind != stdinOne && h.kind != stdinAll && h.kind != test:
		return h, nil, false, fmt.Errorf("a frame of type %d, which a step daemon does not receive", h.kind)
	case h.kind == test && h.size > 0:
		return h, nil, false, fmt.Errorf("a connection test of %d bytes, which has none", h.size)
	case h.size > inputMax:
		return h, nil, false, fmt.Errorf("a frame of %d bytes, and %d is the limit", h.size, inputMax)
	case len(b)-headerSize < int(h.size):
		return h, nil, false, nil
	}
	return h, b[headerSize : headerSize+int(h.size)], true, nil
}

// appendFrames adds data as frames of a stream; h's size does not count. By lines, a frame
// has whole lines, or a piece of one that is longer than a frame, and the beginning of a line
// is not sent: rest is what is left, dataMax bytes at most.
func appendFrames(out []byte, h header, data []byte, byLines bool) (frames, rest []byte) {
	for len(data) > 0 {
		n := min(len(data), dataMax)
		if byLines {
			if bytes.IndexByte(data[:n], '\n') >= 0 { // the faster one: most pieces of binary data have none
				n = bytes.LastIndexByte(data[:n], '\n') + 1
			} else if len(data) <= dataMax {
				break
			}
		}
		h.size = uint32(n)
		out = append(h.append(out), data[:n]...)
		data = data[n:]
	}
	return out, data
}

// greeting is the first message to srun: who connects, and how many ends of stdout and of
// stderr it is to wait for. The key proves that slurmd has started this daemon.
func greeting(v wire.Release, node uint32, ends [3]int, key []byte) ([]byte, error) {
	if len(key) > math.MaxUint16 {
		return nil, fmt.Errorf("cannot greet srun: its key has %d bytes", len(key))
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(18+len(key)))
	b = binary.BigEndian.AppendUint16(b, uint16(v))
	for _, word := range []uint32{node, uint32(ends[1]), uint32(ends[2]), uint32(len(key))} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return append(b, key...), nil
}
