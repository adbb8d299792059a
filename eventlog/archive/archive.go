// Package archive keeps the event logs and the records of steps that no noded keeps: as files in
// slurmd's spool. The step daemon writes them, and stepctl reads them without any daemon.
//
// A step's files are DIR/J.S.events and DIR/J.S.json. Its user alone reads them, and root writes
// them, in a directory of root's. The daemon locks the former while the step runs; ended steps' files are
// removed by later steps, the oldest first. Begin with In.
package archive

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/internal/linux"
	"stepd/internal/quickjson"
	"stepd/step"
)

// Archive is a directory of steps' files.
type Archive string

// In is the archive in slurmd's spool.
func In(spool string) Archive { return Archive(filepath.Join(spool, "stepd")) }

const (
	eventsEnd = ".events"
	recordEnd = ".json"
	// recordMax and lineMax bound what is read, in bytes: the files may be a user's.
	recordMax = 64 << 20
	lineMax   = 16 << 20
)

func (a Archive) path(id step.ID, end string) string {
	return filepath.Join(string(a), id.Key()+end)
}

// Create makes the event log of a step that begins, for its user, and locks it. What an earlier
// step of the same id has left, of a job that was requeued, is removed.
func (a Archive) Create(id step.ID, uid uint32) (*os.File, error) {
	if err := os.Mkdir(string(a), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cannot make the directory of event logs: %w", err)
	}
	path := a.path(id, eventsEnd)
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL | os.O_APPEND
	f, err := linux.OpenBeneath(string(a), filepath.Base(path), flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err = errors.Join(os.Remove(path), remove(a.path(id, recordEnd))); err == nil {
			f, err = linux.OpenBeneath(string(a), filepath.Base(path), flags, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the event log: %w", err)
	}
	return a.own(f, uid)
}

// own has the user read an event log, and locks it.
func (a Archive) own(f *os.File, uid uint32) (*os.File, error) {
	err := grant(f, uid)
	if err == nil {
		err = linux.OnFD(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot make the event log %q: %w", f.Name(), err)
	}
	return f, nil
}

// Note writes the step's record, for its user.
func (a Archive) Note(rec *step.Record, uid uint32) error {
	b, err := quickjson.Marshal(rec)
	if err != nil {
		return fmt.Errorf("cannot write the record of step %s: %w", rec.ID, err)
	}
	path := a.path(rec.ID, recordEnd)
	return linux.WriteWhole(path, false, func(w io.Writer) error {
		if err := grant(w.(*os.File), uid); err != nil {
			return err
		}
		_, err := w.Write(b)
		return err
	})
}

// Lose notes that the daemon of a step has died, and why the step has ended, in its log and its
// record; known is the record where the daemon had written none. A step whose end is noted
// stays as it is.
func (a Archive) Lose(known *step.Record, reason string) error {
	rec := *known
	if written, err := a.record(known.ID); err == nil {
		if written.Ended != nil {
			return nil
		}
		rec = *written
	}
	f, err := linux.OpenBeneath(string(a), known.ID.Key()+eventsEnd, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("cannot end the event log of step %s: %w", known.ID.Name(), err)
	}
	defer f.Close()
	uid, err := reader(f)
	if err != nil {
		return fmt.Errorf("cannot end the event log of step %s: %w", known.ID.Name(), err)
	}
	now := time.Now()
	eventlog.LoseTasks(&rec, f, now)
	text := []byte("\n") // the daemon's last line may have no end
	for _, e := range []eventlog.Event{
		{Event: eventlog.EventKill, Text: reason},
		{Event: eventlog.EventState, State: step.Failed, Text: reason},
		{Event: eventlog.EventEnd, State: step.Failed, Text: reason},
	} {
		e.Time = now
		text = e.AppendTo(text)
	}
	if _, err := f.Write(text); err != nil {
		return err
	}
	if rec.Submitted.IsZero() {
		rec.Submitted = now
	}
	rec.State, rec.Reason, rec.ExitCode, rec.Signal, rec.Ended = step.Failed, reason, new(1), nil, &now
	rec.StepdLost, rec.StepdPID = true, 0
	return a.Note(&rec, uid)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// slack is by how many the steps exceed the limit before the oldest are looked for: to list
// them costs more than to count them.
const slack = 50

// Prune removes the files of ended steps, the oldest first, where there are more than keep.
func (a Archive) Prune(keep int) error { return a.prune(keep, lockedMax) }

func (a Archive) prune(keep, locked int) error {
	ids, err := a.steps()
	if err != nil || len(ids) <= keep+slack {
		return err
	}
	type log struct {
		id      step.ID
		written int64
	}
	var logs []log
	for _, id := range ids {
		if st, err := os.Lstat(a.path(id, eventsEnd)); err == nil {
			logs = append(logs, log{id, st.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(logs, func(x, y log) int { return int(min(max(x.written-y.written, -1), 1)) })
	var errs []error
	for i, l := range logs[:max(0, len(logs)-keep)] {
		if i < len(logs)-keep-locked {
			errs = append(errs, remove(a.path(l.id, recordEnd)), remove(a.path(l.id, eventsEnd)))
		} else {
			errs = append(errs, a.removeEnded(l.id))
		}
	}
	return errors.Join(errs...)
}

// lockedMax is how many steps beyond the limit are kept whose event log is locked. A node has
// fewer that run; a user can lock the logs of all that have ended, which must not fill the spool.
const lockedMax = 5000

// removeEnded removes a step's files unless its daemon has its event log.
func (a Archive) removeEnded(id step.ID) error {
	f, err := linux.OpenBeneath(string(a), id.Key()+eventsEnd, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := linux.OnFD(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return nil // it runs
	}
	return errors.Join(remove(a.path(id, recordEnd)), remove(f.Name()))
}

// steps are the steps that have an event log.
func (a Archive) steps() (ids []step.ID, err error) {
	dir, err := os.Open(string(a))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if text, ok := strings.CutSuffix(name, eventsEnd); ok {
			if id, err := step.ParseID(text); err == nil && id.Key() == text {
				ids = append(ids, id)
			}
		}
	}
	return ids, err
}

// Records are the records of a step, or of all steps of a job in their order where number is
// nil. A step that has begun just now has none yet. fs.ErrNotExist is in the error where there
// are none, fs.ErrPermission where they are another user's.
func (a Archive) Records(job uint32, number *uint32) (recs []*step.Record, err error) {
	if number != nil {
		rec, err := a.record(step.ID{Job: job, Step: *number})
		if err != nil {
			return nil, err
		}
		return []*step.Record{rec}, nil
	}
	ids, err := a.steps()
	if err != nil {
		return nil, err
	}
	ids = slices.DeleteFunc(ids, func(id step.ID) bool { return id.Job != job })
	slices.SortFunc(ids, func(x, y step.ID) int { return int(int64(x.Step) - int64(y.Step)) })
	for _, id := range ids {
		rec, err := a.record(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	if len(recs) == 0 {
		return nil, fmt.Errorf("cannot find a step of job %d in %q: %w", job, string(a), fs.ErrNotExist)
	}
	return recs, nil
}

func (a Archive) record(id step.ID) (*step.Record, error) {
	f, err := linux.OpenBeneath(string(a), id.Key()+recordEnd, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of step %s: %w", id.Name(), err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, recordMax))
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of step %s: %w", id.Name(), err)
	}
	rec := new(step.Record)
	if err := quickjson.Unmarshal(b, rec); err != nil {
		return nil, fmt.Errorf("cannot parse %q: %w", f.Name(), err)
	}
	if rec.ID != id {
		return nil, fmt.Errorf("cannot use %q: it is the record of step %s", f.Name(), rec.ID.Name())
	}
	rec.SetID(id) // an older release has not written IDName
	return rec, nil
}

// Events are the lines of a step's event log, each a JSON object. With follow they go on until
// the step ends.
func (a Archive) Events(id step.ID, follow bool) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		f, err := linux.OpenBeneath(string(a), id.Key()+eventsEnd, os.O_RDONLY, 0)
		if err != nil {
			yield(nil, fmt.Errorf("cannot read the event log of step %s: %w", id.Name(), err))
			return
		}
		defer f.Close()
		var in io.Reader = f
		if follow {
			watched, err := newFollower(f)
			if err != nil {
				yield(nil, err)
				return
			}
			defer watched.close()
			in = watched
		}
		if err := lines(in, yield); err != nil {
			yield(nil, fmt.Errorf("cannot read %q: %w", f.Name(), err))
		}
	}
}

// errStopped ends the lines where the caller wants no more.
var errStopped = errors.New("internal error: no more lines are wanted")

// lines hands on the events of a log, whole lines only.
func lines(in io.Reader, yield func([]byte, error) bool) error {
	r := bufio.NewReaderSize(in, 64<<10)
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > lineMax:
			return fmt.Errorf("a line has more than %d bytes", lineMax)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return nil // what has no end yet is being written
		case err != nil:
			return err
		}
		err = eventlog.ExpandEvent(bytes.TrimSuffix(line, []byte("\n")), func(event []byte) error {
			if !json.Valid(event) {
				return nil // a daemon's death may have cut it
			}
			if !yield(event, nil) {
				return errStopped
			}
			return nil
		})
		if errors.Is(err, errStopped) {
			return nil
		}
		if err != nil {
			return err
		}
		line = line[:0]
	}
}
