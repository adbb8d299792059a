package stepio

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

const (
	// pieceMax is the longest part of a line that is held back for its end. A
	// longer line is passed on in pieces, so that memory stays bounded.
	pieceMax = 64 << 10
	// gatherMax is how much waits for one write at the most; copyMax the longest
	// piece that is copied for it.
	gatherMax, copyMax = 256 << 10, 16 << 10
)

// lines writes what many ranks write to one file: by whole lines, with the rank before
// each where that is asked for. What ranks write at the same time goes out in one write.
// A rank that is silent costs nothing. One goroutine at a time may call its methods.
type lines struct {
	fd         int // of the file
	width      int // of a label; 0 without
	unbuffered bool

	out []byte    // what is to be written
	mid *lineFeed // whose line stands in the file without its end
	err error     // what the file did not take

	writing func(b []byte)  // called with what is about to be written
	failed  func(err error) // called with err, once
}

func newLines(dest *os.File, ntasks int, opt *Options, failed func(error)) *lines {
	l := &lines{fd: rawFD(dest), unbuffered: opt.Unbuffered, writing: opt.writingTo(dest), failed: failed}
	if opt.Label {
		l.width = len(strconv.Itoa(ntasks - 1))
	}
	return l
}

// outputs are the files of one stream: one for all ranks, or several.
type outputs struct {
	make  func(*os.File) *lines
	files map[*os.File]*lines
	name  func(rank int) *os.File
}

func newOutputs(fd int, dest *os.File, ntasks int, opt *Options) *outputs {
	o := &outputs{files: make(map[*os.File]*lines), name: func(int) *os.File { return dest }}
	o.make = func(f *os.File) *lines {
		return newLines(f, ntasks, opt, func(err error) { opt.failed(fd, f, err) })
	}
	if opt.Of != nil {
		o.name = func(rank int) *os.File { return opt.Of(fd, rank) }
	}
	return o
}

// of is where a rank's lines go. One goroutine at a time may call it.
func (o *outputs) of(rank int) *lines {
	f := o.name(rank)
	if o.files[f] == nil {
		o.files[f] = o.make(f)
	}
	return o.files[f]
}

// lineFeed is what one rank writes: what has no end yet is held back.
type lineFeed struct {
	label   []byte
	held    []byte
	partial bool // the beginning of held's line was passed on already
}

func (l *lines) feed(rank int) *lineFeed {
	f := &lineFeed{}
	if l.width > 0 {
		f.label = fmt.Appendf(nil, "%*d: ", l.width, rank)
	}
	return f
}

// manner is how a piece is passed on.
type manner int

const (
	byLines manner = iota
	asItComes
)

// take passes on a piece at once; failed is called with what is wrong.
func (l *lines) take(f *lineFeed, data []byte, how manner) {
	if how == asItComes {
		_ = l.write(f, data, false)
	} else {
		_ = l.add(f, data)
	}
	_ = l.flush()
}

// add takes the next bytes, which stay the caller's. They may wait for flush.
func (l *lines) add(f *lineFeed, data []byte) error {
	if i := bytes.LastIndexByte(data, '\n'); i >= 0 {
		if err := l.write(f, data[:i+1], false); err != nil {
			return err
		}
		data = data[i+1:]
	}
	f.held = append(f.held, data...)
	switch {
	case len(f.held) >= pieceMax, l.unbuffered && len(f.held) > 0:
		return l.writePiece(f)
	case len(f.held) == 0:
		f.held = nil
	}
	return nil
}

// writePiece passes on what is held of a line without its end, up to the last whole
// character: another rank's line may come between.
func (l *lines) writePiece(f *lineFeed) error {
	whole := len(f.held)
	for i := 1; i < utf8.UTFMax && i <= len(f.held); i++ {
		if c := f.held[len(f.held)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(f.held[len(f.held)-i:]) {
				whole -= i
			}
			break
		}
	}
	if whole == 0 {
		return nil
	}
	rest := append([]byte(nil), f.held[whole:]...)
	f.held = f.held[:whole]
	err := l.write(f, nil, true)
	f.held = append(f.held, rest...)
	return err
}

// write passes on what is held and data behind it: whole lines, or the beginning of one.
func (l *lines) write(f *lineFeed, data []byte, partial bool) error {
	switch {
	case l.err != nil:
		return l.err
	case l.width > 0:
		l.label(f, data)
		l.mid = nil
		if partial {
			l.mid = f
		}
	case len(f.held)+len(data) <= copyMax:
		l.out = append(append(l.out, f.held...), data...)
	default:
		l.put(l.out, f.held, data) // as it is, and without a copy
		l.out = l.out[:0]
	}
	f.partial = partial
	f.held = f.held[:0]
	if len(l.out) >= gatherMax {
		return l.flush()
	}
	return l.err
}

// flush writes what waits.
func (l *lines) flush() error {
	l.put(l.out)
	l.out = l.out[:0]
	return l.err
}

// put writes, unless the file takes nothing any more.
func (l *lines) put(pieces ...[]byte) {
	if l.err != nil {
		return
	}
	for _, piece := range pieces {
		l.writing(piece)
	}
	if l.err = writeAll(l.fd, pieces...); l.err != nil && l.failed != nil {
		l.failed(l.err)
	}
}

// label adds held and data to out, with the label before each line that begins in
// them. A line of another rank that has no end yet gets one, and goes on in the next.
func (l *lines) label(f *lineFeed, data []byte) {
	out := l.out
	if l.mid != nil && l.mid != f {
		l.mid.partial = false
		out = append(out, '\n')
	}
	if !f.partial {
		out = append(out, f.label...)
	}
	out = append(out, f.held...)
	for {
		n := bytes.IndexByte(data, '\n') + 1
		if n == 0 || n == len(data) {
			break
		}
		out = append(out, data[:n]...)
		out = append(out, f.label...)
		data = data[n:]
	}
	l.out = append(out, data...)
}

// end passes on the last of a rank, at once.
func (l *lines) end(f *lineFeed) error {
	if len(f.held) > 0 || f.partial {
		var newline []byte
		if l.width > 0 {
			newline = []byte{'\n'} // or the next rank's label would follow it
		}
		_ = l.write(f, newline, false) // flush reports it
	}
	return l.flush()
}

// Remote writes what comes of the tasks' output in pieces, by rank, to the client's own
// files, as Session does with the tasks' pipes: by whole lines, labelled where that was
// asked for. Make it with NewRemote.
type Remote struct {
	outs [3]*remoteOutput // by stream; stdin has none
}

// remoteOutput is one of the two streams. Its pieces come one after the other.
type remoteOutput struct {
	outs  *outputs
	whole bool // bytes go out as they come
	feeds map[int]*lineFeed
}

// NewRemote makes the client's end of the streams. opt.Stdin and opt.SameUser are not
// used.
func NewRemote(spec *step.Spec, opt Options) *Remote {
	r := &Remote{}
	widenOwn(opt.Stdout)
	for _, out := range []struct {
		fd     int
		stream step.Stream
		dest   *os.File
	}{{1, spec.Stdout, opt.Stdout}, {2, spec.Stderr, opt.Stderr}} {
		one := spec.NTasks == 1 || out.stream.Rank != nil
		r.outs[out.fd] = &remoteOutput{
			outs: newOutputs(out.fd, out.dest, spec.NTasks, &opt), feeds: make(map[int]*lineFeed),
			whole: !opt.Label && (opt.Unbuffered || one),
		}
	}
	return r
}

// Output takes a piece of what rank wrote on fd (1 or 2), or its end. Pieces of one
// fd are given one after the other; pieces of the other may come at the same time.
// Once the file takes no more, they are dropped; Options.Failed was called then.
func (r *Remote) Output(fd, rank int, data []byte, end bool) {
	o := r.outs[fd]
	feed, out := o.feeds[rank], o.outs.of(rank)
	if feed == nil {
		feed = out.feed(rank)
		o.feeds[rank] = feed
	}
	if o.whole {
		out.take(feed, data, asItComes)
		return
	}
	out.take(feed, data, byLines)
	if end {
		_ = out.end(feed) // failed gets the error
		delete(o.feeds, rank)
	}
}

// End passes on what is held back of lines whose end did not come: their node was
// lost.
func (r *Remote) End() {
	for _, o := range r.outs {
		if o == nil {
			continue
		}
		for rank, feed := range o.feeds {
			_ = o.outs.of(rank).end(feed)
		}
	}
}

// bufferSize is what is read at once: what a pipe holds, and the processor's cache.
const bufferSize = 256 << 10

// gather reads one stream of many ranks and passes it on by lines. It is one thread that
// waits for the kernel: a goroutine for each rank would have them all wait for the file
// in turns, and take twice as long.
type gather struct {
	epoll   int
	sources map[int]*source // by descriptor
	buf     []byte
	used    []*lines // of one round; kept for its room
}

// source is what one rank writes.
type source struct {
	feed *lineFeed
	to   *lines
}

func newGather() (*gather, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &gather{epoll: fd, sources: make(map[int]*source)}, nil
}

// add takes the pipe over, from which rank's lines come.
func (g *gather) add(rank int, pipe *os.File, to *lines) error {
	fd, err := TakeFD(pipe) // or the runtime's poller would be woken as well
	if err != nil {
		return err
	}
	g.sources[fd] = &source{to.feed(rank), to}
	return unix.EpollCtl(g.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// run passes on what comes until all pipes have ended, or their files take no more.
func (g *gather) run() {
	defer g.close()
	_ = linux.BatchThread() // without it the bytes only take longer
	g.buf = make([]byte, bufferSize)
	var events [128]unix.EpollEvent
	for len(g.sources) > 0 {
		n, err := unix.EpollWait(g.epoll, events[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // internal error: the descriptor is no epoll any more
		}
		g.used = g.used[:0]
		for _, e := range events[:max(n, 0)] {
			if s := g.sources[int(e.Fd)]; s != nil && !g.read(int(e.Fd), s) {
				delete(g.sources, int(e.Fd))
				unix.Close(int(e.Fd))
			}
			if s := g.sources[int(e.Fd)]; s != nil && (len(g.used) == 0 || g.used[len(g.used)-1] != s.to) {
				g.used = append(g.used, s.to)
			}
		}
		for _, l := range g.used {
			_ = l.flush() // failed gets the error, as does the next read
		}
	}
}

// read passes on what is available, and reports whether more may come.
func (g *gather) read(fd int, s *source) bool {
	n, err := unix.Read(fd, g.buf)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return true
	case n > 0:
		return s.to.add(s.feed, g.buf[:n]) == nil
	}
	_ = s.to.end(s.feed) // failed gets the error
	return false
}

func (g *gather) close() {
	for fd := range g.sources {
		unix.Close(fd)
	}
	g.sources = nil
	unix.Close(g.epoll)
}
