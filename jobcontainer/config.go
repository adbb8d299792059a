package jobcontainer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step/launch"
)

// scriptTimeout bounds a script where Config has no bound: Slurm's 10 s.
const scriptTimeout = 10 * time.Second

// dirsMax bounds Dirs=: each entry costs every job a directory and a mount.
const dirsMax = 64

// Config is one node's part of job_container.conf, and where noded lives.
type Config struct {
	// BasePath holds the private directories. It and its parents belong to
	// root, and no other user may write there. The first %h becomes HostName, the
	// first %n NodeName, for a BasePath on a file system that nodes share.
	BasePath string
	// AutoBasePath makes BasePath, mode 0755, where it does not exist. It is
	// never removed.
	AutoBasePath bool
	// Dirs are covered by private directories; empty is /tmp and /dev/shm.
	// /dev/shm gets a file system in memory, the others a directory below
	// BasePath. None may be BasePath or lie in another one.
	Dirs []string
	// InitScript runs as root in the job's namespace before the private
	// directories cover the node's: what it mounts, only the job sees.
	InitScript string
	// InitTimeout bounds InitScript; 0 is 10 s.
	InitTimeout time.Duration
	// CloneNSScript runs as root outside of the job's namespaces when they are
	// complete, CloneNSEpilog before they end; each gets the path where the mount
	// namespace is pinned. Their Waits bound them; 0 is 10 s.
	CloneNSScript, CloneNSEpilog         string
	CloneNSScriptWait, CloneNSEpilogWait time.Duration
	// Shared lets mounts that the node makes later appear in the job too, which
	// autofs needs; what a job mounts stays inside in any case. Without it the
	// job keeps the node's mounts as they were when it began.
	Shared bool
	// EntireStepInNS asks for the whole host of a step, not the tasks alone, to
	// join the namespace. Tmpfs only carries the answer.
	EntireStepInNS bool

	// PIDNamespace gives the job a pid namespace, with a /proc of its own, and
	// UserNamespace a user namespace in which ids are what they are outside: its
	// root has no power over the node. Both are of job_container/linux.
	PIDNamespace, UserNamespace bool
	// Keeper is spankhost, whose processes begin the two. Place says where process
	// 1 of a pid namespace belongs.
	Keeper string
	Place  func(job uint32) (Place, error)

	// RunDir is RUN/jobs. It is made where it does not exist.
	RunDir string
	// NodeTag sets this noded's directory in BasePath apart from other
	// nodeds': 8 hexadecimal digits of its spool's hash.
	NodeTag string
	// NodeName and HostName are what %n and %h stand for; NodeName is also
	// written into BasePath, so that two nodes never share a directory.
	NodeName string
	HostName string
	// Warn gets errors that stop nothing and have no caller; nil drops them.
	Warn func(error)
	// SlurmConf is InitScript's SLURM_CONF; empty leaves it out.
	SlurmConf string
}

// complete checks the configuration and returns it with all defaults filled
// in. It touches no file: what depends on the disk is checked by its user.
func (c Config) complete() (Config, error) {
	if err := checkPath("the run directory", c.RunDir); err != nil {
		return c, err
	}
	if !validTag(c.NodeTag) {
		return c, fmt.Errorf("internal error: job container tag %q is not 8 hexadecimal digits", c.NodeTag)
	}
	return c.completeFile()
}

// completeFile is complete for what job_container.conf says.
func (c Config) completeFile() (Config, error) {
	c.BasePath = expandBase(c.BasePath, c.NodeName, c.HostName)
	if len(c.Dirs) == 0 {
		c.Dirs = []string{"/tmp", "/dev/shm"}
	}
	for key, limit := range map[string]*time.Duration{
		"InitScript": &c.InitTimeout, "CloneNSScript": &c.CloneNSScriptWait, "CloneNSEpilog": &c.CloneNSEpilogWait,
	} {
		*limit = cmp.Or(*limit, scriptTimeout)
		if *limit < 0 {
			return c, fmt.Errorf("cannot use a time limit of %v for %s: want more than 0", *limit, key)
		}
	}
	c.BasePath = strings.TrimSuffix(c.BasePath, "/")
	if err := checkPath("BasePath", c.BasePath); err != nil {
		return c, err
	}
	for key, script := range map[string]string{"InitScript": c.InitScript, "CloneNSScript": c.CloneNSScript, "CloneNSEpilog": c.CloneNSEpilog} {
		if script == "" {
			continue
		}
		if err := checkPath(key, script); err != nil {
			return c, err
		}
	}
	if err := c.checkSpaces(); err != nil {
		return c, err
	}
	if c.NodeName == "" || strings.ContainsAny(c.NodeName, "\n\x00/") {
		return c, fmt.Errorf("cannot use node name %q for job containers", c.NodeName)
	}
	var err error
	c.Dirs, err = checkDirs(c.Dirs, c.BasePath)
	return c, err
}

// checkSpaces checks what job_container/linux needs.
func (c *Config) checkSpaces() error {
	switch {
	case c.PIDNamespace && c.EntireStepInNS:
		// Its /proc shows the job's pid namespace, in which the host is not.
		return errors.New("cannot use EntireStepInNS=true with a pid namespace: plugins would find no /proc/self; choose one of them (CloneNSFlags= in job_container.conf)")
	case (c.PIDNamespace || c.UserNamespace) && !path.IsAbs(c.Keeper), c.PIDNamespace && c.Place == nil:
		return errors.New("internal error: pid and user namespaces need a program that keeps them, and its place")
	case c.PIDNamespace:
		for _, d := range c.Dirs {
			if within("/proc", d) || within(d, "/proc") {
				return fmt.Errorf("cannot use directory %q: a pid namespace has its /proc there (Dirs= in job_container.conf)", d)
			}
		}
	}
	return nil
}

// expandBase replaces the first %h and the first %n, as Slurm does.
func expandBase(base, node, host string) string {
	base = strings.Replace(base, "%h", host, 1)
	return strings.Replace(base, "%n", node, 1)
}

// checkPath wants an absolute path without "..", so that comparing paths as
// text is enough; "/" itself is never a place for a container's files.
func checkPath(knob, p string) error {
	switch {
	case p == "":
		return fmt.Errorf("cannot use job container: %s is not set", knob)
	case !strings.HasPrefix(p, "/"):
		return fmt.Errorf("cannot use %s %q: not an absolute path (%s= in job_container.conf)", knob, p, knob)
	case strings.ContainsAny(p, "\n\x00"):
		return fmt.Errorf("cannot use %s %q: it has a line break or NUL in it", knob, p)
	case path.Clean(p) != p || p == "/":
		return fmt.Errorf("cannot use %s %q: write it as %q or choose a directory below it", knob, p, path.Clean(p))
	}
	return nil
}

// checkDirs returns the entries cleaned. An entry in another one would have to
// exist in that one's private directory, which is empty: refuse it here rather
// than in every job.
func checkDirs(dirs []string, base string) ([]string, error) {
	if len(dirs) > dirsMax {
		return nil, fmt.Errorf("cannot use %d directories: at most %d (Dirs= in job_container.conf)", len(dirs), dirsMax)
	}
	out := make([]string, 0, len(dirs))
	for _, d := range dirs {
		if d != "/" {
			d = strings.TrimSuffix(d, "/")
		}
		if err := checkPath("Dirs", d); err != nil {
			return nil, err
		}
		if d == base {
			return nil, fmt.Errorf("cannot use BasePath %q: it is one of Dirs=, which covers it in every job", base)
		}
		for _, o := range out {
			if within(d, o) || within(o, d) {
				return nil, fmt.Errorf("cannot use directories %q and %q: one is the other or lies in it (Dirs= in job_container.conf)", o, d)
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// within reports whether clean path p is dir or lies below it.
func within(p, dir string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func validTag(tag string) bool {
	return len(tag) == 8 && strings.Trim(tag, "0123456789abcdef") == ""
}

// Check refuses what Restore, or the first job, would: a BasePath that does not exist or
// in which users other than root may write, and scripts that others may have written. It
// makes nothing. What an error names it names with the command that mends it, where there
// is one.
func (t *Tmpfs) Check() error {
	return errors.Join(checkBase(&t.cfg), t.checkScripts())
}

// checkScripts checks the site's scripts as the first job would.
func (t *Tmpfs) checkScripts() error {
	cfg := &t.cfg
	var errs []error
	for _, s := range []struct{ key, path string }{{"InitScript", cfg.InitScript}, {"CloneNSScript", cfg.CloneNSScript}, {"CloneNSEpilog", cfg.CloneNSEpilog}} {
		if s.path == "" {
			continue
		}
		if err := checkScript(s.path); err != nil {
			errs = append(errs, &launch.FaultError{Err: fmt.Errorf("cannot use %q: %w (%s= in job_container.conf)", s.path, err, s.key)})
		}
	}
	return errors.Join(errs...)
}

func checkBase(cfg *Config) error {
	base, err := openBase(cfg, failMissing)
	if errors.Is(err, unix.ENOENT) && cfg.AutoBasePath {
		return nil // the way to it was looked at as far as it goes
	}
	if err != nil {
		return err
	}
	defer base.Close()
	tag, err := ownDir(openDir(base, cfg.NodeTag))
	switch {
	case err == nil:
		return tag.Close()
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return baseError(cfg, err)
}

// openBase opens BASE, which is root's alone.
func openBase(cfg *Config, m missing) (*os.File, error) {
	base, err := openTrusted(cfg.BasePath, m)
	if err != nil {
		return nil, baseError(cfg, err)
	}
	if err = checkKept(base); err == nil {
		err = checkOwn(base)
	}
	if err != nil {
		base.Close()
		return nil, baseError(cfg, err)
	}
	return base, nil
}
