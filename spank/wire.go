package spank

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// writer appends fields in the form of host/protocol.h.
type writer struct{ b []byte }

func (w *writer) u16(v uint16) { w.b = binary.LittleEndian.AppendUint16(w.b, v) }
func (w *writer) u32(v uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *writer) str(s string) {
	w.u32(uint32(len(s)))
	w.b = append(w.b, s...)
}

// tlv appends one config item; fill writes its body.
func (w *writer) tlv(tag uint16, fill func(*writer)) {
	w.u16(tag)
	w.u16(0)
	at := len(w.b)
	w.u32(0)
	fill(w)
	binary.LittleEndian.PutUint32(w.b[at:], uint32(len(w.b)-at-4))
}

func (w *writer) tlvU32(tag uint16, v uint32) { w.tlv(tag, func(w *writer) { w.u32(v) }) }
func (w *writer) tlvU64(tag uint16, v uint64) { w.tlv(tag, func(w *writer) { w.u64(v) }) }
func (w *writer) tlvStr(tag uint16, s string) { w.tlv(tag, func(w *writer) { w.str(s) }) }
func (w *writer) tlvStrs(tag uint16, all []string) {
	for _, s := range all {
		w.tlvStr(tag, s)
	}
}

func (w *writer) tlvU32s(tag uint16, vs []uint32) {
	w.tlv(tag, func(w *writer) {
		for _, v := range vs {
			w.u32(v)
		}
	})
}

var errShort = errors.New("record is cut short")

// reader takes fields from a record; the first one that is missing sets err
// and all later ones are zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.b) {
		r.err = errShort
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) i32() int32 { return int32(r.u32()) }

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) i64() int64 { return int64(r.u64()) }

func (r *reader) str() string {
	n := r.u32()
	if n > hostPacketMax {
		r.err = fmt.Errorf("string of %d bytes in a record: the limit is %d", n, hostPacketMax)
		return ""
	}
	return string(r.take(int(n)))
}
