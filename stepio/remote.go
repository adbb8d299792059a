package stepio

import (
	"io"

	"stepd/step"
)

// Remote writes what the tasks of a step of several nodes have written to the
// client's own files, as Session does for one node: by whole lines, labelled where
// that was asked for. Make it with NewRemote.
type Remote struct {
	outs [3]*remoteOutput // by stream; stdin has none
}

// remoteOutput is one of the two streams. Its pieces come one after the other.
type remoteOutput struct {
	dest  io.Writer
	lines *lines // nil: bytes go out as they come
	feeds map[int]*lineFeed
}

// NewRemote makes the client's end of the streams. opt.Stdin and opt.SameUser are not
// used.
func NewRemote(spec *step.Spec, opt Options) *Remote {
	r := &Remote{}
	for _, out := range []struct {
		fd     int
		stream step.Stream
		dest   io.Writer
	}{{1, spec.Stdout, opt.Stdout}, {2, spec.Stderr, opt.Stderr}} {
		o := &remoteOutput{dest: out.dest, feeds: make(map[int]*lineFeed)}
		one := spec.NTasks == 1 || out.stream.Rank != nil
		if opt.Label || (!opt.Unbuffered && !one) {
			o.lines = newLines(out.dest, spec.NTasks, opt.Label)
		}
		r.outs[out.fd] = o
	}
	return r
}

// Output takes a piece of what rank wrote on fd (1 or 2), or its end. Pieces of one
// fd are given one after the other; those of the other may come at the same time.
func (r *Remote) Output(fd, rank int, data []byte, end bool) {
	o := r.outs[fd]
	if o.lines == nil {
		o.dest.Write(data) // a reader that went away is no reason to stop the tasks
		return
	}
	feed := o.feeds[rank]
	if feed == nil {
		feed = &lineFeed{out: o.lines, rank: rank}
		o.feeds[rank] = feed
	}
	feed.add(data)
	if end {
		feed.end()
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
		for _, feed := range o.feeds {
			feed.end()
		}
	}
}
