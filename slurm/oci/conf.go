// Package oci runs the tasks of a step in containers of the OCI (srun --container) by the commands
// of oci.conf(5). The step daemon prepares a folder for the step; each task then writes the bundle
// of its container there and becomes the runtime, and a script behind the task asks the runtime
// whether anything is left. All that reads a user's bundle or calls a runtime runs as the user.
// Begin with Load and Step.Prepare; Main is the part that runs as the user.
package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"stepd/slurmconf"
)

// Conf is oci.conf, as far as it concerns steps.
type Conf struct {
	// ContainerPath and MountSpoolDir are patterns: the step's folder, and where a container
	// sees it. "" is the default.
	ContainerPath, MountSpoolDir string
	// The commands, "" for none. Create and Start count where there is no Run.
	Run, Create, Start, Query, Kill, Delete string
	// EnvFile is how the task's file of variables is written: "null", "newline", "" for none.
	EnvFile string
	// EnvExclude and RunEnvExclude are regular expressions of variables that neither the
	// containers nor the commands have, "" for none.
	EnvExclude, RunEnvExclude string
	DisableHooks              []string
	IgnoreConfig, KeepFiles   bool
	// Ignored are the keys that have no effect.
	Ignored []string `json:"-"`
}

// ErrNone is the error of a node without oci.conf.
var ErrNone = errors.New("there is no oci.conf beside slurm.conf")

// Load reads the oci.conf that lies beside slurm.conf. The error says why no step can have a
// container.
func Load(slurmConf string) (*Conf, error) {
	path := filepath.Join(filepath.Dir(slurmConf), "oci.conf")
	set, err := slurmconf.Settings(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNone
	case err != nil:
		return nil, err
	}
	c := new(Conf)
	for _, s := range set {
		if err := c.set(s.Key, s.Value); err != nil {
			return nil, fmt.Errorf("cannot use %s:%d: %w", path, s.Line, err)
		}
	}
	switch {
	case c.Run != "":
		return c, nil
	case c.Create == "" && c.Start == "":
		return nil, fmt.Errorf("cannot use %q: RunTimeRun is not set", path)
	case c.Create == "" || c.Start == "" || c.Query == "" || c.Kill == "" || c.Delete == "":
		return nil, fmt.Errorf("cannot use %q: without RunTimeRun there must be RunTimeCreate, -Start, -Query, -Kill and -Delete", path)
	case c.IgnoreConfig:
		return nil, fmt.Errorf("cannot use %q: IgnoreFileConfigJson is for RunTimeRun alone", path)
	}
	return c, nil
}

// set takes one key.
func (c *Conf) set(key, value string) (err error) {
	patterns := map[string]*string{
		"containerpath": &c.ContainerPath, "mountspooldir": &c.MountSpoolDir, "runtimerun": &c.Run, "runtimecreate": &c.Create,
		"runtimestart": &c.Start, "runtimequery": &c.Query, "runtimekill": &c.Kill, "runtimedelete": &c.Delete,
	}
	name := key
	key = strings.ToLower(key)
	if p, ok := patterns[key]; ok {
		*p = value
		return checkPattern(value)
	}
	switch key {
	case "envexclude":
		c.EnvExclude = value
		_, err = excluder(value)
	case "runtimeenvexclude":
		c.RunEnvExclude = value
		_, err = excluder(value)
	case "createenvfile":
		c.EnvFile, err = envFile(value)
	case "disablehooks":
		c.DisableHooks = strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
	case "disablecleanup":
		c.KeepFiles, err = boolean(value)
	case "ignorefileconfigjson":
		c.IgnoreConfig, err = boolean(value)
	case "debugflags", "filedebug", "stdiodebug", "syslogdebug":
		c.Ignored = append(c.Ignored, name)
	case "srunpath", "srunargs": // scrun's
	default:
		err = fmt.Errorf("there is no key %q", name)
	}
	return err
}

func boolean(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "true", "yes", "1", "up":
		return true, nil
	case "false", "no", "0", "down":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", value)
}

func envFile(value string) (string, error) {
	switch value = strings.ToLower(value); value {
	case "null", "newline":
		return value, nil
	case "disabled", "":
		return "", nil
	}
	set, err := boolean(value)
	if set {
		return "null", err
	}
	return "", err
}

// excluder reports which variables ("NAME=VALUE") an expression leaves out; nil is none.
func excluder(expression string) (func(string) bool, error) {
	if expression == "" {
		return func(string) bool { return false }, nil
	}
	re, err := regexp.CompilePOSIX(expression)
	if err != nil {
		return nil, fmt.Errorf("cannot read the expression %q: %w", expression, err)
	}
	return re.MatchString, nil
}
