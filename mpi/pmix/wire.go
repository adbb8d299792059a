package pmix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// writer appends fields in the form of pmixhost/protocol.h.
type writer struct{ b []byte }

func (w *writer) u16(v uint16) { w.b = binary.LittleEndian.AppendUint16(w.b, v) }
func (w *writer) u32(v uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }

func (w *writer) str(s string) {
	w.u32(uint32(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) bytes(b []byte) {
	w.u32(uint32(len(b)))
	w.b = append(w.b, b...)
}

// sized appends what fill writes, after its length.
func (w *writer) sized(fill func()) {
	at := len(w.b)
	w.u32(0)
	fill()
	binary.LittleEndian.PutUint32(w.b[at:], uint32(len(w.b)-at-4))
}

func (w *writer) proc(p proc) {
	w.str(p.nspace)
	w.u32(p.rank)
}

// list appends a count and that many elements.
func list[T any](w *writer, all []T, one func(T)) {
	w.u32(uint32(len(all)))
	for _, e := range all {
		one(e)
	}
}

var errShort = errors.New("it is cut short")

// reader takes fields from a frame; the first one that is missing sets err and
// all later ones are zero.
type reader struct {
	b   []byte
	err error
	// spend is asked before so many infos are read, which take far more room than
	// their bytes; nil allows them all.
	spend func(infos int) error
}

func (r *reader) take(n int) []byte {
	if r.err == nil && (n < 0 || n > len(r.b)) {
		r.err = errShort
	}
	if r.err != nil {
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) i32() int { return int(int32(r.u32())) }

// bytes are a part of the frame itself.
func (r *reader) bytes() []byte {
	n := r.u32()
	if uint64(n) > uint64(len(r.b)) && r.err == nil {
		r.err = errShort
	}
	return r.take(int(n))
}

func (r *reader) str() string {
	s := string(r.bytes())
	if strings.IndexByte(s, 0) >= 0 && r.err == nil {
		r.err = fmt.Errorf("a string of it holds a zero")
	}
	return s
}

func (r *reader) proc() proc { return proc{r.str(), r.u32()} }

// count is what elements would read as their count, which it leaves where it is.
func (r *reader) count() uint32 {
	if r.err != nil || len(r.b) < 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(r.b)
}

// done is the error of a frame that was read to its end.
func (r *reader) done() error {
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("%d bytes are left over", len(r.b))
	}
	return r.err
}

// elements reads a count and that many elements of at least size bytes each.
func elements[T any](r *reader, size int, one func() T) []T {
	n := r.u32()
	if r.err == nil && uint64(n)*uint64(size) > uint64(len(r.b)) {
		r.err = errShort
	}
	if r.err != nil || n == 0 {
		return nil
	}
	all := make([]T, 0, n)
	for range n {
		all = append(all, one())
		if r.err != nil {
			return nil
		}
	}
	return all
}

func (r *reader) strs() []string { return elements(r, 4, r.str) }
func (r *reader) procs() []proc  { return elements(r, 8, r.proc) }
