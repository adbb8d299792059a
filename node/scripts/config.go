package scripts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Config is what the site's files say about prolog and epilog. The zero value runs nothing.
type Config struct {
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
	// Unsafe returns why a program is not root's alone; a nil function trusts every program.
	Unsafe func(path string) error
	// StackID names the plugin stack as it is now: the text changes with the
	// stack and with the plugins' files, and is "" for a stack without plugins. digest is of
	// the stack's files alone. Required.
	StackID func() (id, digest string, err error)
}

// kind is prolog or epilog.
type kind struct {
	name    string // the word of `stepd spank` and of messages
	title   string // begins the reason of a drain, in Slurm's words
	hook    string
	context string // SLURM_SCRIPT_CONTEXT
	// interrupted is what becomes of the job when noded's stop ends it early.
	interrupted string
}

func prolog() kind {
	return kind{"prolog", "Prolog error", "slurm_spank_job_prolog", "prolog_slurmd",
		"the next noded ends its step, and a batch job as NODE_FAIL"}
}

func epilog() kind {
	return kind{"epilog", "Epilog error", "slurm_spank_job_epilog", "epilog_slurmd", "the next noded runs it again"}
}

// IsHook reports whether a plugin's hook is called with prolog or epilog, and not by a step.
func IsHook(hook string) bool { return hook == prolog().hook || hook == epilog().hook }

func (c *Config) patterns(k kind) []string {
	if k.name == "prolog" {
		return c.Prolog
	}
	return c.Epilog
}

// paths expands the patterns; the paths of one pattern are sorted by name. A path without
// a pattern is returned even if it is missing: running it fails then.
func (c *Config) paths(k kind) ([]string, error) {
	var paths []string
	for _, pattern := range c.patterns(k) {
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

// Check returns what is wrong with the programs that are named, for the log at the start: a
// job that runs such a program drains the node.
func (c *Config) Check() error {
	var errs []error
	for _, k := range []kind{prolog(), epilog()} {
		paths, err := c.paths(k)
		errs = append(errs, err)
		for _, p := range paths {
			if err := c.checkProgram(p); err != nil {
				errs = append(errs, fmt.Errorf("cannot run %s %q: %w", k.name, p, err))
			}
		}
	}
	return errors.Join(errs...)
}

// checkProgram refuses a path that is no program, and a program that users other than root
// may change: it is run as root.
func (c *Config) checkProgram(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		if e, ok := errors.AsType[*os.PathError](err); ok {
			return e.Err // the caller names the path
		}
		return err
	case !st.Mode().IsRegular() || st.Mode()&0o111 == 0:
		return errors.New("it is no executable file")
	case c.Unsafe != nil:
		return c.Unsafe(path)
	}
	return nil
}
