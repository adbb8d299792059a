package replay

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
