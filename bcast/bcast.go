// Package bcast is stepd's half of the files that a client sends with a step
// (--bcast, --send-libs): it writes them as the user, in the job's container, and
// compares their digests. Begin with New.
package bcast

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

// Receiver takes the files of one step. Write may be called by any goroutine, one
// call at a time; the others by any.
type Receiver struct {
	spec  *step.Spec
	ns    *os.File
	calls chan func()
	quit  chan struct{}
	once  sync.Once

	done chan struct{}

	// By the thread alone.
	at   int      // the file that is being received
	dir  int      // that it goes to
	tmp  string   // its name until it is whole
	file *os.File // nil between two
	left int64
	sum  hash.Hash
	room []byte // for what a block holds; nil while none has come
	libs string // the directory of the libraries, once it was made
	over bool

	mu  sync.Mutex
	err error // guarded by mu
}

// New receives the files of spec. ns is the job's mount namespace, nil without a
// container.
func New(spec *step.Spec, ns *os.File) *Receiver {
	r := &Receiver{spec: spec, ns: ns, dir: -1, calls: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	started := make(chan error, 1)
	go r.serve(started)
	if err := <-started; err != nil {
		r.finish(err)
	}
	return r
}

// serve is the user: its thread has that identity for good, and ends with it.
func (r *Receiver) serve(started chan<- error) {
	runtime.LockOSThread()
	err := r.becomeUser()
	if err != nil {
		err = fmt.Errorf("cannot receive files as uid %d: %w", r.spec.User.UID, err)
	} else {
		err = r.next()
	}
	started <- err
	for {
		select {
		case f := <-r.calls:
			f()
		case <-r.quit:
			r.drop()
			return
		}
	}
}

func (r *Receiver) becomeUser() error {
	if err := linux.EnterMounts(r.ns); err != nil {
		return err
	}
	return linux.SetFSUser(r.spec.User.UID, r.spec.User.GID, r.spec.User.Groups)
}

// do has the thread call f; false is that it is over.
func (r *Receiver) do(f func()) bool {
	ran := make(chan struct{})
	select {
	case r.calls <- func() { f(); close(ran) }:
		<-ran
		return true
	case <-r.quit:
		return false
	}
}

var errOver = errors.New("cannot receive a file: none is expected any more")

// Write takes the next bytes of a file; files come in their order. It returns when they
// are written.
func (r *Receiver) Write(p step.SentPiece) (err error) {
	if !r.do(func() { err = r.write(p) }) {
		return errOver
	}
	return err
}

func (r *Receiver) write(p step.SentPiece) error {
	if r.over {
		return errOver
	}
	err := r.take(p)
	if err != nil {
		r.drop()
		r.finish(err)
	}
	return err
}

func (r *Receiver) take(p step.SentPiece) error {
	if p.File != r.at || r.file == nil {
		return fmt.Errorf("cannot receive %s: it is %s that wants %d bytes", r.named(p.File), r.named(r.at), r.left)
	}
	data := p.Data
	if p.LZ4 {
		if r.room == nil {
			r.room = make([]byte, step.SentChunk)
		}
		n, err := expand(r.room, data)
		if err != nil {
			return fmt.Errorf("cannot receive %s: %d compressed bytes: %w", r.named(p.File), len(data), err)
		}
		data = r.room[:n]
	}
	if int64(len(data)) > r.left {
		return fmt.Errorf("cannot receive %s: %d bytes came, and it wants %d: has it changed while it was sent?", r.named(p.File), len(data), r.left)
	}
	if _, err := r.file.Write(data); err != nil {
		return fmt.Errorf("cannot write %q: %w", r.spec.Sent[r.at].Path, err)
	}
	r.sum.Write(data)
	r.left -= int64(len(data))
	if r.left > 0 {
		return nil
	}
	return r.settle()
}

// named is a file as messages name it.
func (r *Receiver) named(file int) string {
	if file < 0 || file >= len(r.spec.Sent) {
		return fmt.Sprintf("file %d of %d", file+1, len(r.spec.Sent))
	}
	return strconv.Quote(r.spec.Sent[file].Path)
}

// settle gives a file that is whole its name, and goes on to the next.
func (r *Receiver) settle() error {
	f := r.spec.Sent[r.at]
	if sum := hex.EncodeToString(r.sum.Sum(nil)); sum != f.SHA256 {
		return fmt.Errorf("cannot use %q: its SHA-256 digest is %s here, and was %s where it was sent: has it changed meanwhile?", f.Path, sum, f.SHA256)
	}
	name, err := r.name()
	if err == nil {
		err = r.file.Chmod(os.FileMode(f.Mode | 0o400))
	}
	if err == nil {
		err = r.file.Close()
	}
	if err == nil {
		err = unix.Renameat(r.dir, r.tmp, r.dir, name)
	}
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", f.Path, err)
	}
	r.file, r.tmp = nil, ""
	unix.Close(r.dir)
	r.dir = -1
	r.at++
	return r.next()
}

// next begins the next file; after the last all is done.
func (r *Receiver) next() error {
	if r.at == len(r.spec.Sent) {
		r.finish(nil)
		return nil
	}
	if err := r.begin(); err != nil {
		return err
	}
	if r.left > 0 {
		return nil
	}
	return r.settle() // an empty file
}

// name is the file's, within its directory.
func (r *Receiver) name() (string, error) {
	if r.at > 0 {
		return r.spec.Sent[r.at].Path, nil
	}
	path, _, err := r.spec.SentProgram()
	return filepath.Base(path), err
}

func (r *Receiver) begin() error {
	program, _, err := r.spec.SentProgram()
	if err != nil {
		return err
	}
	dir := filepath.Dir(program)
	if r.at > 0 {
		dir = program + step.LibsSuffix
		if err := r.makeLibs(dir); err != nil {
			return err
		}
	}
	// Nothing but this directory is touched: not what a link in it names.
	if r.dir, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("cannot write to directory %q: %w", dir, err)
	}
	f := r.spec.Sent[r.at]
	// Nodes may have the directory in common.
	r.tmp = fmt.Sprintf(".stepd-%s-%d-%d.part", r.spec.ID, r.spec.NodeID, r.at)
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(r.dir, r.tmp, flags, 0o600)
	if errors.Is(err, unix.EEXIST) && unix.Unlinkat(r.dir, r.tmp, 0) == nil {
		fd, err = unix.Openat(r.dir, r.tmp, flags, 0o600)
	}
	if err != nil {
		r.tmp = ""
		return fmt.Errorf("cannot write a file to directory %q: %w", dir, err)
	}
	r.file, r.left, r.sum = os.NewFile(uintptr(fd), filepath.Join(dir, r.tmp)), f.Size, sha256.New()
	return nil
}

// makeLibs makes the directory of the libraries, once.
func (r *Receiver) makeLibs(dir string) error {
	if r.libs != "" {
		return nil
	}
	if err := unix.Mkdir(dir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot make directory %q: %w", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("cannot use directory %q: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != r.spec.User.UID {
		return fmt.Errorf("cannot use %q for libraries: it is no directory of uid %d", dir, r.spec.User.UID)
	}
	r.libs = dir
	return nil
}

// drop removes what is not whole.
func (r *Receiver) drop() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
	if r.tmp != "" {
		_ = unix.Unlinkat(r.dir, r.tmp, 0) // the first error is told
		r.tmp = ""
	}
	if r.dir >= 0 {
		unix.Close(r.dir)
		r.dir = -1
	}
}

// finish says that no more is expected. The thread alone calls it.
func (r *Receiver) finish(err error) {
	if r.over {
		return
	}
	r.over = true
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	close(r.done)
}

// Done is closed when all files are there, or one cannot be: Err tells.
func (r *Receiver) Done() <-chan struct{} { return r.done }

// Err is why not all files are there, nil if they are; call it after Done.
func (r *Receiver) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Close ends the receiver: what is not whole is removed, and the libraries are, as
// in Slurm; the program stays.
func (r *Receiver) Close() (err error) {
	r.do(func() {
		r.drop() // what is not whole may be among the libraries
		if r.libs != "" {
			err = r.removeLibs()
		}
	})
	r.once.Do(func() { close(r.quit) })
	return err
}

func (r *Receiver) removeLibs() error {
	fd, err := unix.Open(r.libs, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot remove directory %q: %w", r.libs, err)
	}
	defer unix.Close(fd)
	for _, f := range r.spec.Sent[1:] {
		if err := unix.Unlinkat(fd, f.Path, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cannot remove %q of %q: %w", f.Path, r.libs, err)
		}
	}
	if err := unix.Rmdir(r.libs); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot remove directory %q: %w", r.libs, err)
	}
	return nil
}
