// Package wire has the fields of the records that stepd exchanges with its C programs:
// little-endian numbers, and bytes after their length. The packages that use it know
// what a record means.
package wire

import (
	"encoding/binary"
	"errors"
)

// ErrShort is Reader's error where a field is missing.
var ErrShort = errors.New("it is cut short")

// Writer appends fields to B.
type Writer struct{ B []byte }

// U16, U32 and U64 append a number.
func (w *Writer) U16(v uint16) { w.B = binary.LittleEndian.AppendUint16(w.B, v) }
func (w *Writer) U32(v uint32) { w.B = binary.LittleEndian.AppendUint32(w.B, v) }
func (w *Writer) U64(v uint64) { w.B = binary.LittleEndian.AppendUint64(w.B, v) }

// Str appends a string after its length.
func (w *Writer) Str(s string) {
	w.U32(uint32(len(s)))
	w.B = append(w.B, s...)
}

// Bytes appends bytes after their length.
func (w *Writer) Bytes(b []byte) {
	w.U32(uint32(len(b)))
	w.B = append(w.B, b...)
}

// Sized appends what fill writes, after its length.
func (w *Writer) Sized(fill func()) {
	at := len(w.B)
	w.U32(0)
	fill()
	binary.LittleEndian.PutUint32(w.B[at:], uint32(len(w.B)-at-4))
}

// Reader takes fields from B; the first one that is missing sets Err, and
// all later ones are zero.
type Reader struct {
	B   []byte
	Err error
}

// Take returns the next n bytes, a part of the record itself, or nil.
func (r *Reader) Take(n int) []byte {
	if r.Err == nil && (n < 0 || n > len(r.B)) {
		r.Err = ErrShort
	}
	if r.Err != nil {
		return nil
	}
	b := r.B[:n:n]
	r.B = r.B[n:]
	return b
}

// U16, U32 and U64 return a number, 0 after an error.
func (r *Reader) U16() uint16 {
	if b := r.Take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *Reader) U32() uint32 {
	if b := r.Take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *Reader) U64() uint64 {
	if b := r.Take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Bytes returns bytes after their length: a part of the record itself.
func (r *Reader) Bytes() []byte {
	n := r.U32()
	if uint64(n) > uint64(len(r.B)) && r.Err == nil {
		r.Err = ErrShort
	}
	return r.Take(int(n))
}
