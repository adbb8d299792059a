package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"stepd/node/scripts"
	"stepd/node/state"
	"stepd/step"
)

// quarantine counts the crashes of plugins, in a row and by file. With
// QuarantineAfter=N an optional plugin that has crashed N times is left out of
// further steps, and a required one drains the node, until Resume or until its
// file is another one.
type quarantine struct {
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

// stepPlugins takes over what an ended step's record says about its plugins: the
// one that crashed, or that none did.
func (n *Node) stepPlugins(rec *step.Record) {
	switch {
	case rec.PluginCrash != nil:
		n.countCrashes([]step.PluginCrash{*rec.PluginCrash}, ofStep)
	case rec.Started != nil:
		n.countCrashes(nil, ofStep)
	}
}

// ofStep reports whether a step calls the hook: a run of prolog or epilog says nothing about
// it, nor a step about theirs.
func ofStep(hook string) bool { return !scripts.IsHook(hook) }

// countCrashes counts the plugins that crashed in one run of the stack. Where
// none did, those begin anew whose last crash was in a hook that this run called.
func (n *Node) countCrashes(crashed []step.PluginCrash, called func(hook string) bool) {
	limit := n.cfg.QuarantineAfter
	if limit <= 0 {
		return
	}
	n.plugins.mu.Lock()
	defer n.plugins.mu.Unlock()
	changed := false
	for path, c := range n.plugins.crashes {
		if len(crashed) == 0 && c.Times < limit && called(c.Hook) {
			delete(n.plugins.crashes, path)
			changed = true
		}
	}
	for _, p := range crashed {
		c := n.plugins.crashes[p.Path]
		if file := nameFile(p.Path); c.File != file {
			c = state.Crash{File: file}
		}
		c.Times, c.Hook, c.Required = c.Times+1, p.Hook, p.Required
		n.plugins.crashes[p.Path] = c
		changed = true
		q := quarantineOf(p.Path, c)
		switch {
		case c.Times < limit:
		case c.Required:
			n.drainSelf(fmt.Sprintf("required plugin %q %s", filepath.Base(p.Path), q.Why()))
		default:
			n.log.Errorf("%s", q)
		}
	}
	if changed {
		n.storeCrashes()
	}
}

func quarantineOf(path string, c state.Crash) step.Quarantine {
	return step.Quarantine{Path: path, Times: c.Times, Hook: c.Hook}
}

// storeCrashes is called with the lock held.
func (n *Node) storeCrashes() {
	if err := n.store.SetCrashes(n.plugins.crashes); err != nil {
		n.log.Errorf("%v", err)
	}
}

// quarantined lists the plugins to leave out, by path.
func (n *Node) quarantined() []step.Quarantine {
	limit := n.cfg.QuarantineAfter
	if limit <= 0 {
		return nil
	}
	n.plugins.mu.Lock()
	defer n.plugins.mu.Unlock()
	var out []step.Quarantine
	changed := false
	for path, c := range n.plugins.crashes {
		switch {
		case c.Times < limit || c.Required:
		case nameFile(path) != c.File:
			n.log.Infof("plugin %q was changed: it is taken in again", path)
			delete(n.plugins.crashes, path)
			changed = true
		default:
			out = append(out, quarantineOf(path, c))
		}
	}
	if changed {
		n.storeCrashes()
	}
	slices.SortFunc(out, func(a, b step.Quarantine) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// forgiveAll takes all plugins in again.
func (n *Node) forgiveAll() {
	n.plugins.mu.Lock()
	defer n.plugins.mu.Unlock()
	if len(n.plugins.crashes) > 0 {
		clear(n.plugins.crashes)
		n.storeCrashes()
	}
}

// markQuarantined marks them in the node document.
func (n *Node) markQuarantined(plugins []Plugin) {
	for _, q := range n.quarantined() {
		for i := range plugins {
			if p := &plugins[i]; p.Path == q.Path && !p.Required {
				p.State, p.Problem = "quarantined", q.Why()+"; stepctl node resume takes it in again"
			}
		}
	}
}
