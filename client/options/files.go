package options

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/srunopt"
	"stepd/step"
)

// Files are the patterns of the files that the client opens itself, by
// stream: the files into which it is to write labels. "" is none.
type Files [3]string

// take makes streams of such files the client's.
func (c *Files) take(r *step.Request) {
	for fd, s := range [3]*step.Stream{&r.Stdin, &r.Stdout, &r.Stderr} {
		if s.Kind != step.StreamFile {
			continue
		}
		if s.Pattern == os.DevNull {
			*s = step.Stream{Kind: step.StreamNull} // nothing of it need travel
			continue
		}
		if fd > 0 && r.Label {
			c[fd] = s.Pattern
			*s = step.Stream{Kind: step.StreamClient}
		}
	}
	if c[1] != "" && r.Stderr.Kind == step.StreamSame {
		c[2] = c[1]
		r.Stderr = step.Stream{Kind: step.StreamClient}
	}
}

// OpenFiles are the streams at the client's end: its own, or the files. They live as
// long as the process.
type OpenFiles struct {
	Files [3]*os.File   // standard input, output and error
	ranks [3][]*os.File // nil where files has it for all ranks
}

// Rank is the file that the output of a rank goes to.
func (f *OpenFiles) Rank(fd, rank int) *os.File {
	if f.ranks[fd] != nil {
		return f.ranks[fd][rank]
	}
	return f.Files[fd]
}

// Open gives the three streams of the client.
func (c *Files) Open(spec *step.Spec, truncate bool) (*OpenFiles, error) {
	f := &OpenFiles{Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}
	opened := make(map[string]*os.File) // one open file, so that none overwrites another
	for fd, pattern := range c {
		if pattern == "" {
			continue
		}
		for rank := range spec.NTasks {
			file, err := openPattern(opened, fd, pattern, spec, rank, truncate)
			if err != nil {
				return f, err
			}
			if !srunopt.PatternHas(pattern, "t") { // one file for all ranks
				f.Files[fd] = file
				break
			}
			f.ranks[fd] = append(f.ranks[fd], file)
		}
	}
	return f, nil
}

// openPattern opens the file of one rank, unless it is open.
func openPattern(opened map[string]*os.File, fd int, pattern string, spec *step.Spec, rank int, truncate bool) (*os.File, error) {
	path, err := srunopt.ExpandPattern(pattern, spec, rank)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(spec.Cwd, path)
	}
	if f := opened[path]; f != nil && fd > 0 {
		return f, nil
	}
	flags := unix.O_RDONLY
	if fd != 0 {
		flags = unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND
		if truncate {
			flags |= unix.O_TRUNC
		}
	}
	f, err := openAs(&spec.User, path, flags)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s file %q: %w", [...]string{"stdin", "stdout", "stderr"}[fd], path, err)
	}
	if fd > 0 {
		opened[path] = f
	}
	return f, nil
}

// openAs opens a file as the step's user: root may start it for another one, whose paths it must
// not follow as root. A FIFO would keep us waiting for its other side: without one it is refused.
func openAs(u *step.User, path string, flags int) (*os.File, error) {
	fd, err := -1, error(nil)
	if os.Geteuid() != 0 || u.UID == 0 {
		fd, err = linux.Uninterrupted(func() (int, error) {
			return unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0o666)
		})
	} else {
		err = linux.OnThread(func() error {
			if err := (linux.User{UID: u.UID, GID: u.GID, Groups: u.Groups}).Become(); err != nil {
				return err
			}
			fd, err = linux.OpenUserPath(path, flags, 0o666)
			return err
		})
	}
	if err == nil {
		err = unix.SetNonblock(fd, false) // the file is to block
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
