package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Header is what stands before a message.
type Header struct {
	Release Release
	Flags   uint16
	Type    Type
}

// unsigned is the flag of an answer that has no token: since 23.02 slurmctld and srun answer
// so to those whose message they have trusted.
const unsigned = 0x40

// Unsigned reports whether the message has no token.
func (h Header) Unsigned() bool { return h.Release >= V2302 && h.Flags&unsigned != 0 }

// authMunge is the number of the plugin auth/munge.
const authMunge = 101

// Frame is a message as it is sent: header, token and body, with their length before them.
func Frame(v Release, t Type, token string, body []byte) []byte {
	w := &writer{v: v}
	w.u32(0) // the length, below
	w.u16(uint16(v))
	w.u16(0)
	w.u16(uint16(t))
	w.u32(uint32(len(body)))
	w.u16(0) // nothing is forwarded
	w.u16(0) // nothing is returned
	w.u16(0) // no address of an origin
	w.u32(authMunge)
	w.str(token)
	w.b = append(w.b, body...)
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	return w.b
}

// ParseFrame takes a message without its length apart.
func ParseFrame(b []byte) (h Header, token string, body []byte, err error) {
	r := newReader(0, "message", b)
	h.Release, h.Flags, h.Type = Release(r.u16("version")), r.u16("flags"), Type(r.u16("type"))
	size := r.u32("body_length")
	if forwards := r.u16("forward"); forwards != 0 {
		r.fail("forward", errors.New("it is to be forwarded"))
	}
	if returned := r.u16("returned"); returned != 0 {
		r.fail("returned", errors.New("it has others' answers"))
	}
	r.addr("origin")
	if h.Unsigned() {
		return h, "", r.take("body", r.fits("body_length", uint64(size), 1)), r.end()
	}
	if plugin := r.u32("auth"); plugin != authMunge && r.err == nil {
		r.fail("auth", fmt.Errorf("it is signed by plugin %d, and not by munge", plugin))
	}
	token = r.str("token")
	body = r.take("body", r.fits("body_length", uint64(size), 1))
	return h, token, body, r.end()
}

// ReturnCode reads the body of TypeReturnCode.
func ReturnCode(body []byte) (uint32, error) {
	r := newReader(0, "return_code", body)
	rc := r.u32("rc")
	return rc, r.end()
}
