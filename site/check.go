package site

import (
	"errors"
	"fmt"
	"io"

	"stepd/slurmconf"
)

// Check is `noded --check-config`, and the first half of `noded --check`: it prints
// every mistake with file and line, lists the keys that are ignored, and fails when
// there is a mistake.
func Check(out io.Writer, o Options) error {
	s, err := Load(o)
	if err != nil {
		return err
	}
	return s.check(out)
}

// Diagnose is check, and what the host has to say.
func Diagnose(out io.Writer, o Options) error {
	s, err := Load(o)
	if err != nil {
		return err
	}
	return errors.Join(s.check(out), s.examine(out))
}

func (s *Site) check(out io.Writer) error {
	mistakes := 0
	for _, p := range append(s.problems, s.stackProblems()...) {
		if p.Severity == slurmconf.SeverityError {
			mistakes++
		}
		if _, err := fmt.Fprintf(out, "%s: %s\n", p.Severity, p); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
	}
	if mistakes > 0 {
		return fmt.Errorf("%d mistakes in the configuration", mistakes)
	}
	return nil
}
