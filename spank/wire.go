package spank

import (
	"fmt"

	"stepd/internal/wire"
)

// writer appends fields in the form of host/protocol.h.
type writer struct{ wire.Writer }

// tlv appends one config item; fill writes its body.
func (w *writer) tlv(tag uint16, fill func(*writer)) {
	w.U16(tag)
	w.U16(0)
	w.Sized(func() { fill(w) })
}

func (w *writer) tlvU32(tag uint16, v uint32) { w.tlv(tag, func(w *writer) { w.U32(v) }) }
func (w *writer) tlvU64(tag uint16, v uint64) { w.tlv(tag, func(w *writer) { w.U64(v) }) }
func (w *writer) tlvStr(tag uint16, s string) { w.tlv(tag, func(w *writer) { w.Str(s) }) }
func (w *writer) tlvStrs(tag uint16, all []string) {
	for _, s := range all {
		w.tlvStr(tag, s)
	}
}

func (w *writer) tlvU32s(tag uint16, vs []uint32) {
	w.tlv(tag, func(w *writer) {
		for _, v := range vs {
			w.U32(v)
		}
	})
}

// reader takes fields from a record.
type reader struct{ wire.Reader }

func (r *reader) i32() int32 { return int32(r.U32()) }
func (r *reader) i64() int64 { return int64(r.U64()) }

func (r *reader) str() string {
	n := r.U32()
	if n > hostPacketMax {
		r.Err = fmt.Errorf("string of %d bytes in a record: the limit is %d", n, hostPacketMax)
		return ""
	}
	return string(r.Take(int(n)))
}
