package pmix

import (
	"stepd/internal/wire"

	"encoding/binary"
	"fmt"
	"strings"
)

// writer appends fields in the form of pmixhost/protocol.h.
type writer struct{ wire.Writer }

func (w *writer) bytes(b []byte) {
	w.U32(uint32(len(b)))
	w.B = append(w.B, b...)
}

func (w *writer) proc(p proc) {
	w.Str(p.nspace)
	w.U32(p.rank)
}

// list appends a count and that many elements.
func list[T any](w *writer, all []T, one func(T)) {
	w.U32(uint32(len(all)))
	for _, e := range all {
		one(e)
	}
}

// reader takes fields from a frame; the first one that is missing sets err and
// all later ones are zero.
type reader struct {
	wire.Reader
	// spend is asked before so many infos are read, which take far more room than
	// their bytes; nil allows them all.
	spend func(infos int) error
}

func (r *reader) i32() int { return int(int32(r.U32())) }

func (r *reader) str() string {
	s := string(r.Bytes())
	if strings.IndexByte(s, 0) >= 0 && r.Err == nil {
		r.Err = fmt.Errorf("a string of it holds a zero")
	}
	return s
}

func (r *reader) proc() proc { return proc{r.str(), r.U32()} }

// count is what elements would read as their count, which it leaves where it is.
func (r *reader) count() uint32 {
	if r.Err != nil || len(r.B) < 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(r.B)
}

// done is the error of a frame that was read to its end.
func (r *reader) done() error {
	if r.Err == nil && len(r.B) > 0 {
		return fmt.Errorf("%d bytes are left over", len(r.B))
	}
	return r.Err
}

// elements reads a count and that many elements of at least size bytes each.
func elements[T any](r *reader, size int, one func() T) []T {
	n := r.U32()
	if r.Err == nil && uint64(n)*uint64(size) > uint64(len(r.B)) {
		r.Err = wire.ErrShort
	}
	if r.Err != nil || n == 0 {
		return nil
	}
	all := make([]T, 0, n)
	for range n {
		all = append(all, one())
		if r.Err != nil {
			return nil
		}
	}
	return all
}

func (r *reader) strs() []string { return elements(r, 4, r.str) }
func (r *reader) procs() []proc  { return elements(r, 8, r.proc) }
