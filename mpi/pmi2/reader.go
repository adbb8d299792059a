package pmi2

import (
	"bytes"
	"fmt"
	"io"
)

const (
	// firstBuffer is enough for what MPICH sends, and small enough that
	// thousands of ranks cost little.
	firstBuffer = 512
	// keptBuffer is the largest buffer that is kept once it is empty.
	keptBuffer = 4096
)

// reader cuts a rank's bytes into lines and frames. Its buffer grows only as
// bytes arrive, up to max and a header: a length field alone costs nothing.
type reader struct {
	src io.Reader
	buf []byte
	// buf[start:end] are bytes not yet used.
	start, end int
	max        int
}

// cutError says that a rank's bytes ended in the middle, or were too many.
type cutError struct{ text string }

func (e *cutError) Error() string { return e.text }

// line returns the next line without its newline; io.EOF at a clean end.
func (r *reader) line() (string, error) {
	for seen := 0; ; {
		i := bytes.IndexByte(r.buf[r.start+seen:r.end], '\n')
		if i >= 0 && seen+i <= r.max {
			return r.take(seen+i+1, 1), nil
		}
		seen = r.end - r.start
		if seen > r.max {
			return "", &cutError{fmt.Sprintf("cannot read PMI-1 line %s: longer than %d bytes (PMI2FrameBytes)", quote(r.rest()), r.max)}
		}
		if err := r.fill(); err != nil {
			return "", r.cut(err, "PMI-1 line")
		}
	}
}

// frame returns the next PMI-2 frame without its length field.
func (r *reader) frame() (string, error) {
	if err := r.need(headerBytes); err != nil {
		return "", r.cut(err, "PMI-2 frame length")
	}
	n, err := parseHeader(string(r.buf[r.start:r.start+headerBytes]), r.max)
	if err != nil {
		return "", err
	}
	if err := r.need(headerBytes + n); err != nil {
		return "", r.cut(err, "PMI-2 frame")
	}
	r.start += headerBytes
	return r.take(n, 0), nil
}

func (r *reader) need(n int) error {
	for r.end-r.start < n {
		if err := r.fill(); err != nil {
			return err
		}
	}
	return nil
}

// take copies n bytes out, less drop at their end, and lets a buffer go that
// one large frame had grown.
func (r *reader) take(n, drop int) string {
	s := string(r.buf[r.start : r.start+n-drop])
	r.start += n
	if r.start == r.end {
		r.start, r.end = 0, 0
		if len(r.buf) > keptBuffer {
			r.buf = nil
		}
	}
	return s
}

// fill reads once, after it made room.
func (r *reader) fill() error {
	if r.end == len(r.buf) {
		if r.start > 0 {
			r.end = copy(r.buf, r.buf[r.start:r.end])
			r.start = 0
		} else {
			grown := make([]byte, max(firstBuffer, 2*len(r.buf)))
			copy(grown, r.buf)
			r.buf = grown
		}
	}
	n, err := r.src.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	return err
}

// cut distinguishes a clean end from one in the middle of a message.
func (r *reader) cut(err error, what string) error {
	if err == io.EOF && r.end > r.start {
		return &cutError{fmt.Sprintf("cannot read %s: cut after %d bytes: %s", what, r.end-r.start, quote(r.rest()))}
	}
	return err
}

func (r *reader) rest() string { return string(r.buf[r.start:r.end]) }
