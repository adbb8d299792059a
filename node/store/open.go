package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// The journals' files. DurableName is that of the one in the spool.
const (
	DurableName  = "durable.journal"
	volatileName = "volatile.journal"
)

// Open replays the journals in the directories, which exist, or begins new ones. The error
// names the file, and wraps ErrSilent where a directory has not answered within the
// deadline: then what hangs may go on, and the caller ends its process.
func Open(cfg Config) (*Store, error) {
	return openIn(cfg, openFolder)
}

func openIn(cfg Config, folders func(path string) (folder, error)) (*Store, error) {
	cfg.Deadline = cmp.Or(cfg.Deadline, deadline)
	ctx, cancel := context.WithTimeout(context.Background(), cfg.Deadline)
	defer cancel()
	type result struct {
		s   *Store
		err error
	}
	done := make(chan result, 1)
	var at sync.Map // what is being done; its key is nil
	go func() {     // ends when the directories answer
		s, err := open(ctx, cfg, folders, func(path string) { at.Store(nil, path) })
		if err == nil && ctx.Err() != nil {
			err = errors.Join(ctx.Err(), s.Close())
		}
		done <- result{s, err}
	}()
	select {
	case r := <-done:
		return r.s, r.err
	case <-ctx.Done():
		path, _ := at.Load(nil)
		return nil, fmt.Errorf("cannot open state %q: its file system has not answered for %v: %w", path, cfg.Deadline, ErrSilent)
	}
}

// open is Open without the deadline; it changes nothing once ctx is done. doing is called
// with the journal that it is about.
func open(ctx context.Context, cfg Config, folders func(string) (folder, error), doing func(path string)) (*Store, error) {
	s := &Store{cfg: cfg, kinds: map[string]bool{KindDamage: true, kindBlock: true}, pending: make(map[id][]*batch)}
	for _, kind := range cfg.Durable {
		s.kinds[kind] = true
	}
	s.durable = s.newJournal(filepath.Join(cfg.Spool, DurableName), true)
	s.volatile = s.newJournal(filepath.Join(cfg.Run, volatileName), false)
	s.durable.other, s.volatile.other = s.volatile, s.durable
	opened := false
	defer func() {
		if !opened {
			s.durable.abandon()
			s.volatile.abandon()
		}
	}()
	doing(s.durable.path)
	durable, err := s.durable.load(folders)
	if err != nil {
		return nil, ioError("open state", s.durable.path, err)
	}
	doing(s.volatile.path)
	volatile, err := s.volatile.load(folders)
	if err != nil {
		return nil, ioError("open state", s.volatile.path, err)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := s.start(ctx, durable, volatile, doing); err != nil {
		return nil, err
	}
	opened = true
	go s.durable.run()
	go s.volatile.run()
	return s, nil
}

func (s *Store) newJournal(path string, disk bool) *journal {
	return &journal{
		name: filepath.Base(path), path: path, disk: disk, wrote: s.wrote, silent: s.cfg.Silent,
		mu: &s.mu, index: make(map[string]map[string]place), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// load opens the journal's file and replays it; one that does not exist has nothing.
func (j *journal) load(folders func(string) (folder, error)) (r *replayed, err error) {
	if j.dir, err = folders(filepath.Dir(j.path)); err != nil {
		return nil, err
	}
	if j.f, err = j.dir.open(j.name, os.O_RDONLY); errors.Is(err, os.ErrNotExist) {
		j.f = nil
		return new(replayed), nil
	}
	if err != nil {
		return nil, err
	}
	return replay(j.f)
}

// abandon closes what load has opened.
func (j *journal) abandon() {
	if j.f != nil {
		j.f.Close()
	}
	if j.dir != nil {
		j.dir.close()
	}
}

// start makes the journals one state and writes both anew: damage, what was torn and what
// one of them lacks is no concern of what comes later.
func (s *Store) start(ctx context.Context, durable, volatile *replayed, doing func(string)) error {
	same := volatile.header.Boot == s.cfg.Boot || volatile.header.Boot == "" && volatile.changed
	if a, b := durable.header.Store, volatile.header.Store; a != "" && b != "" && a != b {
		aside, err := s.volatile.setAside("other-spool", nil)
		if err != nil {
			return err
		}
		s.note("the state %q is that of another spool: it is kept as %q", s.volatile.path, aside)
		*volatile = replayed{}
	}
	s.volatile.head = header{formatVersion, cmp.Or(durable.header.Store, volatile.header.Store, rand.Text()), s.cfg.Boot}
	s.durable.head = s.volatile.head
	for _, f := range durable.found {
		s.kinds[f.kind] = true // of a later release, perhaps
		s.durable.note(f.id, f.place)
	}
	for _, f := range slices.Concat(durable.found, volatile.found) {
		s.volatile.note(f.id, f.place)
		s.seq = max(s.seq, f.seq)
	}
	trusted := same && len(volatile.bad) == 0
	if !same { // it has gone through a power failure, perhaps, which it need not survive
		if len(volatile.bad) > 0 {
			s.note("the state %q has lost %d pieces with the boot before", s.volatile.path, len(volatile.bad))
		}
		volatile.bad = nil
	}
	if err := errors.Join(s.durable.keepBad(s, durable.bad), s.volatile.keepBad(s, volatile.bad)); err != nil {
		return err
	}
	if err := s.restoreNumbers(trusted, len(durable.bad)); err != nil {
		return err
	}
	// The volatile one first: it keeps the deletions that the durable one does not have.
	if err := s.volatile.rewrite(s.volatile.kept()); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	doing(s.durable.path)
	s.durable.index, s.durable.live = make(map[string]map[string]place), 0
	for kind, of := range s.volatile.index {
		for key, p := range of {
			if s.kinds[kind] && !p.dead {
				s.durable.note(id{kind, key}, p)
			}
		}
	}
	return s.durable.rewrite(s.durable.kept())
}

// add makes a value one that was found; it is for start alone.
func (s *Store) add(k id, value any) error {
	doc, err := json.Marshal(value)
	if err != nil {
		return err
	}
	s.seq++
	s.volatile.note(k, newPlace(inline{b: doc}, 0, s.seq, &record{k, doc, 0}))
	return nil
}

// inline is a file that has one value.
type inline struct {
	file
	b []byte
}

func (v inline) ReadAt(b []byte, off int64) (int, error) { return copy(b, v.b[off:]), nil }

// KindDamage is the kind of the records that Damage returns.
const KindDamage = "damage"

// Damage is what a journal has lost by other causes than a power failure or the end of the
// process. Each of the lost records is as its last write before had left it: an older value,
// one that was deleted, or none.
type Damage struct {
	// Journal is the file, and Kept the one that has its damaged pieces.
	Journal, Kept string
	Pieces        int
	// Records are the kinds and keys of what is lost, as far as they can be read.
	Records []string
}

// Damage returns the damage of this and of earlier openings that is not settled, by key:
// whoever knows of it deletes the record of KindDamage.
func (s *Store) Damage() (map[string]Damage, error) {
	all := make(map[string]Damage)
	for _, key := range s.Keys(KindDamage, "") {
		var d Damage
		if err := s.Get(KindDamage, key, &d); err != nil {
			return nil, err
		}
		all[key] = d
	}
	return all, nil
}

// Notes are lines for the log about the opening.
func (s *Store) Notes() []string { return s.notes }

func (s *Store) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// keepBad keeps the damaged pieces of a journal in a file beside it, and says so in a record.
func (j *journal) keepBad(s *Store, bad []span) error {
	if len(bad) == 0 {
		return nil
	}
	var pieces bytes.Buffer
	for _, piece := range bad {
		if _, err := io.Copy(&pieces, io.NewSectionReader(j.f, piece.from, piece.to-piece.from)); err != nil {
			return ioError("read", j.path, err)
		}
		if b := pieces.Bytes(); b[len(b)-1] != '\n' {
			pieces.WriteByte('\n')
		}
	}
	aside, err := j.setAside("damaged", pieces.Bytes())
	if err != nil {
		return err
	}
	return s.add(id{KindDamage, filepath.Base(aside)}, Damage{Journal: j.path, Kept: aside, Pieces: len(bad), Records: named(pieces.Bytes())})
}

// setAside keeps content, or the journal itself where that is nil, in a file beside it.
func (j *journal) setAside(why string, content []byte) (path string, err error) {
	suffix := "." + why + "-" + time.Now().UTC().Format("20060102T150405.000")
	if content == nil {
		err = j.dir.rename(j.name, j.name+suffix)
	} else {
		err = writeFile(j.dir, j.name+suffix, content)
	}
	return j.path + suffix, ioError("write", j.path+suffix, err)
}

func writeFile(dir folder, name string, content []byte) error {
	f, err := dir.open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return dir.sync()
}
