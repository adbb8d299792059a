package lint

import (
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"stepd/spank"
)

// print is what a path was when the report was made.
type print struct {
	stat unix.Stat_t // the zero value: the path did not exist
	// entries: it counts too which entries a directory has.
	entries bool
}

// remember takes the prints of all that decides about the stack.
func (r *Report) remember(c Config, stack spank.Stack) {
	for _, path := range stack.Sources {
		r.note(path)
	}
	for _, p := range stack.Plugins {
		r.note(p.Path)
	}
	r.note(c.Host)
}

// note takes the prints of a path and of all on the way to it. It is called
// before the path is looked into.
func (r *Report) note(path string) {
	if !filepath.IsAbs(path) {
		return
	}
	if r.prints == nil {
		r.prints = map[string]*print{}
	}
	way := spank.Way(path)
	for i, p := range way {
		known := r.prints[p]
		if known == nil {
			known = &print{stat: status(p)}
			r.prints[p] = known
		}
		known.entries = known.entries || i == len(way)-1
	}
}

// status is the path's own; a path that does not exist has the zero value.
func status(path string) unix.Stat_t {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return unix.Stat_t{}
	}
	return st
}

// same reports whether a path is what it was. Others change the entries of a
// directory that is only on the way all the time.
func (p *print) same(now unix.Stat_t) bool {
	was := p.stat
	if was.Dev != now.Dev || was.Ino != now.Ino || was.Mode != now.Mode || was.Uid != now.Uid || was.Gid != now.Gid {
		return false
	}
	if now.Mode&unix.S_IFMT == unix.S_IFDIR && !p.entries {
		return true
	}
	return was.Size == now.Size && was.Mtim == now.Mtim && was.Ctim == now.Ctim
}

// Stale reports whether something has changed that the report rests on: a file of
// the stack, a directory that a pattern has read, a plugin, a library of one,
// the host, a directory or a symlink on the way to one of them.
func (r *Report) Stale() bool {
	for path, p := range r.prints {
		if !p.same(status(path)) {
			return true
		}
	}
	return false
}

// Directories are those to watch for changes that make the report stale, sorted.
func (r *Report) Directories() []string {
	var out []string
	for path, p := range r.prints {
		if p.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}
