package stepio

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
)

const (
	// inputChunks bounds what is read ahead for a rank that reads more slowly than
	// the others.
	inputChunks = 16
	// inputSize is what is read at once: what a rank's pipe holds.
	inputSize = 64 << 10
)

// chunk is a piece of input that several ranks are to read.
type chunk struct {
	data    []byte
	readers atomic.Int32 // that have not got it yet
	buf     *[inputSize]byte
}

var chunks = sync.Pool{New: func() any { return new([inputSize]byte) }}

func (c *chunk) done() {
	if c.readers.Add(-1) == 0 {
		chunks.Put(c.buf)
	}
}

// feed is one rank's input.
type feed struct {
	chunks chan *chunk
	gone   chan struct{} // closed when it reads no more
}

// run writes what comes to the rank's pipe, until its end or the rank's.
func (f *feed) run(w *os.File) {
	defer w.Close()
	defer close(f.gone)
	for c := range f.chunks {
		_, err := w.Write(c.data)
		c.done()
		if err != nil {
			return
		}
	}
}

// broadcast sends src to every writer. A rank that has closed its input, or has
// ended, drops out; one that does not read holds the others back. It returns when src
// has ended, or when no reader is left, and what was wrong with src.
func broadcast(src io.Reader, writers []*os.File) error {
	feeds := make([]*feed, len(writers))
	for i, w := range writers {
		feeds[i] = &feed{make(chan *chunk, inputChunks), make(chan struct{})}
		go feeds[i].run(w)
	}
	defer func() {
		for _, f := range feeds {
			close(f.chunks)
		}
	}()
	for len(feeds) > 0 {
		c := &chunk{buf: chunks.Get().(*[inputSize]byte)}
		n, err := src.Read(c.buf[:])
		c.data = c.buf[:n]
		c.readers.Store(int32(len(feeds)))
		left := feeds[:0]
		for _, f := range feeds {
			select {
			case f.chunks <- c:
				left = append(left, f)
			case <-f.gone:
				c.done()
				close(f.chunks)
			}
		}
		feeds = left
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
