package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// The journals' files. DurableName is the spool's.
const (
	DurableName  = "durable.journal"
	volatileName = "volatile.journal"
)

// Open replays the journals in the directories, which exist, or begins new ones. Where the durable
// one can be read and not written, since its file system is full, Check says so. The error
// names the file, and wraps ErrSilent where a directory has not answered within the
// deadline: then what hangs may go on, and the caller ends its process.
func Open(cfg Config) (*Store, error) {
	return openIn(cfg, openFolder)
}

func openIn(cfg Config, folders func(path string) (folder, error)) (*Store, error) {
	cfg.Deadline = cmp.Or(cfg.Deadline, deadline)
	if cfg.Silent == nil {
		cfg.Silent = func(error) {}
	}
	type result struct {
		s   *Store
		err error
	}
	done := make(chan result, 1)
	var at atomic.Pointer[journal] // which is being read or written
	go func() {                    // ends when the directories answer
		s, err := open(cfg, folders, at.Store)
		done <- result{s, err}
	}()
	select {
	case r := <-done:
		return r.s, r.err
	case <-time.After(cfg.Deadline):
		return nil, fmt.Errorf("cannot open state %q: its file system has not answered for %v: %w", at.Load().path, cfg.Deadline, ErrSilent)
	}
}

// open is Open without the deadline. doing is called with the journal that it is about.
func open(cfg Config, folders func(string) (folder, error), doing func(*journal)) (_ *Store, err error) {
	s := &Store{cfg: cfg, kinds: map[string]bool{KindDamage: true, kindBlock: true}, pending: make(map[id][]*batch)}
	for _, kind := range cfg.Durable {
		s.kinds[kind] = true
	}
	s.durable = s.newJournal(filepath.Join(cfg.Spool, DurableName), true)
	s.volatile = s.newJournal(filepath.Join(cfg.Run, volatileName), false)
	s.durable.other, s.volatile.other = s.volatile, s.durable
	defer func() {
		if err != nil {
			s.durable.abandon()
			s.volatile.abandon()
		}
	}()
	doing(s.durable)
	durable, err := s.durable.load(folders)
	if err != nil {
		return nil, ioError("open state", s.durable.path, err)
	}
	doing(s.volatile)
	volatile, err := s.volatile.load(folders)
	if err != nil {
		return nil, ioError("open state", s.volatile.path, err)
	}
	if err := s.start(durable, volatile, doing); err != nil {
		return nil, err
	}
	go s.durable.run()
	go s.volatile.run()
	return s, nil
}

func (s *Store) newJournal(path string, disk bool) *journal {
	return &journal{
		name: filepath.Base(path), path: path, disk: disk, s: s,
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// load opens the journal's file and replays it; one that does not exist has nothing.
func (j *journal) load(folders func(string) (folder, error)) (r *replayed, err error) {
	if j.dir, err = folders(filepath.Dir(j.path)); err != nil {
		return nil, err
	}
	if j.f, err = j.dir.open(j.name, os.O_RDONLY); errors.Is(err, os.ErrNotExist) {
		j.f = nil
		return &replayed{index: make(index)}, nil
	}
	if err != nil {
		return nil, err
	}
	// The values stay in the file: the values of thousands of ended steps are more than noded may have
	// in memory.
	if r, err = replay(j.f, j.disk); unreadable(err) {
		return j.moveAside()
	}
	return r, err
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
func (s *Store) start(durable, volatile *replayed, doing func(*journal)) error {
	same := volatile.header.Boot == s.cfg.Boot || volatile.header.Boot == "" && volatile.changed
	head, err := json.Marshal(header{formatVersion, s.cfg.Boot})
	if err != nil {
		return err
	}
	s.durable.head, s.volatile.head = head, head
	s.durable.index, s.volatile.index = durable.index, volatile.index
	for k, p := range volatile.index.all() {
		s.seq = max(s.seq, p.seq)
		if !p.dead {
			s.volatile.live += p.weight(k)
		}
	}
	for k, p := range durable.index.all() {
		s.kinds[k.kind] = true // of a later release, perhaps
		s.seq = max(s.seq, p.seq)
		s.volatile.note(k, p)
	}
	trusted := same && len(volatile.bad) == 0 && volatile.aside == ""
	if !same { // it has gone through a power failure, perhaps, which it need not survive
		volatile.bad = nil
	}
	if err := errors.Join(s.durable.keepBad(durable.bad), s.volatile.keepBad(volatile.bad), s.noteLost(durable, volatile)); err != nil {
		return err
	}
	if err := s.restoreNumbers(trusted, len(durable.bad)); err != nil {
		return err
	}
	// The volatile one first: it has the deletions that the durable one is then without. It is
	// then the one file that has all values: its own old one is closed.
	if err := s.volatile.rewrite(s.volatile.kept()); err != nil {
		return err
	}
	s.durable.index = make(index)
	for k, p := range s.volatile.index.all() {
		if s.kinds[k.kind] && !p.dead {
			s.durable.note(k, p)
		}
	}
	doing(s.durable)
	if err := s.durable.rewrite(s.durable.kept()); err != nil {
		// Its file is as it was, and the volatile one has everything. It is written as soon as that is
		// possible, and until then Check fails.
		s.durable.anew, s.durable.failed = true, err
	}
	return nil
}

// add makes a value one that was found; it is for start alone.
func (s *Store) add(k id, value any) error {
	doc, err := json.Marshal(value)
	if err != nil {
		return err
	}
	s.seq++
	s.volatile.note(k, newPlace(inline{content: doc}, 0, s.seq, &record{k, doc, 0}))
	return nil
}

// inline is a file whose content is in memory; of one without a file it can only be read.
type inline struct {
	file
	content []byte
}

func (f inline) ReadAt(b []byte, off int64) (int, error) { return copy(b, f.content[off:]), nil }

// KindDamage is the kind of the records that Damage returns.
const KindDamage = "damage"

// Damage is what a journal has lost by other causes than a power failure or the end of the
// process. Each of the lost records is as its last write before had left it: an older value,
// one that was deleted, or none.
type Damage struct {
	// Journal is the file, and Kept the one that has its damaged pieces; "" where nothing is
	// left of what is lost.
	Journal, Kept string
	Pieces        int
	// Records are the kinds and keys of what is lost, as far as they can be read.
	Records []string
}

// Damage returns the damage of this and of earlier openings that is not settled, by key:
// the caller deletes the record of KindDamage.
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

// keepBad keeps the damaged pieces of a journal in a file beside it, and says so in a record.
func (j *journal) keepBad(bad []span) error {
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
	suffix := damagedSuffix()
	if err := writeFile(j.dir, j.name+suffix, pieces.Bytes()); err != nil {
		return ioError("write", j.path+suffix, err)
	}
	return j.s.add(id{KindDamage, j.name + suffix}, Damage{Journal: j.path, Kept: j.path + suffix, Pieces: len(bad), Records: named(pieces.Bytes())})
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

// folder is the directory of a journal; tests have one that fails, hangs, or loses power.
type folder interface {
	// open takes open(2)'s flags; the file is its owner's alone.
	open(name string, flags int) (file, error)
	rename(from, to string) error
	// sync brings the names to the disk.
	sync() error
	close() error
}

// file is a file of a folder. Sync brings its contents to the disk.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
	// stat returns the size, and whether the file has a name yet.
	stat() (size int64, named bool, err error)
}

type diskFolder struct{ f *os.File }

// openFolder opens a directory: what is done in it stays there, whatever becomes of its path.
func openFolder(path string) (folder, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return diskFolder{f}, nil
}

func (d diskFolder) open(name string, flags int) (file, error) {
	f, err := linux.OpenIn(d.f, name, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

func (d diskFolder) rename(from, to string) error {
	return linux.OnFD(d.f, func(fd int) error {
		return linux.IgnoringEINTR(func() error { return unix.Renameat(fd, from, fd, to) })
	})
}

func (d diskFolder) sync() error  { return d.f.Sync() }
func (d diskFolder) close() error { return d.f.Close() }

type diskFile struct{ *os.File }

// Sync is fdatasync(2), which brings a size that has grown to the disk as well.
func (f diskFile) Sync() error {
	return linux.OnFD(f.File, func(fd int) error {
		return linux.IgnoringEINTR(func() error { return unix.Fdatasync(fd) })
	})
}

func (f diskFile) stat() (size int64, named bool, err error) {
	var st unix.Stat_t
	err = linux.OnFD(f.File, func(fd int) error { return unix.Fstat(fd, &st) })
	return st.Size, st.Nlink > 0, err
}

// remedies are what to do about the errors of a disk.
var remedies = map[syscall.Errno]string{
	unix.ENOSPC: "make room on its file system",
	unix.EDQUOT: "raise the quota of its file system",
	unix.EROFS:  "its file system is mounted read-only",
	unix.EIO:    "its disk or file system is failing",
}

// ioError says that op failed on path, and what to do.
func ioError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok { // without the path that os puts before it
		err = errno
		if remedy := remedies[errno]; remedy != "" {
			return fmt.Errorf("cannot %s %q: %w: %s", op, path, err, remedy)
		}
	}
	return fmt.Errorf("cannot %s %q: %w", op, path, err)
}
