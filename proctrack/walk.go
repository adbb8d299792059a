package proctrack

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// walkMax bounds how many groups a walk that removes none goes through. Users
// cannot make groups; a task that runs as root can make as many as the limits
// of the cgroups above allow (cgroup.max.descendants).
const walkMax = 100_000

// walk goes through g and all groups below it: enter is called with each before
// those below it, leave with each but g itself after them. Either may be nil.
// What is removed meanwhile is passed over.
func (g *group) walk(enter func(*group) error, leave func(parent *group, name string) error) error {
	at, err := g.again(".")
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	w := &walker{at: at, enter: enter, leave: leave}
	defer func() { w.at.close() }()
	for err = w.arrive(); err == nil; err = w.next() {
		continue
	}
	if errors.Is(err, errWalked) {
		return nil
	}
	return err
}

// errWalked ends a walk.
var errWalked = errors.New("internal error: the walk has ended")

// walker is a place in a tree of groups. However deep that is, two descriptors
// are open and nothing recurses: the way up is "..", which no process can
// change in a cgroup file system.
type walker struct {
	at      *group
	names   []string // groups in it that are still to be gone through
	above   []level
	visited int
	enter   func(*group) error
	leave   func(parent *group, name string) error
}

// level is the way back up.
type level struct {
	name  string   // of the group that was entered
	names []string // of its siblings that are still to be visited
}

// next enters one group or leaves one.
func (w *walker) next() error {
	if len(w.names) == 0 {
		return w.ascend()
	}
	name := w.names[len(w.names)-1]
	w.names = w.names[:len(w.names)-1]
	child, err := w.at.child(name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	w.above = append(w.above, level{name, w.names})
	w.at.close()
	w.at = child
	return w.arrive()
}

func (w *walker) arrive() (err error) {
	if w.visited++; w.leave == nil && w.visited > walkMax {
		return fmt.Errorf("cannot go through cgroup %q: it is one of more than %d", w.at.path, walkMax)
	}
	if w.enter != nil {
		if err := w.enter(w.at); err != nil {
			return err
		}
	}
	w.names, err = w.at.children()
	return err
}

func (w *walker) ascend() error {
	if len(w.above) == 0 {
		return errWalked
	}
	up, err := w.at.again("..")
	if err != nil {
		return err
	}
	up.path = filepath.Dir(w.at.path)
	w.at.close()
	w.at = up
	last := w.above[len(w.above)-1]
	w.above, w.names = w.above[:len(w.above)-1], last.names
	if w.leave == nil {
		return nil
	}
	return w.leave(w.at, last.name)
}

// again opens "." or "..".
func (g *group) again(name string) (*group, error) {
	fd, err := openat(g.fd, name, dirFlags)
	if err != nil {
		return nil, fmt.Errorf("cannot open cgroup %q: %w", filepath.Join(g.path, name), err)
	}
	return &group{fd: fd, path: g.path, v1: g.v1}, nil
}

// busy reports whether err says that a group is not empty.
func busy(err error) bool { return errors.Is(err, unix.EBUSY) }
