package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/eventlog"
	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/node/state"
	"stepd/step"
)

// IDs are the steps that ref names: none only of a job that runs.
func (n steps) IDs(ref api.StepRef) ([]step.ID, error) {
	if ref.StepID != nil {
		return []step.ID{{Job: ref.JobID, Step: *ref.StepID}}, nil
	}
	var ids []step.ID
	if ref.JobID != 0 {
		ids = n.store.IDs(ref.JobID)
	}
	if len(ids) == 0 && n.reg.job(ref.JobID) == nil {
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", ref.JobID)
	}
	return ids, nil
}

// listMax is how many steps List returns at once.
const listMax = 4096

// List returns the next steps behind one, by number, at most listMax: the steps that have not
// ended, with all the ended ones as well.
func (n steps) List(all bool, behind step.ID) (ids []step.ID) {
	if all {
		ids = n.store.IDs(0)
	} else {
		for _, f := range n.reg.followers() {
			ids = append(ids, f.id)
		}
	}
	at, found := slices.BinarySearchFunc(ids, behind, state.CompareIDs)
	if found {
		at++
	}
	return slices.Clone(ids[at:min(at+listMax, len(ids))]) // the others are not kept for it
}

// Step returns the record of a step: of one that runs as it is now, since the store has
// its beginning.
func (n steps) Step(id step.ID) (*step.Record, error) {
	if f := n.reg.follower(id); f != nil {
		return f.record(), nil
	}
	rec, err := n.store.Step(id)
	if errors.Is(err, state.ErrUnknown) {
		return nil, api.Errorf(api.NotFound, "no such step %q", id)
	}
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	return rec, nil
}

// Owner is the user of a job that runs, or is ending.
func (n steps) Owner(job uint32) (uid uint32, ok bool) {
	j := n.reg.job(job)
	if j == nil {
		return 0, false
	}
	return j.UID, true
}

// Await waits until the steps that ref names have ended, and returns those that there are then.
func (n steps) Await(ctx context.Context, ref api.StepRef) ([]step.ID, error) {
	// An allocation may end without a step; other jobs end with theirs.
	if j := n.reg.job(ref.JobID); ref.StepID == nil && j != nil && j.Origin == step.OriginAlloc {
		if err := n.awaitEnd(ctx, j.ended, "job"); err != nil {
			return nil, err
		}
		ids, err := n.IDs(ref)
		if api.CodeOf(err) == api.NotFound {
			return nil, nil
		}
		return ids, err
	}
	ids, err := n.IDs(ref)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		f := n.reg.follower(id)
		if f == nil {
			continue
		}
		if err := n.awaitEnd(ctx, f.ended, "step"); err != nil {
			return nil, err
		}
	}
	return n.IDs(ref)
}

// awaitEnd waits until ended is closed: the end of a step or of a job, as what says.
func (n steps) awaitEnd(ctx context.Context, ended <-chan struct{}, what string) error {
	select {
	case <-ended:
		return nil
	case <-n.stopping:
		return api.Errorf(api.Unavailable, "noded is stopping; the %s goes on", what)
	case <-ctx.Done():
		return api.ContextError(ctx.Err())
	}
}

// statEnding is how long the end of a step that does not answer is awaited.
const statEnding = time.Second

// Stat is the record of a step, with stepd's current figures of the tasks where it runs.
func (n steps) Stat(ctx context.Context, id step.ID) (*step.Record, error) {
	rec, err := n.Step(id)
	if err != nil {
		return nil, err
	}
	f := n.reg.follower(id)
	if f == nil || !f.hasStepd() || rec.State.Final() {
		return rec, nil // it says what it has used, or it uses nothing yet
	}
	reply, err := f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeStat})
	if err != nil {
		select {
		case <-f.ended:
		case <-time.After(statEnding):
		case <-ctx.Done():
		}
	}
	rec = f.record()
	switch {
	case rec.State.Final(): // it has ended meanwhile
	case err != nil:
		return nil, api.Errorf(api.Unavailable, "cannot tell what step %s uses: %v", id, err)
	case reply.Record != nil:
		rec.MergeStat(reply.Record)
	}
	return rec, nil
}

// Output opens what stepd has left of a step's output; the caller closes it. The file is whole:
// stepd has renamed it.
func (n steps) Output(id step.ID) (output io.ReadCloser, size int64, err error) {
	rec, err := n.Step(id)
	if err != nil {
		return nil, 0, err
	}
	if !rec.State.Final() {
		return nil, 0, api.Errorf(api.FailedPrecondition, "step %s is %s: its stepd has its output", rec.ID, rec.State)
	}
	f, err := n.spool.Open(n.spool.Output(rec.ID))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, api.Errorf(api.NotFound, "nothing is kept of the output of step %s", rec.ID)
	}
	if err != nil {
		return nil, 0, api.Errorf(api.Internal, "cannot open kept output: %v", err)
	}
	if size, err = f.Size(); err != nil {
		f.Close()
		return nil, 0, api.Errorf(api.Internal, "cannot open kept output: %v", err)
	}
	return f, size, nil
}

// lineMax bounds one line of an event log. A longer one is skipped: it is no event.
const lineMax = 1 << 20

// Events hands each event of the step's log to send, with follow until the step has ended.
func (n steps) Events(ctx context.Context, id step.ID, follow bool, send func([]byte) error) error {
	err := n.events(ctx, id, follow, func(line []byte) error { return eventlog.ExpandEvent(line, send) })
	if errors.Is(err, os.ErrNotExist) {
		return api.Errorf(api.NotFound, "no such step %q", id)
	}
	if _, ours := api.AsError(err); err != nil && !ours {
		return api.NewError(api.Internal, err.Error())
	}
	return err
}

// events sends the lines of the log. A follower's end is a change too: the
// last lines are read after it.
func (n steps) events(ctx context.Context, id step.ID, follow bool, send func([]byte) error) error {
	path := n.spool.Events(id)
	file, err := n.spool.Open(path)
	if err != nil {
		return fmt.Errorf("cannot open event log: %w", err)
	}
	defer file.Close()
	tail := &tail{r: file}
	f := n.reg.follower(id)
	if !follow || f == nil {
		return tail.send(send)
	}
	ctx, ended := child.Until(ctx, errEnded, f.ended)
	defer ended()
	ctx, stopped := child.Until(ctx, api.NewError(api.Unavailable, "noded is stopping; the step goes on"), n.stopping)
	defer stopped()
	err = watch(ctx, &n.watches, path, func() error { return tail.send(send) })
	if errors.Is(err, errEnded) {
		return tail.send(send)
	}
	return err
}

var errEnded = errors.New("the step has ended")

// watch calls changed once, and again after each write to the file, until it
// fails or ctx ends; it returns that error or ctx's cause.
func watch(ctx context.Context, watches *linux.Watches, path string, changed func() error) error {
	// The watch comes before the first read: a write between the two is told.
	written, stop, err := watches.Add(path, unix.IN_MODIFY)
	if err != nil {
		return err
	}
	defer stop()
	for {
		if err := changed(); err != nil {
			return err
		}
		select {
		case <-written:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tail reads whole lines of a file that grows.
type tail struct {
	r    io.Reader
	part []byte // the begin of a line whose end is not written yet
	skip bool   // the line is too long
}

// send passes on every whole line that there is now, without its newline.
func (t *tail) send(send func([]byte) error) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := t.r.Read(buf)
		if err := t.lines(buf[:n], send); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read event log: %w", err)
		}
	}
}

func (t *tail) lines(b []byte, send func([]byte) error) error {
	for {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !t.skip {
			t.part = append(t.part, line...)
		}
		if len(t.part) > lineMax {
			t.part, t.skip = nil, true
		}
		if !whole {
			return nil
		}
		if !t.skip && len(t.part) > 0 {
			if err := send(t.part); err != nil {
				return err
			}
		}
		t.part, t.skip = nil, false
		b = rest
	}
}
