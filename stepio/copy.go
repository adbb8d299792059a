package stepio

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
)

// pieceMax is the longest part of a line that is held back for its end. A
// longer line is passed on in pieces, so that memory stays bounded.
const pieceMax = 64 << 10

// copyAll passes on everything. A destination that is gone does not stop the
// reading: the tasks would block for ever.
func copyAll(dest io.Writer, src *os.File) {
	defer src.Close()
	if _, err := io.Copy(dest, src); err != nil {
		io.Copy(io.Discard, src)
	}
}

// lines writes whole lines of many ranks to one destination.
type lines struct {
	width int // of a label; 0 without
	mu    sync.Mutex
	dest  io.Writer // guarded by mu
}

func newLines(dest io.Writer, ntasks int, label bool) *lines {
	l := &lines{dest: dest}
	if label {
		l.width = len(strconv.Itoa(ntasks - 1))
	}
	return l
}

// write passes one piece on; whole begins a line.
func (l *lines) write(rank int, piece []byte, begins bool) {
	if l.width > 0 && begins {
		piece = append(fmt.Appendf(nil, "%*d: ", l.width, rank), piece...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dest.Write(piece) // a reader that went away is no reason to stop the tasks
}

// copy passes on the lines of one rank until its end.
func (l *lines) copy(rank int, src io.ReadCloser) {
	defer src.Close()
	var held []byte
	begins := true
	buf := make([]byte, 4096)
	for {
		n, err := src.Read(buf)
		for rest := buf[:n]; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				held = append(held, rest...)
				break
			}
			l.write(rank, append(held, rest[:i+1]...), begins)
			held, begins, rest = held[:0], true, rest[i+1:]
		}
		if len(held) >= pieceMax {
			l.write(rank, held, begins)
			held, begins = held[:0], false
		}
		if err != nil {
			break
		}
		if n == len(buf) && n < pieceMax {
			buf = make([]byte, 2*n) // a busy stream is worth larger reads
		}
	}
	if len(held) > 0 || !begins {
		if l.width > 0 {
			held = append(held, '\n') // or the next rank's label would follow it
		}
		l.write(rank, held, begins)
	}
}

// inputChunks bounds what is read ahead for a rank that reads more slowly than
// the others.
const inputChunks = 16

// broadcast sends src to every writer. A rank that has closed its input, or has
// ended, drops out; one that does not read holds the others back.
func broadcast(src io.Reader, writers []*os.File) {
	type feed struct {
		chunks chan []byte
		gone   chan struct{}
	}
	feeds := make([]feed, len(writers))
	for i, w := range writers {
		f := feed{make(chan []byte, inputChunks), make(chan struct{})}
		feeds[i] = f
		go func() {
			defer w.Close()
			defer close(f.gone)
			for c := range f.chunks {
				if _, err := w.Write(c); err != nil {
					return
				}
			}
		}()
	}
	for {
		buf := make([]byte, 32<<10)
		n, err := src.Read(buf)
		for _, f := range feeds {
			select {
			case f.chunks <- buf[:n]:
			case <-f.gone:
			}
		}
		if err != nil {
			break
		}
	}
	for _, f := range feeds {
		close(f.chunks)
	}
}
