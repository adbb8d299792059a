package spank

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// Unsafe lists what users other than root may change of the stack: its
// files, its plugins, and the directories on the way to them. All of it is
// code that runs as root, in the end. Slurm accepts it, so ReadStack does not
// look; the administrator's check does, and RequireSafe. Relative plugin names
// that were not found are passed over.
func (s Stack) Unsafe() []Problem {
	seen := map[string]bool{}
	var out []Problem
	note := func(path, file string, line int) {
		for _, p := range Way(path) {
			if seen[p] {
				continue
			}
			seen[p] = true
			if why, remedy := UnsafeFile(p); why != "" {
				out = append(out, Problem{SeverityWarning, file, line, fmt.Sprintf("%q %s", p, why), remedy})
			}
		}
	}
	for _, f := range s.Files {
		note(f, f, 0)
	}
	for _, p := range s.Plugins {
		if filepath.IsAbs(p.Path) {
			note(p.Path, p.File, p.Line)
		}
	}
	return out
}

// StackOf reads the stack as a step has to: with RequireSafe, if the node wants
// that.
func StackOf(conf step.SpankConf) (Stack, error) {
	stack, err := ReadStack(conf.Plugstack, conf.PluginDirs)
	if err == nil && conf.RequireSafe {
		err = stack.RequireSafe()
	}
	return stack, err
}

// RequireSafe fails when Unsafe finds anything (RequireSafePlugins=yes of
// stepd.conf). The error names the file, what is wrong with it and the remedy.
func (s Stack) RequireSafe() error {
	unsafe := s.Unsafe()
	if len(unsafe) == 0 {
		return nil
	}
	p := unsafe[0]
	at := p.File
	if p.Line > 0 {
		at = fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	more := ""
	if len(unsafe) > 1 {
		more = fmt.Sprintf(" (and %d more: stepctl plugins --check lists them)", len(unsafe)-1)
	}
	return fmt.Errorf("cannot load the plugin stack: %s: %s, and stepd.conf has RequireSafePlugins=yes; %s%s", at, p.Text, p.Remedy, more)
}

// linksMax is how many symlinks a path may have, as in the kernel (path_resolution(7)).
const linksMax = 40

// Way lists an absolute path's directories from the root down and the path
// itself; where one of them is a symlink, the way that it leads follows. What
// does not exist is listed as it is written. A user who may change one of
// these decides what is found at the path.
func Way(path string) []string {
	out := []string{"/"}
	seen := map[string]bool{"/": true}
	at, links := "/", 0
	for todo := strings.Split(path, "/"); len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		if name == ".." {
			at = filepath.Dir(at)
		}
		if name == "" || name == "." || name == ".." {
			continue
		}
		next := filepath.Join(at, name)
		if !seen[next] {
			seen[next] = true
			out = append(out, next)
		}
		target, err := os.Readlink(next)
		if err != nil { // no link
			at = next
			continue
		}
		if links++; links > linksMax {
			return out
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return out
}

// UnsafeFile says why a file or directory is not root's alone, or "", and what
// to do. It looks at the path itself, not at the way there (Way). What does not
// exist is no finding of this check.
func UnsafeFile(path string) (why, remedy string) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", ""
	}
	why, remedy = unsafeMode(st.Mode, st.Uid, st.Gid)
	if why == "" && st.Mode&syscall.S_IFMT != syscall.S_IFLNK && st.Mode&0o020 != 0 && hasACL(path) {
		// The group's bits are the mask of the list then (acl(5)).
		why, remedy = "may be written by those in its access control list", "setfacl -b"
	}
	if why == "" {
		return "", ""
	}
	return why, fmt.Sprintf("%s %s", remedy, path)
}

func hasACL(path string) bool {
	n, err := unix.Lgetxattr(path, "system.posix_acl_access", nil)
	return err == nil && n > 0
}

// unsafeMode judges st_mode, owner and group. In a sticky directory only an
// entry's owner may replace it, and the entry is judged by itself; the mode of
// a symlink means nothing.
func unsafeMode(mode, uid, gid uint32) (why, remedy string) {
	kind := mode & syscall.S_IFMT
	sticky := kind == syscall.S_IFDIR && mode&syscall.S_ISVTX != 0
	switch {
	case uid != 0 && kind == syscall.S_IFLNK:
		return fmt.Sprintf("belongs to uid %d, not to root", uid), "chown -h root"
	case uid != 0:
		return fmt.Sprintf("belongs to uid %d, not to root", uid), "chown root"
	case kind == syscall.S_IFLNK || sticky:
		return "", ""
	case mode&0o002 != 0:
		return "may be written by everybody", "chmod o-w"
	case mode&0o020 != 0 && gid != 0:
		return fmt.Sprintf("may be written by group %d", gid), "chmod g-w"
	}
	return "", ""
}
