package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// place is where a record's value is. The zero value is no place.
type place struct {
	f    file
	off  int64
	size int
	sum  uint32
	seq  uint64
	dead bool // it is a deletion
}

func newPlace(f file, lineAt int64, seq uint64, r *record) place {
	return place{f: f, off: lineAt + int64(r.at), size: len(r.value), sum: checksum(r.value), seq: seq, dead: bytes.Equal(r.value, deleted)}
}

// errChanged is that a value is not what was written.
var errChanged = errors.New("the value is not what was stored: its disk or file system is failing")

func (p place) read() ([]byte, error) {
	b := make([]byte, p.size)
	if _, err := p.f.ReadAt(b, p.off); err != nil && (err != io.EOF || p.size > 0) {
		return nil, err
	}
	if checksum(b) != p.sum {
		return nil, errChanged
	}
	return b, nil
}

// weight is about how many bytes of a journal the record takes.
func (p place) weight(k id) int64 { return int64(p.size + len(k.kind) + len(k.key) + 40) }

// header is the record that ends what a journal began with. Its key is headerID's.
type header struct {
	Version int `json:"version"`
	// Boot is the boot in which the journal was begun.
	Boot string `json:"boot"`
}

var headerID = id{"journal", "header"}

// formatVersion is the header's Version.
const formatVersion = 1

type found struct {
	id
	place
	lineAt int64
}

// span is a piece of a file.
type span struct{ from, to int64 }

// replayed is what a journal has.
type replayed struct {
	found  []found
	header header
	// bad are the pieces that are damaged. What was being written when the power
	// failed, or the process was killed, is none: torn is its size in bytes.
	bad  []span
	torn int64
	// changed: a bad piece has not merely lost blocks.
	changed bool
}

// replay reads a journal from its beginning to its end. A damaged piece costs the lines that
// it touches.
func replay(f file) (*replayed, error) {
	size, _, err := f.stat()
	if err != nil {
		return nil, err
	}
	r := &reader{f: f, size: size}
	out := new(replayed)
	disk := int64(0) // how far lines say that the file was on disk
	for off := int64(0); off < size; {
		l, err := r.line(off)
		if errors.Is(err, errLine) {
			end, err := r.resync(off)
			if err != nil {
				return nil, err
			}
			out.isBad(span{off, end})
			off = end
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := out.take(f, off, l); err != nil {
			return nil, err
		}
		disk = max(disk, l.synced)
		off += int64(l.size)
		if l.wrongEnd {
			out.isBad(span{off - 1, off})
		}
	}
	return out, out.cutTorn(r, disk)
}

// isBad notes a damaged piece, which may continue the last one.
func (out *replayed) isBad(piece span) {
	if n := len(out.bad); n > 0 && out.bad[n-1].to == piece.from {
		out.bad[n-1].to = piece.to
		return
	}
	out.bad = append(out.bad, piece)
}

func (out *replayed) take(f file, off int64, l *line) error {
	for i := range l.records {
		rec := &l.records[i]
		if rec.id == headerID {
			if err := json.Unmarshal(rec.value, &out.header); err != nil {
				return fmt.Errorf("its header: %w", err)
			}
			if out.header.Version > formatVersion {
				return fmt.Errorf("it is a later release's, of version %d: install that release, or move the file away", out.header.Version)
			}
			continue
		}
		out.found = append(out.found, found{rec.id, newPlace(f, off, l.seq, rec), off})
	}
	return nil
}

// cutTorn drops what was written last and not acknowledged, where it is not whole. That is
// a piece that no later line says to be on disk, and that ends the file without a newline or
// has blocks that were never written; what follows it was written with it.
func (out *replayed) cutTorn(r *reader, disk int64) error {
	for i, piece := range out.bad {
		torn, err := r.torn(piece)
		if err != nil {
			return err
		}
		if !torn {
			out.changed = true
		} else if piece.from >= disk {
			out.torn = r.size - piece.from
			out.bad = out.bad[:i]
			out.found = slices.DeleteFunc(out.found, func(f found) bool { return f.lineAt >= piece.from })
			return nil
		}
	}
	return nil
}

// reader reads a file by a window.
type reader struct {
	f    file
	size int64
	buf  []byte
	at   int64
}

// windowSize is how much is read at once, in bytes.
const windowSize = 1 << 18

// window returns up to n bytes at off; they are good until the next call.
func (r *reader) window(off int64, n int) ([]byte, error) {
	n = int(min(int64(n), r.size-off))
	if off < r.at || off+int64(n) > r.at+int64(len(r.buf)) {
		r.buf = make([]byte, min(int64(max(n, windowSize)), r.size-off))
		r.at = off
		if _, err := r.f.ReadAt(r.buf, off); err != nil && err != io.EOF {
			return nil, err
		}
	}
	return r.buf[off-r.at:][:n], nil
}

// line returns the line at off, or an error that is errLine.
func (r *reader) line(off int64) (*line, error) {
	b, err := r.window(off, headMax)
	if err != nil {
		return nil, err
	}
	head, length, err := parseHead(b)
	if err != nil || int64(head+length) > r.size-off {
		return nil, errLine
	}
	if b, err = r.window(off, head+length+1); err != nil {
		return nil, err
	}
	return parseLine(b)
}

// resync returns where behind off the next line begins, or the file's end.
func (r *reader) resync(off int64) (int64, error) {
	for off < r.size {
		b, err := r.window(off, windowSize)
		if err != nil {
			return 0, err
		}
		n := bytes.IndexByte(b, '\n')
		if n < 0 {
			off += int64(len(b))
			continue
		}
		off += int64(n) + 1
		l, err := r.line(off)
		if err == nil && l.strict() {
			return off, nil
		}
		if err != nil && !errors.Is(err, errLine) {
			return 0, err
		}
	}
	return r.size, nil
}

// blockSize is the least that a disk writes at once, in bytes.
const blockSize = 512

// torn reports whether a piece is what a write leaves that did not end.
func (r *reader) torn(s span) (bool, error) {
	b := make([]byte, s.to-s.from)
	if _, err := r.f.ReadAt(b, s.from); err != nil && err != io.EOF {
		return false, err
	}
	if s.to == r.size && b[len(b)-1] != '\n' {
		return true, nil
	}
	for at := s.from; at < s.to; at = (at/blockSize + 1) * blockSize {
		block := b[at-s.from : min((at/blockSize+1)*blockSize, s.to)-s.from]
		if len(block) > 1 && len(bytes.Trim(block, "\x00")) == 0 { // one byte may be damage
			return true, nil
		}
	}
	return false, nil
}
