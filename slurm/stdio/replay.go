package stdio

import "encoding/binary"

// keptMax is how many frames a client gets that were sent before it came: as many as from the
// original step daemon (measured: 131,072 bytes of a task that has written 300,000 without a newline).
const keptMax = 128

// replay keeps the last frames that have gone to clients.
type replay struct {
	frames [keptMax][]byte
	n      int // frames that have gone
}

// add keeps whole frames, as appendFrames makes them.
func (r *replay) add(frames []byte) {
	var begins [keptMax]int // of the last ones
	n := 0
	for at := 0; at < len(frames); n++ {
		begins[n%keptMax] = at
		at += headerSize + int(binary.BigEndian.Uint32(frames[at+headerSize-4:]))
	}
	for i := max(0, n-keptMax); i < n; i++ {
		begin, end := begins[i%keptMax], len(frames)
		if i+1 < n {
			end = begins[(i+1)%keptMax]
		}
		slot := &r.frames[r.n%keptMax]
		*slot = append((*slot)[:0], frames[begin:end]...)
		r.n++
	}
}

// appendTo adds the frames that are kept to b.
func (r *replay) appendTo(b []byte) []byte {
	for i := max(0, r.n-keptMax); i < r.n; i++ {
		b = append(b, r.frames[i%keptMax]...)
	}
	return b
}
