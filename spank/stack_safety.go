package spank

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Unsafe tells what somebody other than root may change of the stack: its
// files, its plugins, and the directories on the way to them. All of it is
// code that runs as root, in the end. Slurm accepts it, so ReadStack does not
// look; the administrator's check does. Relative plugin names that were not
// found are passed over.
func (s Stack) Unsafe() []Problem {
	seen := map[string]bool{}
	var out []Problem
	note := func(path, file string, line int) {
		for _, p := range wayTo(path) {
			if seen[p] {
				continue
			}
			seen[p] = true
			if why := unsafeFile(p); why != "" {
				out = append(out, Problem{SeverityWarning, file, line, fmt.Sprintf("%q %s", p, why)})
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

// wayTo lists a path and its parents as written, and where symlinks lead to.
func wayTo(path string) []string {
	var out []string
	add := func(p string) {
		for ; ; p = filepath.Dir(p) {
			out = append(out, p)
			if p == filepath.Dir(p) {
				return
			}
		}
	}
	add(filepath.Clean(path))
	if real, err := filepath.EvalSymlinks(path); err == nil && real != filepath.Clean(path) {
		add(real)
	}
	return out
}

// unsafeFile tells why a file or directory is not root's alone, or "". What
// does not exist is no finding of this check.
func unsafeFile(path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return unsafeMode(st.Mode, st.Uid, st.Gid)
}

// unsafeMode judges st_mode, owner and group. In a sticky directory only an
// entry's owner may replace it, and the entry is judged by itself; the mode of
// a symlink means nothing.
func unsafeMode(mode, uid, gid uint32) string {
	kind := mode & syscall.S_IFMT
	sticky := kind == syscall.S_IFDIR && mode&syscall.S_ISVTX != 0
	switch {
	case uid != 0:
		return fmt.Sprintf("belongs to uid %d, not to root", uid)
	case kind == syscall.S_IFLNK || sticky:
		return ""
	case mode&0o002 != 0:
		return "may be written by everybody"
	case mode&0o020 != 0 && gid != 0:
		return fmt.Sprintf("may be written by group %d", gid)
	}
	return ""
}
