package wire

import (
	"errors"
	"testing"
)

// TestFields writes each kind of field, and reads them again.
func TestFields(t *testing.T) {
	var w Writer
	w.U16(1)
	w.U32(2)
	w.U64(3)
	w.Str("four")
	w.Sized(func() { w.U16(5) })
	r := Reader{B: w.B}
	if a, b, c := r.U16(), r.U32(), r.U64(); a != 1 || b != 2 || c != 3 {
		t.Errorf("numbers are %d, %d and %d", a, b, c)
	}
	if s, n := string(r.Bytes()), len(r.Bytes()); s != "four" || n != 2 || r.Err != nil || len(r.B) != 0 {
		t.Errorf("read %q and %d bytes, left %d: %v", s, n, len(r.B), r.Err)
	}
}

// TestShort holds that nothing is read beyond a record, and that the error stays.
func TestShort(t *testing.T) {
	for _, b := range [][]byte{nil, {1}, {1, 0, 0}, {0xff, 0xff, 0xff, 0xff, 1}} {
		r := Reader{B: b}
		if got := r.Bytes(); got != nil || !errors.Is(r.Err, ErrShort) || r.U16() != 0 {
			t.Errorf("of %v: %v, %v", b, got, r.Err)
		}
	}
}
