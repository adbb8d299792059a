package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"unicode/utf8"
)

// What stands for no value, and for no end, in Slurm's records.
const (
	NoVal    uint32 = 0xfffffffe
	Infinite uint32 = 0xffffffff
	NoVal16  uint16 = 0xfffe
	NoVal64  uint64 = 0xfffffffffffffffe
)

// reader takes a packed record apart: integers are big-endian. The first error stays, names
// the record and the field, and all that is read after it is zero.
type reader struct {
	v      Release
	b      []byte // what is left
	size   int    // of the whole
	record string
	err    error
	// switchType is SwitchType of slurm.conf where it decides what is packed.
	switchType string
	absent     []string // keys of the settings that are not sent
}

func newReader(v Release, record string, b []byte) *reader {
	return &reader{v: v, b: b, size: len(b), record: record}
}

// since reports whether the record is of the release, or of a later one.
func (r *reader) since(v Release) bool { return r.v >= v }

// before reports whether the record is of an earlier release.
func (r *reader) before(v Release) bool { return r.v < v }

// fail notes the first error. field is the field's name.
func (r *reader) fail(field string, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("%s.%s: %w, at %d of %d bytes", r.record, field, err, r.size-len(r.b), r.size)
	}
	r.b = nil
}

var errShort = errors.New("the record is too short")

// take takes the next n bytes, nil where there are fewer.
func (r *reader) take(field string, n int) []byte {
	if n > len(r.b) {
		r.fail(field, errShort)
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8(field string) uint8 {
	if b := r.take(field, 1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) bool(field string) bool { return r.u8(field) != 0 }

func (r *reader) u16(field string) uint16 {
	if b := r.take(field, 2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32(field string) uint32 {
	if b := r.take(field, 4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64(field string) uint64 {
	if b := r.take(field, 8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// count reads how many elements follow, of at least size bytes each: memory is taken for
// bytes that have come, and for nothing that a record only claims.
func (r *reader) count(field string, size int) int {
	return r.fits(field, uint64(r.u32(field)), size)
}

// fits returns n where so many elements of at least size bytes can follow, else 0.
func (r *reader) fits(field string, n uint64, size int) int {
	if n > math.MaxInt32 || n*uint64(size) > uint64(len(r.b)) {
		r.fail(field, fmt.Errorf("%d elements cannot be in what is left", n))
		return 0
	}
	return int(n)
}

// array reads n elements.
func array[T any](n int, element func() T) []T {
	if n == 0 {
		return nil
	}
	out := make([]T, n)
	for i := range out {
		out[i] = element()
	}
	return out
}

func (r *reader) u16s(field string) []uint16 {
	return array(r.count(field, 2), func() uint16 { return r.u16(field) })
}

func (r *reader) u32s(field string) []uint32 {
	return array(r.count(field, 4), func() uint32 { return r.u32(field) })
}

func (r *reader) u64s(field string) []uint64 {
	return array(r.count(field, 8), func() uint64 { return r.u64(field) })
}

// mem reads bytes with their length before them; they are the record's own.
func (r *reader) mem(field string) []byte { return r.take(field, r.count(field, 1)) }

// str reads a string, "" for NULL. Its length counts the NUL at its end.
func (r *reader) str(field string) string {
	s, _ := r.optional(field)
	return s
}

// optional is str; ok is false for NULL.
func (r *reader) optional(field string) (s string, ok bool) {
	b := r.mem(field)
	if len(b) == 0 {
		return "", false
	}
	text, rest, ended := bytes.Cut(b, []byte{0})
	if !ended || len(rest) > 0 {
		r.fail(field, errors.New("a string does not end with its only NUL"))
		return "", false
	}
	return string(text), true
}

func (r *reader) strs(field string) []string {
	return array(r.count(field, 4), func() string { return r.str(field) })
}

// name is str of what goes into messages and file names: it is valid UTF-8.
func (r *reader) name(field string) string {
	s := r.str(field)
	if !utf8.ValidString(s) {
		r.fail(field, fmt.Errorf("%q is no name", s))
		return ""
	}
	return s
}

// bits reads a bitmap that is packed as text, least significant digit last; nil is NULL. Its
// size is checked against limit.
func (r *reader) bits(field string, limit uint32) []bool {
	n := r.u32(field)
	if n == NoVal || r.err != nil {
		return nil
	}
	if n > limit {
		r.fail(field, fmt.Errorf("a bitmap has %d bits, and %d is the limit", n, limit))
		return nil
	}
	text, ok := bytes.CutPrefix([]byte(r.str(field)), []byte("0x"))
	if r.err == nil && (!ok || uint64(n) > 4*uint64(len(text))) {
		r.fail(field, fmt.Errorf("%q is no bitmap of %d bits", text, n))
	}
	if r.err != nil {
		return nil
	}
	out := make([]bool, n)
	for i := range text {
		digit := hexDigit(text[len(text)-1-i])
		for bit := range 4 {
			set, at := digit>>bit&1 != 0, 4*i+bit
			if digit < 0 || set && at >= len(out) {
				r.fail(field, fmt.Errorf("%q is no bitmap of %d bits", text, n))
				return nil
			}
			if set {
				out[at] = true
			}
		}
	}
	return out
}

func hexDigit(c byte) int { return bytes.IndexByte([]byte("0123456789abcdef"), c|0x20) }

// addr reads an address; the zero value is none. Slurm packs the words of a sockaddr_in,
// which are in the network's order already: so they are swapped once more on this machine.
func (r *reader) addr(field string) netip.AddrPort {
	switch family := r.u16(field); family {
	case 2: // AF_INET
		var ip [4]byte
		binary.LittleEndian.PutUint32(ip[:], r.u32(field))
		return netip.AddrPortFrom(netip.AddrFrom4(ip), r.port(field))
	case 10: // AF_INET6
		b := r.mem(field)
		if len(b) != 16 {
			r.fail(field, fmt.Errorf("an address of IPv6 has %d bytes", len(b)))
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), r.port(field))
	default:
		return netip.AddrPort{}
	}
}

func (r *reader) port(field string) uint16 {
	p := r.u16(field)
	return p<<8 | p>>8
}

// end reports what is left as an error, and returns the reader's.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("end", fmt.Errorf("%d bytes are left", len(r.b)))
	}
	return r.err
}

var errLengths = errors.New("arrays of one record differ in length")

func errMany(n, most uint32) error { return fmt.Errorf("%d elements, and %d is the limit", n, most) }

func errMagic(magic uint32) error { return fmt.Errorf("%#x does not begin such a record", magic) }

func errRelease(v Release) error { return fmt.Errorf("it is of %s", v) }

func errTag(tag string) error { return fmt.Errorf("%q does not begin such a list", tag) }

var errStepManager = errors.New("the job has a step manager of its own (SlurmctldParameters=enable_stepmgr), which stepd does not support")
