package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Scripts are what the node runs as root before a job's first step and after
// its last one. The zero value is nothing.
type Scripts struct {
	// Prolog and Epilog are programs or glob patterns (slurm.conf), in order.
	Prolog, Epilog []string
	// AtAlloc runs the prolog of an allocation when it is made, and not with
	// its first step (PrologFlags=Alloc).
	AtAlloc bool
	// NoHold answers such an allocation at once: its steps wait for the prolog
	// (PrologFlags=NoHold).
	NoHold bool
	// Serial runs them one at a time on the node (PrologFlags=Serial).
	Serial bool
	// Timeout bounds each of them (PrologEpilogTimeout); 0 is no bound.
	Timeout time.Duration
	// Dir is their working directory; "" is /.
	Dir string
	// Unsafe says why a program is not root's alone; nil believes all of them.
	Unsafe func(path string) error
	// StackID names the plugin stack as it is now: the text changes with the
	// stack and with the plugins' files, and is "" for a stack without plugins.
	// nil is a stack without plugins for ever.
	StackID func() (string, error)
}

// scriptKind is prolog or epilog.
type scriptKind struct {
	name    string // the word of `stepd spank` and of messages
	title   string // begins the reason of a drain, in Slurm's words
	hook    string
	context string // SLURM_SCRIPT_CONTEXT
	// interrupted is what becomes of the job when noded's stop cuts it short.
	interrupted string
}

func prologKind() scriptKind {
	return scriptKind{"prolog", "Prolog error", "slurm_spank_job_prolog", "prolog_slurmd",
		"the next noded ends its step, and a batch job as NODE_FAIL"}
}

func epilogKind() scriptKind {
	return scriptKind{"epilog", "Epilog error", "slurm_spank_job_epilog", "epilog_slurmd", "the next noded runs it again"}
}

func (s *Scripts) patterns(k scriptKind) []string {
	if k.name == "prolog" {
		return s.Prolog
	}
	return s.Epilog
}

// paths expands the patterns: the paths of one in the order of their names. A
// path without a pattern is not looked for: running it fails if it is missing.
func (s *Scripts) paths(k scriptKind) ([]string, error) {
	var paths []string
	for _, pattern := range s.patterns(k) {
		if !strings.ContainsAny(pattern, `*?[\`) {
			paths = append(paths, pattern)
			continue
		}
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("cannot use pattern %q: %w", pattern, err)
		}
		slices.Sort(found)
		paths = append(paths, found...)
	}
	return paths, nil
}

// stackHooks remembers which hooks the plugin stack has: a stack without
// job_prolog and job_epilog, as most are, then costs a job nothing.
type stackHooks struct {
	mu    sync.Mutex
	id    string   // guarded by mu
	hooks []string // guarded by mu
}

func (h *stackHooks) learn(id string, hooks []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.id, h.hooks = id, hooks
}

// has reports whether the stack has the hook, and whether that is known.
func (h *stackHooks) has(id, hook string) (has, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.hooks, hook), h.id == id
}

// StackID is Scripts.StackID's answer, "" where there is none.
func (n *Node) StackID() (string, error) {
	if n.cfg.Scripts.StackID == nil {
		return "", nil
	}
	return n.cfg.Scripts.StackID()
}

// LearnStack says which hooks the plugin stack has that StackID named before it
// was loaded.
func (n *Node) LearnStack(id string, hooks []string) { n.hooks.learn(id, hooks) }

// hasHook reports whether a plugin may have to be called, and what the stack's
// name was then.
func (n *Node) hasHook(hook string) (may bool, id string) {
	id, err := n.StackID()
	if err != nil {
		return true, "" // what is wrong is said where the stack is loaded
	}
	if id == "" {
		return false, ""
	}
	has, known := n.hooks.has(id, hook)
	return has || !known, id
}

// owed reports whether there is anything to run.
func (n *Node) owed(k scriptKind) bool {
	if len(n.cfg.Scripts.patterns(k)) > 0 {
		return true
	}
	may, _ := n.hasHook(k.hook)
	return may
}

// Check finds what is wrong with the programs that have a name, for the
// log at the start: a job that meets it drains the node.
func (s *Scripts) Check() error {
	var errs []error
	for _, k := range []scriptKind{prologKind(), epilogKind()} {
		paths, err := s.paths(k)
		errs = append(errs, err)
		for _, p := range paths {
			if err := s.checkScript(p); err != nil {
				errs = append(errs, fmt.Errorf("cannot run %s %q: %w", k.name, p, err))
			}
		}
	}
	return errors.Join(errs...)
}

// checkScript refuses a program that is none, and one that others than root may
// change: it is run as root.
func (s *Scripts) checkScript(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		if e, ok := errors.AsType[*os.PathError](err); ok {
			return e.Err // the caller names the path
		}
		return err
	case !st.Mode().IsRegular() || st.Mode()&0o111 == 0:
		return errors.New("it is no executable file")
	case s.Unsafe != nil:
		return s.Unsafe(path)
	}
	return nil
}
