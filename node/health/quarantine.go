package health

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/node/scripts"
	"stepd/node/state"
	"stepd/step"
)

// Quarantine counts the crashes of plugins, in a row and by file. With
// QuarantineAfter=N an optional plugin that has crashed N times is left out of
// further steps, and a required one drains the node, until Resume or until its
// file is another one.
type Quarantine struct {
	limit int // QuarantineAfter
	store *state.State
	drain func(reason string)
	log   *logrus.Logger

	mu      sync.Mutex
	crashes map[string]state.Crash // guarded by mu: by path
}

func nameFile(path string) state.File {
	info, err := os.Stat(path)
	if err != nil {
		return state.File{}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return state.File{}
	}
	return state.File{Dev: uint64(st.Dev), Ino: st.Ino, Mtime: info.ModTime().UnixNano()}
}

// Step takes over what an ended step's record says about its plugins: the
// one that crashed, or that none did.
func (q *Quarantine) Step(rec *step.Record) {
	switch {
	case rec.PluginCrash != nil:
		q.Count([]step.PluginCrash{*rec.PluginCrash}, ofStep)
	case rec.Started != nil:
		q.Count(nil, ofStep)
	}
}

// ofStep reports whether a step calls the hook: a run of prolog or epilog says nothing about
// it, nor a step about theirs.
func ofStep(hook string) bool { return !scripts.IsHook(hook) }

// Count counts the plugins that crashed in one run of the stack. Where
// none did, those begin anew whose last crash was in a hook that this run called.
func (q *Quarantine) Count(crashed []step.PluginCrash, called func(hook string) bool) {
	if q.limit <= 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	changed := false
	for path, c := range q.crashes {
		if len(crashed) == 0 && c.Times < q.limit && called(c.Hook) {
			delete(q.crashes, path)
			changed = true
		}
	}
	for _, p := range crashed {
		c := q.crashes[p.Path]
		if file := nameFile(p.Path); c.File != file {
			c = state.Crash{File: file}
		}
		c.Times, c.Hook, c.Required = c.Times+1, p.Hook, p.Required
		q.crashes[p.Path] = c
		changed = true
		is := quarantineOf(p.Path, c)
		switch {
		case c.Times < q.limit:
		case c.Required:
			q.drain(fmt.Sprintf("required plugin %q %s", filepath.Base(p.Path), is.Why()))
		default:
			q.log.Errorf("%s", is)
		}
	}
	if changed {
		q.storeLocked()
	}
}

func quarantineOf(path string, c state.Crash) step.Quarantine {
	return step.Quarantine{Path: path, Times: c.Times, Hook: c.Hook}
}

func (q *Quarantine) storeLocked() {
	if err := q.store.SetCrashes(q.crashes); err != nil {
		q.log.Errorf("%v", err)
	}
}

// List lists the plugins to leave out, by path.
func (q *Quarantine) List() []step.Quarantine {
	if q.limit <= 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []step.Quarantine
	changed := false
	for path, c := range q.crashes {
		switch {
		case c.Times < q.limit || c.Required:
		case nameFile(path) != c.File:
			q.log.Infof("plugin %q was changed: it is taken in again", path)
			delete(q.crashes, path)
			changed = true
		default:
			out = append(out, quarantineOf(path, c))
		}
	}
	if changed {
		q.storeLocked()
	}
	slices.SortFunc(out, func(a, b step.Quarantine) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Forgive takes all plugins in again.
func (q *Quarantine) Forgive() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.crashes) > 0 {
		clear(q.crashes)
		q.storeLocked()
	}
}

// Mark marks them in the node document.
func (q *Quarantine) Mark(plugins []api.NodePlugin) {
	for _, is := range q.List() {
		for i := range plugins {
			if p := &plugins[i]; p.Path == is.Path && !p.Required {
				p.State, p.Problem = "quarantined", is.Why()+"; stepctl node resume takes it in again"
			}
		}
	}
}
