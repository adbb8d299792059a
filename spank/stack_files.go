package spank

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// find looks a relative name up in the plugin directories.
func (r *stackReader) find(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	path, known := r.found[name]
	if known {
		return path
	}
	path = name
	if strings.Contains(name, "/") {
		path = "/" + name // as for stepd; never beneath a client's own directory
	}
	for _, dir := range r.dirs {
		candidate := filepath.Join(dir, name)
		r.source(candidate)
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() {
			path = candidate
			break
		}
	}
	r.found[name] = path
	return path
}

// globbed is what a pattern has matched.
type globbed struct {
	files     []string // to be read, sorted by their bytes
	leftovers []string // matched, and passed over
	dirs      []string // read to find out
}

// globFiles is glob(3) without the directories: unlike in Go's, "[!a]" negates,
// and a wildcard does not match a leading dot. A path without wildcards is
// given back whether it exists or not. The pattern is absolute and clean.
func globFiles(pattern string) (globbed, error) {
	pattern = strings.ReplaceAll(pattern, "[!", "[^")
	if _, err := filepath.Match(pattern, ""); err != nil {
		return globbed{}, err
	}
	if !isPattern(pattern) {
		return globbed{files: withoutDirs([]string{pattern})}, nil
	}
	var g globbed
	paths := []string{"/"}
	for part := range strings.SplitSeq(strings.TrimPrefix(pattern, "/"), "/") {
		var next []string
		for _, dir := range paths {
			if !isPattern(part) {
				if path := filepath.Join(dir, part); exists(path) {
					next = append(next, path)
				}
				continue
			}
			g.dirs = append(g.dirs, dir)
			for _, name := range matching(dir, part) {
				path := filepath.Join(dir, name)
				if isLeftover(name) {
					g.leftovers = append(g.leftovers, path)
				} else {
					next = append(next, path)
				}
			}
		}
		paths = next
	}
	g.files, g.leftovers = withoutDirs(paths), withoutDirs(g.leftovers)
	slices.Sort(g.files)
	slices.Sort(g.leftovers)
	return g, nil
}

func isPattern(s string) bool { return strings.ContainsAny(s, `*?[\`) }

// matching lists the names in dir that part matches. What cannot be read has
// none, as with glob(3).
func matching(dir, part string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(name string) bool {
		ok, err := filepath.Match(part, name)
		return err != nil || !ok || strings.HasPrefix(name, ".") && !strings.HasPrefix(part, ".")
	})
}

// exists reports whether a pattern has composed a path that exists.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func withoutDirs(paths []string) []string {
	return slices.DeleteFunc(paths, func(p string) bool {
		info, err := os.Stat(p)
		return err == nil && info.IsDir()
	})
}

// isLeftover reports whether the name is one that an editor, sed or a
// package manager leaves beside the file that it worked on. Slurm reads it, and the old
// half of the site's plugins with it.
func isLeftover(name string) bool {
	for _, suffix := range []string{
		"~", ".swp", ".swo", ".swx", ".bak", ".orig", ".rej", ".tmp",
		".rpmsave", ".rpmnew", ".rpmorig",
		".dpkg-old", ".dpkg-new", ".dpkg-dist", ".dpkg-tmp", ".dpkg-bak",
		".ucf-old", ".ucf-new", ".ucf-dist",
	} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	emacs := strings.HasPrefix(name, ".#") || len(name) > 1 && strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#")
	return emacs || isSedTemporary(name)
}

// isSedTemporary reports whether the file is one that `sed -i` writes: "sed" and six
// random letters or digits.
func isSedTemporary(name string) bool {
	random, ok := strings.CutPrefix(name, "sed")
	return ok && len(random) == 6 && !strings.ContainsFunc(random, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}

// look is a path that the stack was read from, and what it was then.
type look struct {
	path string
	info os.FileInfo // nil: there was none
	glob *globbed    // of a pattern
}

// changed names a path that is no longer what it was when it was read, or "".
func (r *stackReader) changed() string {
	for _, l := range r.looked {
		if l.glob != nil {
			now, err := globFiles(l.path)
			if err != nil || !slices.Equal(now.files, l.glob.files) {
				return l.path
			}
			continue
		}
		now, err := os.Stat(l.path)
		switch {
		case errors.Is(err, os.ErrNotExist) && l.info == nil:
		case err != nil || l.info == nil || !sameContent(now, l.info):
			return l.path
		}
	}
	return ""
}

// sameContent reports whether a file is still the same one, and unchanged. ctime
// is the kernel's alone: mtime can be set back.
func sameContent(a, b os.FileInfo) bool {
	x, okX := a.Sys().(*syscall.Stat_t)
	y, okY := b.Sys().(*syscall.Stat_t)
	return okX && okY && x.Dev == y.Dev && x.Ino == y.Ino && x.Size == y.Size && x.Mtim == y.Mtim && x.Ctim == y.Ctim
}

// errWriter says that a process has the file open for writing.
var errWriter = errors.New("it is open for writing")

// readWhole reads a file that no process is writing, or waits until no process is.
func readWhole(file string, deadline time.Time) (string, os.FileInfo, error) {
	text, info, err := readStackFile(file)
	if !errors.Is(err, errWriter) {
		return text, info, err
	}
	events, err := linux.NewInotify()
	if err != nil {
		return "", nil, fmt.Errorf("cannot wait for the writer of %q: %w", file, err)
	}
	defer events.Close()
	until, grace := deadline, time.Millisecond
	for {
		// Another file may have taken the name, and each has its own watch.
		if err := events.Watch(file, unix.IN_CLOSE_WRITE|unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_DELETE_SELF); err != nil {
			return "", nil, err
		}
		// After the watch: a close before it is not reported any more.
		text, info, err := readStackFile(file)
		if !errors.Is(err, errWriter) {
			return text, info, err
		}
		if !time.Now().Before(deadline) {
			return "", nil, fmt.Errorf("cannot read %q: %w, and was for %v; let the writer end, or write a new file and rename it into place",
				file, errWriter, stackPatience)
		}
		switch err := events.Wait(until); {
		case err == nil:
			grace = time.Millisecond
		case errors.Is(err, os.ErrDeadlineExceeded):
			grace *= 2
		default:
			return "", nil, err
		}
		// The kernel reports the close just before it counts the writer out
		// (__fput), and nothing afterwards.
		if until = time.Now().Add(grace); until.After(deadline) {
			until = deadline
		}
	}
}

// readStackFile reads a regular file, or /dev/null, as it is while no
// process writes it, else it returns errWriter. O_NONBLOCK keeps a FIFO in its place
// from holding the step.
func readStackFile(file string) (string, os.FileInfo, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, unix.EAGAIN) { // another's write lease, which is now being broken
		return "", nil, errWriter
	}
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	leased, err := lease(f)
	if err != nil {
		return "", nil, err
	}
	if leased {
		// Now, not when the last descriptor is closed: a child that is being
		// forked has one for a moment.
		defer unlease(f)
	}
	info, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() && file != os.DevNull {
		return "", nil, fmt.Errorf("open %s: not a regular file", file)
	}
	if !leased {
		return readStill(f, info)
	}
	text, err := readBounded(f)
	return text, info, err
}

// lease takes a read lease (fcntl(2), F_SETLEASE): the kernel grants it only
// while no process has the file open for writing, or mapped so, and holds a
// process that opens it for writing until we release the lease, which is some
// microseconds later. The SIGIO that it sends us then is one that Go programs ignore. A
// user does not get the lease on another's file, and in some file systems.
func lease(f *os.File) (leased bool, err error) {
	err = linux.OnFD(f, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
		if err != unix.EAGAIN {
			return err
		}
		// NFS and SMB say so too where their server has not lent us the file.
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) == nil {
			switch uint32(fs.Type) {
			case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
				return unix.EOPNOTSUPP
			}
		}
		return errWriter
	})
	if errors.Is(err, errWriter) {
		return false, errWriter
	}
	return err == nil, nil
}

// unlease gives the lease back. It cannot fail for a lease that is held.
func unlease(f *os.File) {
	_ = linux.OnFD(f, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
		return err
	})
}

// rereadsMax bounds how often a file without a lease is read: who changes it
// more often than that is not waiting for us.
const rereadsMax = 100

// readStill reads the file until it was the same before and after.
func readStill(f *os.File, before os.FileInfo) (string, os.FileInfo, error) {
	for range rereadsMax {
		text, err := readBounded(f)
		if err != nil {
			return "", nil, err
		}
		after, err := f.Stat()
		if err != nil {
			return "", nil, err
		}
		if sameContent(before, after) {
			return text, after, nil
		}
		before = after
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return "", nil, err
		}
	}
	return "", nil, fmt.Errorf("cannot read %q: it changes all the time; write a new file and rename it into place", f.Name())
}

func readBounded(f *os.File) (string, error) {
	data, err := io.ReadAll(io.LimitReader(f, stackFileMax+1))
	if err != nil {
		return "", err
	}
	if len(data) > stackFileMax {
		return "", fmt.Errorf("read %s: more than %d bytes", f.Name(), stackFileMax)
	}
	return string(data), nil
}
