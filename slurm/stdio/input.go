package stdio

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// heldMax bounds what tasks have not read yet: beyond it nothing is taken from srun until
// one of them reads, or ends.
const heldMax = 1 << 20

// turnsMax bounds how often the input that is read at once changes its task: each change takes
// memory for every task. srun sends what is for all, or for one.
const turnsMax = 64

// input is the stdin of one task. The loop alone uses it.
type input struct {
	task    int
	fd      int // -1 when closed
	queue   []span
	blocked bool // the pipe is full
	ending  bool // what follows the queue is the end of file
	dirty   bool // it is in inputs.dirty
}

// span is a part of what srun has sent.
type span struct {
	of       *chunk
	from, to int
}

// chunk is data of srun's in memory, for as long as a task has not read it.
type chunk struct {
	data []byte
	refs int // spans that have it
	cost int // of inputs.held; 0 until it is kept
}

// spanCost is about what a span takes in memory beside its data.
const spanCost = 32

// inputs are all tasks' stdin.
type inputs struct {
	all   []*input
	byID  map[uint16]*input // by rank, as frames have it
	ranks map[uint16]bool   // of all tasks here
	dirty []*input          // have been given something
	held  int               // bytes of chunks and spans
}

// full reports whether nothing is to be taken from srun for now.
func (in *inputs) full() bool { return in.held >= heldMax }

// give takes the frames in window to their tasks, and returns what is left behind the last
// whole one. window is the caller's again afterwards, and was changed. asked says that srun asks
// whether this daemon lives.
func (in *inputs) give(window []byte) (rest []byte, asked bool, err error) {
	c := &chunk{data: window}
	whole := 0 // data is put together in the beginning of window, without headers
	var last header
	begin, turns := 0, 0
	run := func() { // hands on data of one destination
		if whole > begin {
			in.each(last, func(i *input) { i.queue = append(i.queue, span{c, begin, whole}); c.refs++ })
		}
		begin = whole
	}
	rest = window
	for {
		h, data, ok, err := nextFrame(rest)
		if err == nil && ok {
			err = in.check(h)
		}
		if err != nil {
			return nil, asked, err
		}
		if !ok {
			break
		}
		switch {
		case h.kind == test:
			asked = true
		case h.kind != last.kind || h.rank != last.rank || len(data) == 0:
			if turns++; turns > turnsMax {
				return nil, asked, fmt.Errorf("input for other tasks more than %d times in %d bytes", turnsMax, len(window))
			}
			run()
			last = h
		}
		if len(data) > 0 {
			whole += copy(window[whole:], data)
		} else if h.kind != test {
			in.each(h, func(i *input) { i.ending = true })
		}
		rest = rest[headerSize+len(data):]
	}
	run()
	in.writeAll()
	if c.refs > 0 {
		c.data, c.cost = bytes.Clone(window[:whole]), whole+spanCost*c.refs
		in.held += c.cost
	}
	return rest, asked, nil
}

// check returns an error for a frame of a task that is not here.
func (in *inputs) check(h header) error {
	if h.kind == stdinOne && !in.ranks[h.rank] {
		return fmt.Errorf("input for task %d, which is not on this node", h.rank)
	}
	return nil
}

// each calls do with the inputs that the frame is for and that take more.
func (in *inputs) each(h header, do func(*input)) {
	touch := func(i *input) {
		if i.fd < 0 || i.ending {
			return // the task has closed it: what comes is dropped, as by slurmstepd
		}
		do(i)
		if !i.dirty {
			i.dirty = true
			in.dirty = append(in.dirty, i)
		}
	}
	if h.kind == stdinAll {
		for _, i := range in.all {
			touch(i)
		}
	} else if i := in.byID[h.rank]; i != nil {
		touch(i)
	}
}

// writeAll gives tasks what has come for them.
func (in *inputs) writeAll() {
	for _, i := range in.dirty {
		i.dirty = false
		in.write(i)
	}
	in.dirty = in.dirty[:0]
}

// write gives a task what its pipe takes.
func (in *inputs) write(i *input) {
	for len(i.queue) > 0 && !i.blocked {
		s := &i.queue[0]
		n, err := unix.Write(i.fd, s.of.data[s.from:s.to])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			i.blocked = true
		case err != nil: // EPIPE: the task reads no more
			in.close(i)
			return
		default:
			if s.from += n; s.from == s.to {
				in.release(s.of)
				*s = span{} // or the chunk would stay
				i.queue = i.queue[1:]
			}
		}
	}
	if len(i.queue) == 0 {
		i.queue = nil
		if i.ending {
			in.close(i)
		}
	}
}

func (in *inputs) release(c *chunk) {
	if c.refs--; c.refs == 0 {
		in.held -= c.cost
	}
}

// close ends a task's input; what it has not read is dropped.
func (in *inputs) close(i *input) {
	for _, s := range i.queue {
		in.release(s.of)
	}
	i.queue = nil
	if i.fd >= 0 {
		unix.Close(i.fd)
		i.fd = -1
	}
}

// end lets each task have what has come for it, and the end of file then.
func (in *inputs) end() {
	in.each(header{kind: stdinAll}, func(i *input) { i.ending = true })
	in.writeAll()
}

// closeAll ends all.
func (in *inputs) closeAll() {
	for _, i := range in.all {
		in.close(i)
	}
}
