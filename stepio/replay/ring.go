package replay

import "sort"

// Piece is a part of what one rank wrote to one of its streams.
type Piece struct {
	FD   int // 1 or 2
	Rank int // -1 where all ranks share the stream
	Data []byte
}

// Ring keeps the last bytes of a step's output, of all ranks and both streams in the
// order in which they came. Bytes have positions, which count from the first one that
// was ever added. Memory grows with what is added, to the limit and no further. The
// zero value keeps nothing; its methods need a lock of the caller's.
type Ring struct {
	limit int
	buf   []byte // its length is the capacity; position p is at p modulo that
	first int64  // position of the oldest byte
	end   int64  // position behind the newest
	segs  []segment
	// Evicted hears of the bytes that are forgotten, in their order; nil is nobody.
	// They are the ring's.
	Evicted func(fd, rank int, data []byte)
}

// segment is a run of bytes of one stream; it ends where the next one begins.
type segment struct {
	at       int64
	fd, rank int32
}

// segmentCost is how many bytes of the limit one segment stands for: a rank that
// writes single bytes in turn with another must not fill memory with segments.
const segmentCost = 32

// segmentsMin is how many segments there may be in any case.
const segmentsMin = 16

// ringStart is the capacity of a ring that has just got its first byte.
const ringStart = 4 << 10

// NewRing makes a ring that keeps the last limit bytes.
func NewRing(limit int) *Ring { return &Ring{limit: max(limit, 0)} }

// Limit is how many bytes are kept at most.
func (r *Ring) Limit() int { return r.limit }

// First is the position of the oldest byte that is kept, End the one behind the newest.
func (r *Ring) First() int64 { return r.first }

// End is the position behind the newest byte.
func (r *Ring) End() int64 { return r.end }

// Add appends what rank wrote on fd; data stays the caller's.
func (r *Ring) Add(fd, rank int, data []byte) {
	if len(data) == 0 {
		return
	}
	if n := len(r.segs); n == 0 || r.segs[n-1].fd != int32(fd) || r.segs[n-1].rank != int32(rank) {
		r.segs = append(r.segs, segment{r.end, int32(fd), int32(rank)})
	}
	for len(data) > 0 {
		n := min(len(data), max(r.limit/2, 1))
		r.put(data[:n])
		data = data[n:]
	}
	for len(r.segs) > r.limit/segmentCost+segmentsMin {
		r.evict(r.segs[1].at)
	}
}

func (r *Ring) put(data []byte) {
	if r.limit == 0 {
		r.end += int64(len(data))
		r.evict(r.end)
		return
	}
	kept := int(r.end - r.first)
	if kept+len(data) > r.limit {
		r.evict(r.end + int64(len(data)) - int64(r.limit))
		kept = int(r.end - r.first)
	}
	if kept+len(data) > len(r.buf) {
		r.grow(kept + len(data))
	}
	at := int(r.end % int64(len(r.buf)))
	n := copy(r.buf[at:], data)
	copy(r.buf, data[n:])
	r.end += int64(len(data))
}

// grow makes room for need bytes, which are within the limit.
func (r *Ring) grow(need int) {
	size := max(len(r.buf), min(ringStart, r.limit))
	for size < need {
		size *= 2
	}
	buf := make([]byte, min(size, r.limit))
	for p := r.first; p < r.end; {
		part := r.at(p, int(r.end-p))
		to := int(p % int64(len(buf)))
		n := copy(buf[to:], part)
		p += int64(n)
	}
	r.buf = buf
}

// at is what is kept from a position on without a break, n bytes at most.
func (r *Ring) at(pos int64, n int) []byte {
	from := int(pos % int64(len(r.buf)))
	return r.buf[from:min(len(r.buf), from+n)]
}

// evict forgets what is before a position.
func (r *Ring) evict(to int64) {
	for r.first < to {
		end := min(to, r.end)
		if len(r.segs) > 1 {
			end = min(end, r.segs[1].at)
		}
		if r.Evicted != nil && len(r.buf) > 0 {
			for p := r.first; p < end; {
				part := r.at(p, int(end-p))
				r.Evicted(int(r.segs[0].fd), int(r.segs[0].rank), part)
				p += int64(len(part))
			}
		}
		r.first = max(end, r.first)
		if len(r.segs) > 1 && r.first == r.segs[1].at {
			r.segs = r.segs[1:] // append moves what is left, once in as many
		}
		if r.first >= r.end {
			return
		}
	}
	if len(r.segs) > 0 && r.segs[0].at < r.first {
		r.segs[0].at = r.first
	}
}

// Read copies what is kept at pos into buf, of one stream: next is where to go on, and
// skipped counts the bytes before it that are forgotten. A piece without data is the
// end.
func (r *Ring) Read(pos int64, buf []byte) (p Piece, next, skipped int64) {
	if pos < r.first {
		skipped, pos = r.first-pos, r.first
	}
	if pos >= r.end || len(r.segs) == 0 {
		return Piece{}, pos, skipped
	}
	i := sort.Search(len(r.segs), func(i int) bool { return r.segs[i].at > pos }) - 1
	end := r.end
	if i+1 < len(r.segs) {
		end = r.segs[i+1].at
	}
	n := copy(buf, r.at(pos, int(end-pos)))
	return Piece{FD: int(r.segs[i].fd), Rank: int(r.segs[i].rank), Data: buf[:n]}, pos + int64(n), skipped
}
