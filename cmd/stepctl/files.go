package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

// commonFiles are the patterns of those files that the client opens itself, by
// stream: of a step of several nodes those that all of its tasks have in common. As
// with srun they are where the client is: the nodes need no file system in common,
// and none of them empties what another has written. "" is none.
type commonFiles [3]string

// take makes streams of common files the client's.
func (c *commonFiles) take(r *step.Request) {
	if r.NNodes <= 1 && r.NNodesMax <= 1 && len(r.WantNodes) == 0 && len(r.NotNodes) == 0 {
		return // the node of noded alone
	}
	for fd, s := range [3]*step.Stream{&r.Stdin, &r.Stdout, &r.Stderr} {
		if s.Kind == step.StreamFile && s.Pattern == os.DevNull {
			*s = step.Stream{Kind: step.StreamNull} // nothing of it need travel
			continue
		}
		if s.Kind == step.StreamFile && !step.PatternHas(s.Pattern, "tnN") {
			c[fd] = s.Pattern
			*s = step.Stream{Kind: step.StreamClient}
		}
	}
	if c[1] != "" && r.Stderr.Kind == step.StreamSame {
		c[2] = c[1]
		r.Stderr = step.Stream{Kind: step.StreamClient}
	}
}

// open gives the three streams of the client: its own, or the files. The caller
// closes nothing: they live as long as the process.
func (c *commonFiles) open(spec *step.Spec, truncate bool) (files [3]*os.File, err error) {
	files = [3]*os.File{os.Stdin, os.Stdout, os.Stderr}
	for fd, pattern := range c {
		if pattern == "" {
			continue
		}
		if fd == 2 && pattern == c[1] {
			files[2] = files[1]
			continue
		}
		path, err := step.ExpandPattern(pattern, spec, 0)
		if err != nil {
			return files, err
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(spec.Cwd, path)
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
			return files, fmt.Errorf("cannot open %s file: %w", [...]string{"stdin", "stdout", "stderr"}[fd], err)
		}
		files[fd] = f
	}
	return files, nil
}

// openAs opens a file as the user whom the step is for: root may start it for
// another one, whose paths it must not follow as root.
func openAs(u *step.User, path string, flags int) (*os.File, error) {
	open := func() (*os.File, error) { return os.OpenFile(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0o666) }
	if os.Geteuid() != 0 || u.UID == 0 {
		return open()
	}
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened)
	go func() {
		// The identity is the thread's alone, which ends with this goroutine.
		runtime.LockOSThread()
		if err := linux.SetFSUser(u.UID, u.GID, u.Groups); err != nil {
			done <- opened{nil, fmt.Errorf("cannot open %q as uid %d: %w", path, u.UID, err)}
			return
		}
		f, err := open()
		done <- opened{f, err}
	}()
	o := <-done
	return o.file, o.err
}
