package stepnet

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outputs are what this node's tasks write.
type outputs struct {
	outMu   sync.Mutex
	files   map[*os.File]int // guarded by outMu: open; the stream of each
	nobody  [3]bool          // guarded by outMu: nobody reads the stream
	passed  [3]atomic.Int64  // bytes that have gone up, by stream
	reading sync.WaitGroup
	buffers sync.Pool // of *[]byte: a stream that is silent holds none
}

func (o *outputs) init() {
	o.files = make(map[*os.File]int)
	o.buffers.New = func() any { b := make([]byte, chunk); return &b }
}

// Output passes on what comes from the read end of a pipe until its end, as
// stream fd (1 or 2) of a rank, or of step.AllRanks where the node's tasks share
// it. It takes over the file, which must not block.
func (n *Node) Output(fd, rank int, f *os.File) {
	n.outMu.Lock()
	defer n.outMu.Unlock()
	if n.nobody[fd] {
		f.Close()
		return
	}
	n.files[f] = fd
	n.reading.Go(func() {
		n.copyOut(fd, rank, f)
		f.Close()
		n.outMu.Lock()
		delete(n.files, f)
		n.outMu.Unlock()
	})
}

func (n *Node) copyOut(fd, rank int, f *os.File) {
	raw, err := f.SyscallConn()
	for rest := restMax; err == nil; {
		var data []byte
		data, err = n.readSome(raw)
		if errors.Is(err, os.ErrDeadlineExceeded) && rest > 0 {
			data, err = n.readRest(raw)
			rest -= len(data)
		}
		if len(data) > 0 {
			if !n.send(fd, (&output{fd: fd, rank: rank, data: data}).frame()) {
				return // nobody reads: the pipe's end tells the task
			}
			n.passed[fd].Add(int64(len(data)))
			n.hears(fd, rank, data)
		}
		freePiece(data)
	}
	n.send(fd, (&output{fd: fd, rank: rank, end: true}).frame())
}

// Passed is how many bytes of stream fd (1 or 2) of this node's tasks have gone up.
func (n *Node) Passed(fd int) int64 { return n.passed[fd].Load() }

// readSome waits until there is something to read. Only then it holds a buffer: a
// step has thousands of streams, and most are silent.
func (n *Node) readSome(raw syscall.RawConn) (data []byte, err error) {
	rerr := raw.Read(func(fd uintptr) bool {
		buf := n.buffers.Get().(*[]byte)
		defer n.buffers.Put(buf)
		var got int
		got, err = unix.Read(int(fd), *buf)
		for errors.Is(err, unix.EINTR) {
			got, err = unix.Read(int(fd), *buf)
		}
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if err == nil && got == 0 {
			err = io.EOF
		}
		if got > 0 {
			data = append(newPiece(got)[:0], (*buf)[:got]...)
		}
		return true
	})
	return data, errors.Join(rerr, err)
}

// send passes a frame on upwards when its channel has room.
func (n *Node) send(channel int, f frame) bool {
	if !n.up.out[channel].take(len(f)) {
		return false
	}
	n.up.pushBulk(f)
	return true
}

// relay passes on what comes from a child.
func (n *Node) relay(child int, l *link) {
	var left sync.WaitGroup
	for c := chanStdout; c < channels; c++ {
		left.Add(1)
		n.wg.Go(func() {
			defer left.Done()
			l.in[c].consume(func(i item) {
				f := append(newFrame(i.kind, len(i.body)).b, i.body...)
				if n.send(c, (&encoder{f}).done()) && i.kind == kindOutput && n.tap.Load() != nil {
					if o, err := parseOutput(i.body); err == nil {
						n.hears(o.fd, o.rank, o.data)
					}
				}
			}, l.credit(c))
		})
	}
	n.wg.Go(func() {
		left.Wait() // also where the child was lost: what has come is passed on
		n.mu.Lock()
		n.endedBelow[child], n.doneBelow[child] = true, true
		n.mu.Unlock()
		n.advance()
	})
}

// closeOutputs closes the tasks' pipes: a task that writes on gets SIGPIPE, as
// from any pipe that nobody reads.
func (n *Node) closeOutputs() {
	n.CloseOutput(chanStdout)
	n.CloseOutput(chanStderr)
}

// restMax is more than a pipe holds.
const restMax = 1 << 20

// readRest reads what is there after EndOutput: who holds the pipe may write on for ever.
func (n *Node) readRest(raw syscall.RawConn) (data []byte, err error) {
	buf := make([]byte, chunk)
	var got int
	cerr := raw.Control(func(fd uintptr) {
		for got, err = unix.Read(int(fd), buf); errors.Is(err, unix.EINTR); {
			got, err = unix.Read(int(fd), buf)
		}
	})
	if cerr == nil && err == nil && got <= 0 {
		err = io.EOF
	}
	return buf[:max(got, 0)], errors.Join(cerr, err)
}

// EndOutput says that what comes from the file from now on is not the tasks': what is in
// there goes up still.
func (n *Node) EndOutput(f *os.File) { _ = f.SetReadDeadline(time.Unix(1, 0)) }

// CloseOutput does so with stream fd (1 or 2) of this node's tasks.
func (n *Node) CloseOutput(fd int) {
	n.outMu.Lock()
	defer n.outMu.Unlock()
	n.nobody[fd] = true
	for f, of := range n.files {
		if of == fd {
			f.Close()
		}
	}
}

// openEnd is how long a pipe may stay open when all tasks have ended: no process
// of the step is left by then.
const openEnd = 10 * time.Second

// drainOutputs returns when the last byte of this node's tasks was sent.
func (n *Node) drainOutputs() {
	ended := make(chan struct{})
	n.wg.Go(func() { n.reading.Wait(); close(ended) })
	// A reader that waits for the launcher's room is not the pipe's fault.
	late := time.NewTicker(openEnd)
	defer late.Stop()
	last := n.up.out[chanStdout].moved() + n.up.out[chanStderr].moved()
	for {
		select {
		case <-ended:
			return
		case <-late.C:
			now := n.up.out[chanStdout].moved() + n.up.out[chanStderr].moved()
			if now == last && !n.up.out[chanStdout].waited() && !n.up.out[chanStderr].waited() {
				n.log("a process outside of the step holds its output open")
				n.closeOutputs()
			}
			last = now
		}
	}
}
