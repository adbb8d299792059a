package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
)

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
