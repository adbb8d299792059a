package stepio

import (
	"os"

	"stepd/step"
)

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
