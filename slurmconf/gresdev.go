package slurmconf

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// CheckDevices looks at the device files of Gres on this machine. Those that
// cannot be found are warnings, and reasons to drain the node; a file that is
// no device is a warning, since no step can be kept from it.
func (c *Config) CheckDevices() (problems []Problem, drain []string) {
	for _, g := range c.Gres {
		var missing []string
		var why error
		for _, file := range g.Files {
			info, err := os.Stat(file)
			p := Problem{Severity: SeverityWarning, File: g.File, Line: g.Line}
			switch {
			case err != nil:
				missing, why = append(missing, file), cause(err)
				p.Text = fmt.Sprintf("cannot find device %q of %s: %v", file, kindOf(g.Name, g.Type), why)
				p.Remedy = "the node is drained: load the driver, or take the device out of gres.conf and Gres="
			case info.Mode()&os.ModeDevice == 0:
				p.Text = fmt.Sprintf("%q of %s is no device: no step can be kept from it", file, kindOf(g.Name, g.Type))
			default:
				continue
			}
			problems = append(problems, p)
		}
		if missing != nil {
			drain = append(drain, fmt.Sprintf("gres/%s: %s: %v", kindOf(g.Name, g.Type), CompressHosts(missing), why))
		}
	}
	return problems, drain
}

// cause is the error number alone: the path is printed beside it.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
