package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"strconv"
)

// place is where a record's value is. The zero value is no place.
type place struct {
	f    file
	off  int64
	size int
	sum  uint32
	seq  uint64
	dead bool // it is a deletion
}

func newPlace(f file, lineAt int64, seq uint64, r *record) place {
	return place{f: f, off: lineAt + int64(r.at), size: len(r.value), sum: checksum(r.value), seq: seq, dead: bytes.Equal(r.value, deleted)}
}

// errChanged is that a value is not what was written.
var errChanged = errors.New("the value is not what was stored: its disk or file system is failing")

func (p place) read() ([]byte, error) {
	b := make([]byte, p.size)
	if _, err := p.f.ReadAt(b, p.off); err != nil && (err != io.EOF || p.size > 0) {
		return nil, err
	}
	if checksum(b) != p.sum {
		return nil, errChanged
	}
	return b, nil
}

// weight is about how many bytes of a journal the record takes.
func (p place) weight(k id) int64 { return int64(p.size + len(k.kind) + len(k.key) + 40) }

// header is the record that ends what a journal began with. Its key is headerID's.
type header struct {
	Version int `json:"version"`
	// Boot is the boot in which the journal was begun.
	Boot string `json:"boot"`
}

var headerID = id{"journal", "header"}

// formatVersion is the header's Version.
const formatVersion = 1

type found struct {
	id
	place
}

// index has the latest place of each record, by kind and key; the deletions too.
type index map[string]map[string]place

// put makes p the place of a record, unless a later one is known, or it is the header's. It
// returns the one before, the zero value of none.
func (x index) put(k id, p place) (old place, ok bool) {
	of := x[k.kind]
	if of == nil {
		of = make(map[string]place)
		x[k.kind] = of
	}
	if old = of[k.key]; old.seq > p.seq || k == headerID {
		return old, false
	}
	of[k.key] = p
	return old, true
}

// all yields what is in the index.
func (x index) all() iter.Seq2[id, place] {
	return func(yield func(id, place) bool) {
		for kind, of := range x {
			for key, p := range of {
				if !yield(id{kind, key}, p) {
					return
				}
			}
		}
	}
}

// span is a piece of a file.
type span struct{ from, to int64 }

// replayed is what a journal has.
type replayed struct {
	index  index
	header header
	// unsure is what comes behind the first bad piece, until that is known not to be torn.
	unsure []found
	// bad are the pieces that are damaged. What was being written when the power
	// failed, or the process was killed, is none: torn is its size in bytes.
	bad  []span
	torn int64
	// changed: a bad piece has not merely lost blocks.
	changed bool
	// aside is where the journal is that could not be read; "" where it could.
	aside string
}

// replay reads a journal from its beginning to its end. A damaged piece costs the lines that
// it touches. disk is the journal's: it may have gone through a power failure.
func replay(f file, disk bool) (*replayed, error) {
	size, _, err := f.stat()
	if err != nil {
		return nil, err
	}
	r := &reader{f: f, size: size, disk: disk}
	out := &replayed{index: make(index)}
	synced := int64(0) // how far lines say that the file was on disk
	for off := int64(0); off < size; {
		l, err := r.line(off)
		if errors.Is(err, errLine) {
			end, err := r.resync(off)
			if err != nil {
				return nil, err
			}
			out.isBad(span{off, end})
			off = end
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := out.take(f, off, l); err != nil {
			return nil, err
		}
		synced = max(synced, l.synced)
		off += int64(l.size)
		if l.wrongEnd {
			out.isBad(span{off - 1, off})
		}
	}
	return out, out.cutTorn(r, synced)
}

// isBad notes a damaged piece, which may continue the last one.
func (out *replayed) isBad(piece span) {
	if n := len(out.bad); n > 0 && out.bad[n-1].to == piece.from {
		out.bad[n-1].to = piece.to
		return
	}
	out.bad = append(out.bad, piece)
}

func (out *replayed) take(f file, off int64, l *line) error {
	for i := range l.records {
		rec := &l.records[i]
		if rec.id == headerID {
			if err := json.Unmarshal(rec.value, &out.header); err != nil {
				return fmt.Errorf("its header: %w", err)
			}
			if out.header.Version > formatVersion {
				return fmt.Errorf("it is a later release's, of version %d: install that release, or move the file away", out.header.Version)
			}
			continue
		}
		p := newPlace(f, off, l.seq, rec)
		if len(out.bad) > 0 {
			out.unsure = append(out.unsure, found{rec.id, p})
		} else {
			out.index.put(rec.id, p)
		}
	}
	return nil
}

// cutTorn drops what was written last and not acknowledged, where it is not whole. That is
// a piece that no later line says to be on disk, and that ends the file without a newline or
// has blocks that were never written; what follows it was written with it.
func (out *replayed) cutTorn(r *reader, synced int64) error {
	for i, piece := range out.bad {
		open, blocks, err := r.torn(piece)
		if err != nil {
			return err
		}
		if !open && !blocks {
			out.changed = true
		}
		// Where the file system is not cut off, as a volatile journal's is by a boot alone, no
		// write leaves such blocks.
		if (open || blocks && r.disk) && piece.from >= synced {
			out.torn = r.size - piece.from
			out.bad = out.bad[:i]
			out.unsure = slices.DeleteFunc(out.unsure, func(f found) bool { return f.off >= piece.from })
			break
		}
	}
	for _, f := range out.unsure {
		out.index.put(f.id, f.place)
	}
	out.unsure = nil
	return nil
}

// reader reads a file by a window.
type reader struct {
	f    file
	size int64
	disk bool
	buf  []byte
	at   int64
}

// windowSize is how much is read at once, in bytes.
const windowSize = 1 << 18

// window returns up to n bytes at off; they are good until the next call.
func (r *reader) window(off int64, n int) ([]byte, error) {
	n = int(min(int64(n), r.size-off))
	if off < r.at || off+int64(n) > r.at+int64(len(r.buf)) {
		size := int(min(int64(max(n, windowSize)), r.size-off))
		r.buf, r.at = slices.Grow(r.buf[:0], size)[:size], off
		if _, err := r.f.ReadAt(r.buf, off); err != nil && err != io.EOF {
			return nil, err
		}
	}
	return r.buf[off-r.at:][:n], nil
}

// line returns the line at off, or an error that is errLine.
func (r *reader) line(off int64) (*line, error) {
	b, err := r.window(off, headMax)
	if err != nil {
		return nil, err
	}
	head, length, err := parseHead(b)
	if err != nil || int64(head+length) > r.size-off {
		return nil, errLine
	}
	if b, err = r.window(off, head+length+1); err != nil {
		return nil, err
	}
	return parseLine(b)
}

// resync returns where behind off the next line begins, or the file's end.
func (r *reader) resync(off int64) (int64, error) {
	for off < r.size {
		b, err := r.window(off, windowSize)
		if err != nil {
			return 0, err
		}
		n := bytes.IndexByte(b, '\n')
		if n < 0 {
			off += int64(len(b))
			continue
		}
		off += int64(n) + 1
		l, err := r.line(off)
		if err == nil && l.strict() {
			return off, nil
		}
		if err != nil && !errors.Is(err, errLine) {
			return 0, err
		}
	}
	return r.size, nil
}

// blockSize is the least that a disk writes at once, in bytes.
const blockSize = 512

// torn reports whether a piece is what a write leaves that did not end: open has no end, and
// blocks has blocks that were never written.
func (r *reader) torn(s span) (open, blocks bool, err error) {
	b := make([]byte, s.to-s.from)
	if _, err := r.f.ReadAt(b, s.from); err != nil && err != io.EOF {
		return false, false, err
	}
	open = s.to == r.size && b[len(b)-1] != '\n'
	if open && !r.disk { // a process that was killed leaves the beginning of a line
		head, length, err := parseHead(b)
		open = err == nil && head+length >= len(b) || err != nil && len(b) < headMax
	}
	for at := s.from; at < s.to; at = (at/blockSize + 1) * blockSize {
		block := b[at-s.from : min((at/blockSize+1)*blockSize, s.to)-s.from]
		if len(block) > 1 && len(bytes.Trim(block, "\x00")) == 0 { // one byte may be damage
			return open, true, nil
		}
	}
	return open, false, nil
}

// A line of a journal is a batch of records, which are stored and lost together:
//
//	crc32c length synced seq kind key value[TAB kind key value]...NEWLINE
//
// length counts the bytes between its own space and the newline; the checksum covers all
// that follows it, but for the newline. synced is how far the file was on disk when the
// line was written. Of the records of a key, the one with the highest seq is true. A value
// is JSON as encoding/json writes it, which has neither a tab nor a newline; null deletes.

// id names a record.
type id struct{ kind, key string }

func (k id) String() string { return k.kind + " " + k.key }

// record is one record of a line. at is where its value begins within the line.
type record struct {
	id
	value []byte
	at    int
}

// line is a line that was read.
type line struct {
	synced  int64
	seq     uint64
	records []record
	// size counts its bytes, the newline's included.
	size int
	// newline: it has one. wrongEnd: it has another byte in its place.
	newline, wrongEnd bool
}

const (
	sumDigits = 8
	// lengthDigits bounds a line below 1 GB, far above what a request may have.
	lengthDigits = 9
	// headMax is the longest that comes before what length counts.
	headMax = sumDigits + 1 + lengthDigits + 1
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	deleted    = []byte("null")
)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// appendLine appends a line of records and notes in each where its value begins in it.
func appendLine(buf []byte, synced int64, seq uint64, records []record) []byte {
	body := strconv.AppendInt(nil, synced, 10)
	body = strconv.AppendUint(append(body, ' '), seq, 10)
	for i := range records {
		r := &records[i]
		sep := byte('\t')
		if i == 0 {
			sep = ' '
		}
		body = append(append(body, sep), r.kind...)
		body = append(append(body, ' '), r.key...)
		body = append(body, ' ')
		r.at = len(body)
		body = append(body, r.value...)
	}
	length := append(strconv.AppendInt(nil, int64(len(body)), 10), ' ')
	sum := crc32.Update(checksum(length), castagnoli, body)
	buf = fmt.Appendf(buf, "%08x %s", sum, length)
	for i := range records {
		records[i].at += sumDigits + 1 + len(length)
	}
	return append(append(buf, body...), '\n')
}

// errLine is that no line begins there.
var errLine = errors.New("no line of a journal")

// parseHead returns what comes before the part that length counts: its size and length.
func parseHead(b []byte) (head, length int, err error) {
	b = b[:min(len(b), headMax)]
	if len(b) < sumDigits+3 || b[sumDigits] != ' ' {
		return 0, 0, errLine
	}
	n := bytes.IndexByte(b[sumDigits+1:], ' ')
	if n < 1 || n > lengthDigits {
		return 0, 0, errLine
	}
	head = sumDigits + 1 + n + 1
	l, err := strconv.ParseUint(string(b[sumDigits+1:head-1]), 10, 31)
	if err != nil {
		return 0, 0, errLine
	}
	return head, int(l), nil
}

// parseLine reads the line with which b begins. What ends the line may be missing.
func parseLine(b []byte) (*line, error) {
	head, length, err := parseHead(b)
	if err != nil || length > len(b)-head {
		return nil, errLine
	}
	end := head + length
	sum, err := strconv.ParseUint(string(b[:sumDigits]), 16, 32)
	if err != nil || uint32(sum) != checksum(b[sumDigits+1:end]) {
		return nil, errLine
	}
	l := &line{size: min(end+1, len(b))}
	if end < len(b) {
		l.newline = b[end] == '\n'
		l.wrongEnd = !l.newline
	}
	synced, rest, ok1 := bytes.Cut(b[head:end], []byte{' '})
	seq, rest, ok2 := bytes.Cut(rest, []byte{' '})
	var err1, err2 error
	l.synced, err1 = strconv.ParseInt(string(synced), 10, 64)
	l.seq, err2 = strconv.ParseUint(string(seq), 10, 64)
	if !ok1 || !ok2 || err1 != nil || err2 != nil {
		return nil, errLine
	}
	at := end - len(rest)
	for field := range bytes.SplitSeq(rest, []byte{'\t'}) {
		kind, tail, ok1 := bytes.Cut(field, []byte{' '})
		key, value, ok2 := bytes.Cut(tail, []byte{' '})
		if !ok1 || !ok2 {
			return nil, errLine
		}
		l.records = append(l.records, record{id{string(kind), string(key)}, value, at + len(field) - len(value)})
		at += len(field) + 1
	}
	return l, nil
}

// strict reports whether the line is one also where a line need not begin, as behind a
// newline that damage has made: text within a value is none, even a user's, since it
// would have to be JSON up to the end of the line.
func (l *line) strict() bool {
	for _, r := range l.records {
		if !json.Valid(r.value) {
			return false
		}
	}
	return l.newline
}

// named returns which records a damaged piece of a journal had, as far as can be read.
func named(piece []byte) (ids []string) {
	for text := range bytes.SplitSeq(piece, []byte{'\n'}) {
		fields := bytes.SplitN(text, []byte{' '}, 5)
		if len(fields) < 5 {
			continue
		}
		for r := range bytes.SplitSeq(fields[4], []byte{'\t'}) {
			kind, rest, _ := bytes.Cut(r, []byte{' '})
			key, _, ok := bytes.Cut(rest, []byte{' '})
			if k := (id{string(kind), string(key)}); ok && k.check() == nil {
				ids = append(ids, k.String())
			}
		}
	}
	return ids
}

// nameMax bounds kinds and keys, in bytes.
const nameMax = 255

// check returns why a record cannot have that name.
func (k id) check() error {
	for _, s := range []string{k.kind, k.key} {
		bad := len(s) == 0 || len(s) > nameMax
		for _, c := range []byte(s) {
			bad = bad || c <= ' ' || c > '~'
		}
		if bad {
			return fmt.Errorf("internal error: %q is no name of a record", s)
		}
	}
	return nil
}
