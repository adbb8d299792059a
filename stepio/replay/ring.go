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
// was ever added. Memory grows with what is added, to the limit and half of it more
// for who wrote what, and bytes in it are never moved: to add takes as long as the
// data is, however large the ring. The zero value keeps nothing; its methods need a lock
// of the caller's.
type Ring struct {
	limit  int
	first  int64    // position of the oldest byte
	end    int64    // position behind the newest
	blocks []*block // one behind the other; the first one has the oldest byte
	spare  *block   // one that has been read out, for the next
	segs   int      // of all blocks
	// Evicted is called with the bytes that are forgotten, in their order; nil: no call.
	// They are the ring's.
	Evicted func(fd, rank int, data []byte)
}

// block is a part of the ring.
type block struct {
	at   int64     // position of data
	data []byte    // of blockSize at the most
	segs []segment // the first one begins with data, or before it
}

// segment is a run of bytes of one stream; it ends where the next one begins, or the
// block.
type segment struct {
	at       int64
	fd, rank int32
}

const (
	// blockSize is what a block holds; the first one begins with blockStart.
	blockSize, blockStart = 16 << 10, 4 << 10
	// segmentCost is how many bytes of the limit one segment stands for: a rank that
	// writes single bytes in turn with another must not fill memory with segments.
	segmentCost = 32
	// segmentsMin is how many segments there may be in any case.
	segmentsMin = 16
)

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
	for len(data) > 0 {
		b := r.room()
		n := min(len(data), blockSize-len(b.data))
		if last := len(b.segs) - 1; last < 0 || b.segs[last].fd != int32(fd) || b.segs[last].rank != int32(rank) {
			if r.first == r.end { // nothing is left of the one in place
				r.segs -= len(b.segs)
				b.segs = b.segs[:0]
			}
			b.segs = append(b.segs, segment{r.end, int32(fd), int32(rank)})
			r.segs++
		}
		b.data = append(b.data, data[:n]...)
		r.end += int64(n)
		r.evict(r.end - int64(r.limit))
		data = data[n:]
	}
	for r.segs > r.limit/segmentCost+segmentsMin {
		r.evictSegment()
	}
}

// room is the last block, which has room.
func (r *Ring) room() *block {
	if n := len(r.blocks); n > 0 && len(r.blocks[n-1].data) < blockSize {
		return r.blocks[n-1]
	}
	b := r.spare
	r.spare = nil
	if b == nil {
		size := blockSize
		if len(r.blocks) == 0 {
			size = blockStart
		}
		b = &block{data: make([]byte, 0, size)}
	}
	b.at = r.end
	r.blocks = append(r.blocks, b)
	return b
}

// evict forgets what is before a position.
func (r *Ring) evict(to int64) {
	for r.first < to {
		b := r.blocks[0]
		end := min(to, b.at+int64(len(b.data)))
		if len(b.segs) > 1 {
			end = min(end, b.segs[1].at)
		}
		if r.Evicted != nil {
			r.Evicted(int(b.segs[0].fd), int(b.segs[0].rank), b.data[r.first-b.at:end-b.at])
		}
		r.first = end
		switch {
		case end == b.at+int64(len(b.data)) && len(b.data) == blockSize:
			r.segs -= len(b.segs)
			r.blocks[0] = nil
			r.blocks = r.blocks[1:] // append moves what is left, once in as many
			*b = block{data: b.data[:0]}
			r.spare = b
		case len(b.segs) > 1 && end == b.segs[1].at:
			r.segs--
			b.segs = b.segs[1:]
		}
	}
}

// evictSegment forgets the oldest segment.
func (r *Ring) evictSegment() {
	b := r.blocks[0]
	if len(b.segs) > 1 {
		r.evict(b.segs[1].at)
		return
	}
	r.evict(b.at + int64(len(b.data)))
}

// Read copies what is kept at pos into buf, of one stream: next is where to go on, and
// skipped counts the bytes before it that are forgotten. A piece without data is the
// end.
func (r *Ring) Read(pos int64, buf []byte) (p Piece, next, skipped int64) {
	if pos < r.first {
		skipped, pos = r.first-pos, r.first
	}
	if pos >= r.end {
		return Piece{}, pos, skipped
	}
	for i := r.blockOf(pos); i < len(r.blocks) && len(p.Data) < len(buf); i++ {
		b := r.blocks[i]
		s := sort.Search(len(b.segs), func(i int) bool { return b.segs[i].at > pos }) - 1
		seg, end := b.segs[s], b.at+int64(len(b.data))
		if len(p.Data) > 0 && (p.FD != int(seg.fd) || p.Rank != int(seg.rank)) {
			break
		}
		whole := s+1 == len(b.segs)
		if !whole {
			end = b.segs[s+1].at
		}
		at := len(p.Data)
		n := copy(buf[at:], b.data[pos-b.at:end-b.at])
		p = Piece{FD: int(seg.fd), Rank: int(seg.rank), Data: buf[:at+n]}
		pos += int64(n)
		if !whole {
			break
		}
	}
	return p, pos, skipped
}

// blockOf is the place of the block that has a position, which is kept.
func (r *Ring) blockOf(pos int64) int {
	// All but the last are full.
	return int((pos - r.blocks[0].at) / blockSize)
}
