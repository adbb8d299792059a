package spool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"stepd/api/stepapi"
	"stepd/eventlog"
	"stepd/internal/linux"
	"stepd/internal/rmtree"
	"stepd/step"
)

// File is a file of the spool that is read. The caller closes it.
type File struct {
	spool *Spool
	file  *os.File
}

// Close closes it.
func (f *File) Close() error { return f.file.Close() }

// Read is io.Reader's; its error may be a SilentError.
func (f *File) Read(b []byte) (int, error) {
	buf := make([]byte, len(b)) // b is not ours any more when its owner has gone
	var got int
	err := f.spool.Do(func() (err error) {
		got, err = f.file.Read(buf)
		return err
	})
	if errors.As(err, new(SilentError)) {
		return 0, err
	}
	return copy(b, buf[:got]), err
}

// Size is how many bytes the file has.
func (f *File) Size() (int64, error) {
	info, err := get(f.spool, f.file.Stat)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Open opens a file to be read.
func (s *Spool) Open(path string) (*File, error) {
	f, err := get(s, func() (*os.File, error) { return s.open(path, os.O_RDONLY) })
	if err != nil {
		return nil, err
	}
	return &File{s, f}, nil
}

// Forget removes the logs and the kept output of steps that the store has forgotten.
func (s *Spool) Forget(ids []step.ID) {
	if len(ids) == 0 {
		return
	}
	err := s.Do(func() error {
		s.removeForgotten(ids)
		return nil
	})
	if err != nil {
		s.log.Warnf("cannot remove the event logs of %d forgotten steps: %v", len(ids), err)
	}
}

// LogSize is how many bytes the event log of a step has, 0 where that is unknown.
func (s *Spool) LogSize(id step.ID) int64 {
	info, err := get(s, func() (os.FileInfo, error) { return os.Lstat(s.Events(id)) })
	if err != nil {
		return 0
	}
	return info.Size()
}

// removeForgotten removes their files. The log goes last: where it is, others may be.
func (s *Spool) removeForgotten(ids []step.ID) {
	for _, id := range ids {
		for _, path := range []string{s.Result(id), s.Output(id), s.Events(id)} {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				s.log.WithField("step", id.Name()).Warnf("cannot remove what is kept of a forgotten step: %v", err)
			}
		}
	}
}

// removeMax bounds the removal of what a user has filled.
const removeMax = time.Minute

// RemoveBelow removes name, what is mounted there and all below it from a directory of ours, following no
// link; a missing name, or directory, is fine.
func RemoveBelow(dir, name string) error {
	d, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open directory: %w", err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), removeMax)
	defer cancel()
	err = linux.UnmountAt(d, name) // a step's folder of PMIx is a mount
	if err == nil {
		err = rmtree.Remove(ctx, d, name)
	}
	if err != nil {
		return fmt.Errorf("cannot remove %q: %w", filepath.Join(dir, name), err)
	}
	return nil
}

// MakeJobDir makes the directory of a job's batch script, with slurmstepd's owner and mode for it,
// and a link to it in SlurmdSpoolDir, where Prolog and Epilog look for the script. What slurmd has
// there stays.
func (s *Spool) MakeJobDir(job, gid uint32) error {
	dir := s.jobDir(job)
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	err := errors.Join(os.Chmod(dir, 0o750), os.Chown(dir, -1, int(gid)))
	if err != nil || s.Slurmd == "" {
		return err
	}
	link := filepath.Join(s.Slurmd, jobName(job))
	if err := os.Symlink(dir, link); err != nil && !s.linksTo(link, dir) {
		s.log.WithField("job", job).Warnf("prolog and epilog do not find the batch script in SlurmdSpoolDir: %v", err)
	}
	return nil
}

func (s *Spool) linksTo(link, dir string) bool {
	to, err := os.Readlink(link)
	return err == nil && to == dir
}

// RemoveJobDir removes the directory of a job's batch script.
func (s *Spool) RemoveJobDir(job uint32) error {
	return s.Do(func() error {
		return errors.Join(RemoveBelow(s.ScriptsDir(), jobName(job)), s.SweepJobLinks(jobName(job)))
	})
}

// SweepJobLinks removes the links of MakeJobDir of these names (a pattern) whose directory is gone.
func (s *Spool) SweepJobLinks(pattern string) (err error) {
	if s.Slurmd == "" {
		return nil
	}
	entries, _ := os.ReadDir(s.Slurmd) // without it there is no link
	for _, e := range entries {
		dir := filepath.Join(s.ScriptsDir(), e.Name())
		link := filepath.Join(s.Slurmd, e.Name())
		if ok, _ := filepath.Match(pattern, e.Name()); !ok || !s.linksTo(link, dir) {
			continue
		}
		if _, gone := os.Lstat(dir); errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, os.Remove(link))
		}
	}
	return err
}

// Log writes an event to a step's log.
func (s *Spool) Log(log *os.File, e eventlog.Event) error {
	return s.Do(func() error { return writeEvents(log, e) })
}

// TakeResult reads the result that the stepd of a step has left. os.ErrNotExist is in the error
// when there is none.
func (s *Spool) TakeResult(id step.ID) (*step.Record, error) {
	return get(s, func() (*step.Record, error) { return readResult(s.Result(id), id) })
}

// readResult reads the result that stepd left because no noded took it:
// a final step.Record, written by rename, so it is whole or not
// there. os.ErrNotExist is in the error when there is none.
func readResult(path string, id step.ID) (*step.Record, error) {
	f, err := linux.OpenBeneath(filepath.Dir(path), filepath.Base(path), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open result: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, stepapi.RecordMax+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read result %q: %w", path, err)
	}
	rec, err := parseResult(b, id)
	if err != nil {
		return nil, fmt.Errorf("cannot use result %q: %w", path, err)
	}
	return rec, nil
}

func parseResult(b []byte, id step.ID) (*step.Record, error) {
	if len(b) > stepapi.RecordMax {
		return nil, fmt.Errorf("longer than %d bytes", stepapi.RecordMax)
	}
	rec := new(step.Record)
	if err := json.Unmarshal(b, rec); err != nil {
		return nil, err
	}
	if rec.ID != id {
		return nil, fmt.Errorf("it is of step %s", rec.ID)
	}
	if !IsFinal(rec.State) {
		return nil, fmt.Errorf("state %.40q is not final", string(rec.State))
	}
	return rec, nil
}

// IsFinal is State.Final for a word that came from outside: an unknown one is
// no state at all.
func IsFinal(s step.State) bool {
	switch s {
	case step.Completed, step.Failed, step.Cancelled, step.Timeout, step.OutOfMemory, step.NodeFail:
		return true
	}
	return false
}

// outputRoom bounds what the kept output of all steps may take of the spool: as many
// bytes, or four steps' output. One user may have all of it, until others need room.
const outputRoom = 64 << 20

// keptOutput is what is left of one step.
type keptOutput struct {
	name string
	uid  uint32 // the step's: the file is its
	size int64
	at   time.Time
}

// KeepOutput bounds the kept outputs where a step of uid that has just ended has left one; the
// site keeps replay bytes of each. Where the spool does not answer, the next step's end does it.
func (s *Spool) KeepOutput(id step.ID, uid uint32, replay int64) {
	// The log has a SilentError.
	_ = s.Do(func() error {
		s.boundOutput(id, uid, max(outputRoom, 4*replay))
		return nil
	})
}

// boundOutput removes kept outputs where all together have more than most bytes.
func (s *Spool) boundOutput(id step.ID, uid uint32, most int64) {
	path := s.Output(id)
	// A stepd that was killed while it wrote has left a part, which is of no use.
	if err := os.Remove(path + ".tmp"); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warnf("cannot remove what step %s has left: %v", id, err)
	}
	// The file's owner is its user, when there are too many; no other user gets into the
	// directory.
	if err := os.Lchown(path, int(uid), -1); errors.Is(err, os.ErrNotExist) {
		return // nothing new
	} else if err != nil {
		s.log.Warnf("cannot give kept output to its user: %v", err)
	}
	entries, err := os.ReadDir(s.OutputDir())
	if err != nil {
		s.log.Warnf("cannot read the kept outputs: %v", err)
		return
	}
	var all []keptOutput
	for _, e := range entries {
		if fi, err := e.Info(); err == nil {
			all = append(all, keptOutput{e.Name(), fi.Sys().(*syscall.Stat_t).Uid, fi.Size(), fi.ModTime()})
		}
	}
	for _, k := range surplus(all, most) {
		if err := os.Remove(filepath.Join(s.OutputDir(), k.name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Warnf("cannot remove kept output: %v", err)
		}
	}
}

// surplus are the outputs beyond the room: each time the oldest of the user who has
// most, so that one user's steps do not push out others' output.
func surplus(all []keptOutput, room int64) (gone []keptOutput) {
	slices.SortFunc(all, func(a, b keptOutput) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.name, b.name)) })
	of := make(map[uint32][]keptOutput) // by user, the oldest first
	sum := make(map[uint32]int64)
	for _, k := range all {
		of[k.uid] = append(of[k.uid], k)
		sum[k.uid] += k.size
		room -= k.size
	}
	for room < 0 {
		most := all[0].uid
		for uid, n := range sum {
			if n > sum[most] || n == sum[most] && uid < most {
				most = uid
			}
		}
		k := of[most][0]
		of[most], sum[most], room = of[most][1:], sum[most]-k.size, room+k.size
		gone = append(gone, k)
	}
	return gone
}

// BeginEvents makes a step's event log and writes what happened so far: when it was submitted,
// and which CPUs it was given. The caller closes the log by CloseFile.
func (s *Spool) BeginEvents(id step.ID, submitted time.Time, cpus string) (*os.File, error) {
	return get(s, func() (*os.File, error) {
		const fresh = os.O_WRONLY | os.O_APPEND | os.O_CREATE | os.O_EXCL
		log, err := s.open(s.Events(id), fresh)
		if errors.Is(err, os.ErrExist) { // of an earlier run: noded was killed before it had removed what the store had forgotten
			s.removeForgotten([]step.ID{id})
			log, err = s.open(s.Events(id), fresh)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot create event log: %w", err)
		}
		err = writeEvents(log,
			eventlog.Event{Time: submitted, Event: eventlog.EventRequest, JobID: &id.Job, StepID: &id.Step, ID: id.Name()},
			eventlog.Event{Time: time.Now(), Event: eventlog.EventAccepted, JobID: &id.Job, StepID: &id.Step, ID: id.Name(), Text: "cpus " + cpus},
		)
		if err != nil { // without room for these lines the empty file would stay
			err = errors.Join(err, log.Close(), os.Remove(s.Events(id)))
		}
		return log, err
	})
}

// trialName is the file that Try makes, and trialSize what it has.
const (
	trialName = ".trial"
	trialSize = 64 << 10
)

// Try makes what is missing of the directories and writes a file in each that a launch needs. opened
// is the spool's directory as noded has opened it.
func (s *Spool) Try(opened os.FileInfo) error {
	return s.Do(func() error {
		if now, err := os.Stat(s.Dir); err != nil || !os.SameFile(opened, now) {
			return fmt.Errorf("the spool %q is not the directory that noded has opened: bring that back, or restart noded", s.Dir)
		}
		if err := s.Make(); err != nil {
			return err
		}
		for _, dir := range []string{s.EventsDir(), s.ScriptsDir(), s.StepsDir()} {
			path := filepath.Join(dir, trialName)
			err := errors.Join(os.WriteFile(path, make([]byte, trialSize), 0o600), os.Remove(path))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func writeEvents(log *os.File, events ...eventlog.Event) error {
	var b []byte
	for _, e := range events {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("cannot encode event %q: %w", e.Event, err)
		}
		b = append(append(b, line...), '\n')
	}
	if _, err := log.Write(b); err != nil {
		return fmt.Errorf("cannot write event log: %w", err)
	}
	return nil
}

// LoseTasks gives the tasks of a step whose stepd has died their ends, with what its event log has.
// heard is until when stepd is known to have worked.
func (s *Spool) LoseTasks(rec *step.Record, heard time.Time) error {
	own := *rec // this call's, which may last longer than its caller waits
	own.Tasks = slices.Clone(rec.Tasks)
	err := s.Do(func() error {
		log, err := s.open(s.Events(own.ID), os.O_RDONLY)
		if err != nil {
			return fmt.Errorf("cannot open event log: %w", err)
		}
		defer log.Close()
		st, err := log.Stat()
		if err != nil {
			return fmt.Errorf("cannot read event log: %w", err)
		}
		eventlog.LoseTasks(&own, io.NewSectionReader(log, 0, st.Size()), heard)
		return nil
	})
	if err != nil {
		eventlog.LoseTasks(rec, nil, heard)
		return err
	}
	rec.Tasks = own.Tasks
	return nil
}

// LogEnd writes the lines that a stepd can no longer write.
func (s *Spool) LogEnd(rec *step.Record) error {
	end := *rec // this call's, which may last longer than its caller waits
	return s.Do(func() error { return s.logEnd(&end, time.Now()) })
}

func (l Layout) logEnd(rec *step.Record, now time.Time) error {
	log, err := l.open(l.Events(rec.ID), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return fmt.Errorf("cannot open event log: %w", err)
	}
	var events []eventlog.Event
	if rec.StepdPID != 0 {
		_, err = log.WriteString("\n") // stepd's last line may have no end
		events = append(events, eventlog.Event{Time: now, Event: eventlog.EventKill, Text: rec.Reason})
	}
	if rec.Usage != nil {
		events = append(events, eventlog.Event{Time: now, Event: eventlog.EventUsage, Usage: rec.Usage})
	}
	if err == nil {
		err = writeEvents(log, append(events,
			eventlog.Event{Time: now, Event: eventlog.EventState, State: rec.State, Text: rec.Reason},
			eventlog.Event{Time: now, Event: eventlog.EventEnd, State: rec.State},
		)...)
	}
	return errors.Join(err, log.Close())
}
