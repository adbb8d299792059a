package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// Files are labelled files of one of the tasks' outputs: the tasks write by here, and each
// line gets its task's rank before it (srun -l -o name%t). The zero value is none.
type Files struct {
	// Path returns the absolute path of a task's file; tasks may share one. nil is no file.
	Path func(rank int) (string, error)
	// Append keeps what the files have.
	Append bool
}

// Opener is as whom, and where, files are opened.
type Opener struct {
	User      step.User
	Umask     uint32
	Namespace *os.File // the job's mount namespace; nil is the node's own
	// SizeMax is the user's limit of a file's size (RLIMIT_FSIZE), in bytes, which the kernel
	// has for processes alone; nil is none.
	SizeMax *int64
}

// lineMax is the longest line of a labelled file; a longer one is cut into several.
const lineMax = 64 << 10

// file is an open labelled file. The loop alone uses it, once it has begun.
type file struct {
	*os.File
	user  *userThread
	most  *int64 // Opener.SizeMax
	width int    // of a label
	first int    // the label of rank 0
	out   []byte
	err   error // what it did not take: the rest is dropped
}

// pass writes the whole lines of data with the task's label, and returns the rest. The last
// of the stream is a line in any case.
func (f *file) pass(task int, data []byte, last bool) (rest []byte, err error) {
	f.out = f.out[:0]
	for len(data) > 0 {
		n := bytes.IndexByte(data, '\n') + 1
		line, newline := data[:n], ""
		if n == 0 {
			if !last && len(data) < lineMax {
				break
			}
			line, newline = data, "\n"
		}
		f.out = append(fmt.Appendf(f.out, "%*d: ", f.width, f.first+task), line...)
		f.out = append(f.out, newline...)
		data = data[len(line):]
	}
	if f.err != nil || len(f.out) == 0 {
		return data, nil
	}
	f.err = f.user.do(func() error {
		return f.write(f.out)
	})
	if f.err != nil {
		return data, fmt.Errorf("the output of the tasks is dropped: cannot %w", f.err) // it names verb and file
	}
	return data, nil
}

// write writes, a regular file up to the user's limit, as the kernel does for a process of the user's.
// Where the size cannot be had the limit is not kept: output is worth more than it.
func (f *file) write(b []byte) error {
	var limit error
	if f.most != nil { // else no call for the size before each write
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			if room := max(0, *f.most-st.Size()); room < int64(len(b)) {
				b, limit = b[:room], &os.PathError{Op: "write", Path: f.Name(), Err: unix.EFBIG}
			}
		}
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	return limit
}

// Append adds text to a file of the user's: a regular one, or /dev/null, which is made where there
// is none. All of it is done as the user, without a capability, and the error wraps the errno.
func (o Opener) Append(path, text string) error {
	return o.as(func() error {
		f, err := openFile(path, true)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(text)
		return err
	})
}

// as calls do as the user.
func (o Opener) as(do func() error) error {
	return linux.OnThread(func() error {
		if err := o.become(); err != nil {
			return err
		}
		return do()
	})
}

// userThread is a thread that is the step's user. It writes to labelled files as well as opens
// them: for root a quota and the reserve of a file system do not count, and set-user-ID bits stay.
type userThread struct{ calls chan func() }

// thread starts a thread that is the user, and ends with Close.
func (o Opener) thread() (*userThread, error) {
	t, became := &userThread{make(chan func())}, make(chan error)
	go func() {
		_ = linux.OnThread(func() error {
			err := o.become()
			became <- err
			if err == nil {
				for call := range t.calls {
					call()
				}
			}
			return err
		})
	}()
	return t, <-became
}

// do has the thread call a function. No other call is under way, and none comes after Close.
func (t *userThread) do(call func() error) error {
	done := make(chan error)
	t.calls <- func() { done <- call() }
	return <-done
}

func (t *userThread) Close() error {
	close(t.calls)
	return nil
}

// openFiles opens the labelled files of outputs, each path once.
func (s *Streams) openFiles() (files map[*output]*file, err error) {
	if !slices.ContainsFunc(s.loop.outs, func(o *output) bool { return o.labelled }) {
		return nil, nil
	}
	user, err := s.cfg.Opener.thread()
	if err != nil {
		return nil, err
	}
	s.loop.closeLater(user)
	err = user.do(func() error {
		files, err = s.openAll(user)
		return err
	})
	return files, err
}

// become makes the calling thread the user's.
func (o Opener) become() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // the umask is the thread's own then
		return fmt.Errorf("cannot open files with umask %04o: unshare: %w", o.Umask, err)
	}
	if err := linux.EnterMounts(o.Namespace); err != nil {
		return err
	}
	unix.Umask(int(o.Umask))
	if os.Geteuid() != 0 {
		return nil // a test
	}
	return linux.User{UID: o.User.UID, GID: o.User.GID, Groups: o.User.Groups}.Become()
}

func (s *Streams) openAll(user *userThread) (files map[*output]*file, err error) {
	files = make(map[*output]*file)
	width := len(strconv.Itoa(max(0, s.cfg.Tasks-1)))
	opened := make(map[string]*file)
	for _, o := range s.loop.outs {
		if !o.labelled {
			continue
		}
		path, err := s.cfg.Files[o.kind].Path(o.task)
		if err != nil {
			return nil, err
		}
		if opened[path] == nil {
			f, err := openFile(path, s.cfg.Files[o.kind].Append)
			if err != nil {
				return nil, fmt.Errorf("cannot open %s file %q of task %d: %w", [3]string{1: "stdout", 2: "stderr"}[o.kind], path, o.task, err)
			}
			opened[path] = &file{File: f, user: user, most: s.cfg.Opener.SizeMax, width: width, first: s.cfg.First}
			s.loop.closeLater(f)
		}
		files[o] = opened[path]
	}
	return files, nil
}

// openFile opens a file that never makes its writer wait: a FIFO's reader, or a terminal's, would
// hold up all streams of the step.
func openFile(path string, appends bool) (*os.File, error) {
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND
	if !appends {
		flags |= unix.O_TRUNC
	}
	fd, err := linux.OpenUserPath(path, flags, 0o666)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG && st.Rdev != unix.Mkdev(1, 3) {
		err = errors.New("a file with labels must be a regular one, or /dev/null")
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// toFile passes on data of a task to its labelled file, and returns what is held back.
func (l *loop) toFile(o *output, data []byte, last bool) (rest []byte) {
	if o.file == nil {
		return nil // the launch has not come that far
	}
	rest, err := o.file.pass(o.task, data, last)
	if err != nil {
		l.log(launch.LogError, err.Error())
		l.say(wholeStep, l.name+": error: "+err.Error())
	}
	return rest
}
