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

// write passes one piece on.
func (l *lines) write(piece []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dest.Write(piece) // a reader that went away is no reason to stop the tasks
}

// copy passes on the lines of one rank until its end.
func (l *lines) copy(rank int, src io.ReadCloser) {
	defer src.Close()
	feed := lineFeed{out: l, rank: rank}
	buf := make([]byte, 4096)
	for {
		n, err := src.Read(buf)
		feed.add(buf[:n])
		if err != nil {
			break
		}
		if n == len(buf) && n < pieceMax {
			buf = make([]byte, 2*n) // a busy stream is worth larger reads
		}
	}
	feed.end()
}

// lineFeed is what one rank writes: its whole lines go to out, several at once,
// and what has no end yet is held back.
type lineFeed struct {
	out     *lines
	rank    int
	held    []byte
	partial bool // the beginning of held's line was passed on already
	scratch []byte
}

// add takes the next bytes, which stay the caller's.
func (f *lineFeed) add(data []byte) {
	if i := bytes.LastIndexByte(data, '\n'); i >= 0 {
		f.held = append(f.held, data[:i+1]...)
		f.flush()
		f.partial = false
		data = data[i+1:]
	}
	f.held = append(f.held, data...)
	if len(f.held) >= pieceMax {
		f.flush()
		f.partial = true
	}
}

// flush passes on what is held, with a label before each line that begins in it.
func (f *lineFeed) flush() {
	if f.out.width == 0 {
		f.out.write(f.held)
		f.held = f.held[:0]
		return
	}
	f.scratch = f.scratch[:0]
	begins := !f.partial
	for rest := f.held; len(rest) > 0; {
		n := bytes.IndexByte(rest, '\n') + 1
		if n == 0 {
			n = len(rest)
		}
		if begins {
			f.scratch = fmt.Appendf(f.scratch, "%*d: ", f.out.width, f.rank)
		}
		f.scratch = append(f.scratch, rest[:n]...)
		begins, rest = true, rest[n:]
	}
	f.out.write(f.scratch)
	f.held = f.held[:0]
}

// end passes on the last of it.
func (f *lineFeed) end() {
	if len(f.held) == 0 && !f.partial {
		return
	}
	if f.out.width > 0 {
		f.held = append(f.held, '\n') // or the next rank's label would follow it
	}
	f.flush()
	f.partial = false
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
