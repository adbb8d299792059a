package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// entry is a batch on its way into a journal.
type entry struct {
	// batch is nil, and seq 0, in a line that only tries whether the journal can be written to.
	batch *batch
	seq   uint64
	// records are the batch's that this journal has.
	records []record
	// fact: it stays in the queue until it is written.
	fact bool
	// done gets the result once.
	done     chan error
	answered bool // guarded by mu
	// unsure: it may be in the file, though its writer got an error.
	unsure bool // guarded by mu
}

// journal is one file, and the goroutine that writes to it.
type journal struct {
	dir  folder
	name string
	path string // for messages
	// disk: what is acknowledged is on the disk.
	disk bool
	// head is the value of its header.
	head  []byte
	s     *Store
	other *journal // of the store
	wake  chan struct{}
	ended chan struct{}

	// Guarded by the store's mu.
	index index
	live  int64 // the weight of what index has and is not dead
	queue []*entry
	// flight is what is being written, since began; zero is nothing. told: its deadline
	// was missed, and that was said.
	flight []*entry
	began  time.Time
	told   bool
	failed error // of the last write
	closed bool

	// The goroutine's.
	f file
	// end is where the next line goes. cut: there is something behind it. anew: the file is
	// not to be relied on, and must be written anew.
	end       int64
	cut, anew bool
	compactAt int64
}

const (
	// copySize is how much of a copy is written at once, in bytes.
	copySize = 1 << 16
	// compactMin is the least garbage for which a journal is written anew, in bytes.
	compactMin = 1 << 19
	// writeAgain is how long it is until a write is tried again.
	writeAgain = time.Second
)

// kick wakes the goroutine.
func (j *journal) kick() {
	select {
	case j.wake <- struct{}{}:
	default: // it is awake, or about to be
	}
}

// add queues an entry; the caller holds mu.
func (j *journal) add(e *entry) {
	j.queue = append(j.queue, e)
	if err := j.silence(); err != nil {
		e.answer(err)
	}
	j.kick()
}

// answer gives an entry's caller the result; the caller holds mu.
func (e *entry) answer(err error) {
	if !e.answered {
		e.answered = true
		e.done <- err
	}
}

// run writes what is queued, until the journal is closed and the queue is empty, or cannot
// be written.
func (j *journal) run() {
	defer close(j.ended)
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		group, last := j.take()
		if len(group) == 0 {
			if last {
				_ = j.mend() // what cannot be mended has been said
				return
			}
			<-j.wake
			continue
		}
		err := j.append(group)
		j.over(group, err)
		if err == nil {
			j.compact()
			j.landed()
			continue
		}
		j.landed()
		if last {
			return
		}
		again.Reset(writeAgain)
		select {
		case <-j.wake:
		case <-again.C:
		}
	}
}

// take takes what is queued, or, where the last write has failed, a line that only tries
// another one. last: the journal is closed.
func (j *journal) take() (group []*entry, last bool) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	group, j.queue = j.queue, nil
	if len(group) == 0 && j.failed != nil && !j.closed {
		group = []*entry{{records: []record{{id: headerID, value: j.head}}, answered: true}}
	}
	if len(group) > 0 {
		j.flight, j.began = group, time.Now()
	}
	return group, j.closed
}

// landed notes that nothing is being written any more.
func (j *journal) landed() {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	if j.told {
		go j.s.cfg.Silent(nil)
	}
	j.began, j.told = time.Time{}, false
}

// over gives a group its result.
func (j *journal) over(group []*entry, err error) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	j.flight, j.failed = nil, err
	if err == nil {
		for _, e := range group {
			for i := range e.records {
				r := &e.records[i]
				j.note(r.id, newPlace(j.f, 0, e.seq, r))
			}
			j.s.wrote(j, e, true) // before the answer
			e.answer(nil)
		}
		return
	}
	// What came after a batch may be made of what that has changed.
	all := append(group, j.queue...)
	j.queue = nil
	for i, e := range all {
		if e.fact {
			j.queue = append(j.queue, e)
		} else {
			e.unsure = e.unsure || i < len(group) && (j.cut || j.anew)
			j.s.wrote(j, e, false)
		}
		e.answer(err)
	}
}

// silence returns that a write was given up, and goes on; the caller holds mu.
func (j *journal) silence() error {
	if !j.told {
		return nil
	}
	return fmt.Errorf("cannot write %q: its file system has not answered for %v: %w", j.path, time.Since(j.began).Round(time.Second), ErrSilent)
}

// giveUp answers what waits for a write that does not end. Requests are refused, all of them,
// since a later one may be made of what an earlier one changes; facts stay.
func (j *journal) giveUp(e *entry) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	if e.answered {
		return
	}
	if !j.told {
		j.told = true
		if j.began.IsZero() {
			j.began = time.Now()
		}
		go j.s.cfg.Silent(j.silence())
	}
	err := j.silence()
	refuse := func(e *entry) bool {
		if !e.fact && !e.answered {
			j.s.wrote(j, e, false)
		}
		e.answer(err)
		return !e.fact
	}
	j.queue = slices.DeleteFunc(j.queue, refuse)
	for _, e := range j.flight {
		e.unsure = e.unsure || !e.answered
		refuse(e)
	}
}

// close ends the goroutine when the queue is written, and closes the file.
func (j *journal) close(patience time.Duration) error {
	j.s.mu.Lock()
	j.closed = true
	j.s.mu.Unlock()
	j.kick()
	select {
	case <-j.ended:
	case <-time.After(patience):
		return fmt.Errorf("cannot close %q: its file system does not answer: %w", j.path, ErrSilent)
	}
	err := j.dir.close()
	if j.f != nil {
		err = errors.Join(j.f.Close(), err)
	}
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	if len(j.queue) > 0 {
		err = errors.Join(fmt.Errorf("%d changes are not stored", len(j.queue)), j.failed)
	}
	return err
}

// note makes p the place of a record, unless a later one is known; the caller holds mu.
func (j *journal) note(k id, p place) {
	old, ok := j.index.put(k, p) // a deletion too: what it is later than may still come
	if !ok {
		return
	}
	if old.f != nil && !old.dead {
		j.live -= old.weight(k)
	}
	if !p.dead {
		j.live += p.weight(k)
	}
}

// has reports whether the journal has a value for k; the caller holds mu.
func (j *journal) has(k id) bool {
	p, ok := j.index[k.kind][k.key]
	return ok && !p.dead
}

// append writes a group behind the file's end. After an error the file ends as before, or is
// cut or written anew before anything is written again.
func (j *journal) append(group []*entry) error {
	if err := j.mend(); err != nil {
		return err
	}
	var buf []byte
	for _, e := range group {
		at := int64(len(buf))
		buf = appendLine(buf, j.end, e.seq, e.records)
		for i := range e.records {
			e.records[i].at += int(j.end + at)
		}
	}
	if _, err := j.f.WriteAt(buf, j.end); err != nil {
		j.cut = true
		_ = j.mend() // else before the next
		return ioError("write", j.path, err)
	}
	if j.disk {
		if err := j.f.Sync(); err != nil {
			j.anew = true // the kernel may have dropped what it could not write
			_ = j.mend()
			return ioError("write", j.path, err)
		}
	}
	j.end += int64(len(buf))
	return nil
}

// mend makes the file one that can be appended to, and that the next process finds.
func (j *journal) mend() error {
	if !j.anew { // else there may be no file
		if _, named, err := j.f.stat(); err == nil && !named {
			j.anew = true // the directory was emptied
		}
	}
	if j.cut && !j.anew {
		err := j.f.Truncate(j.end)
		if err == nil && j.disk {
			err = j.f.Sync()
		}
		j.cut, j.anew = err != nil, err != nil
	}
	if !j.anew {
		return nil
	}
	return j.rewrite(j.kept())
}

// compact writes the journal anew where most of it is of no use any more.
func (j *journal) compact() {
	j.s.mu.Lock()
	garbage := j.end - j.live
	due := garbage > max(j.live, compactMin) && j.end > j.compactAt
	j.s.mu.Unlock()
	if !due {
		return
	}
	j.compactAt = 0
	if err := j.rewrite(j.kept()); err != nil {
		j.compactAt = 2 * j.end // it is tried again then; the journal is good as it is
	}
}

// kept returns what a new file must have: the values, and the deletions of values that
// the other journal still has, which would else come back.
func (j *journal) kept() (kept []found) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	for kind, of := range j.index {
		for key, p := range of {
			k := id{kind, key}
			if j.disk && p.f != j.f { // of a start that could not write it: the volatile one may be another file since
				p = j.other.index[kind][key]
			}
			if !p.dead || j.other.has(k) {
				kept = append(kept, found{id: k, place: p})
			} else {
				delete(of, key)
			}
		}
	}
	return kept
}

// rewrite makes the journal a new file of what is kept, by rename: the name always
// belongs to a whole journal.
func (j *journal) rewrite(kept []found) error {
	slices.SortFunc(kept, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.kind, b.kind), cmp.Compare(a.key, b.key))
	})
	fresh := j.name + ".new"
	f, err := j.dir.open(fresh, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return ioError("write", j.path+".new", err)
	}
	end, err := j.copyTo(f, kept)
	if err != nil { // of a disk that is full, say, which needs the room
		return errors.Join(ioError("write", j.path+".new", err), f.Truncate(0), f.Close())
	}
	if err = j.dir.rename(fresh, j.name); err == nil && j.disk {
		err = j.dir.sync()
	}
	if err != nil {
		j.anew = true // which of the files has the name is not known
		return errors.Join(ioError("write", j.path+".new", err), f.Close())
	}
	old := j.f
	j.s.mu.Lock()
	for _, k := range kept {
		if is, ok := j.index[k.kind][k.key]; ok && is.seq == k.seq {
			j.index[k.kind][k.key] = k.place
		}
	}
	j.f, j.end, j.cut, j.anew = f, end, false, false
	j.s.mu.Unlock()
	if old != nil {
		old.Close() // readers in it look again
	}
	return nil
}

// copyTo writes a journal into an empty file and changes the places of what it has to those
// in it. The header comes last: it says that all before it is on the disk.
func (j *journal) copyTo(f file, kept []found) (end int64, err error) {
	var buf bytes.Buffer
	flush := func() error {
		_, err := f.WriteAt(buf.Bytes(), end)
		end += int64(buf.Len())
		buf.Reset()
		return err
	}
	for i := range kept {
		k := &kept[i]
		value, err := k.read()
		if err != nil {
			return 0, err
		}
		rec := []record{{id: k.id, value: value}}
		at := end + int64(buf.Len())
		buf.Write(appendLine(buf.AvailableBuffer(), at, k.seq, rec))
		k.place = newPlace(f, at, k.seq, &rec[0])
		if buf.Len() >= copySize {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	buf.Write(appendLine(nil, end+int64(buf.Len()), 0, []record{{id: headerID, value: j.head}}))
	if err := flush(); err != nil {
		return 0, err
	}
	if !j.disk {
		return end, nil
	}
	return end, f.Sync()
}
