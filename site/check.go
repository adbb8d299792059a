package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/sirupsen/logrus"

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

// CheckReload finds the mistakes for which noded would not begin anew: it then
// goes on with now, the site that it has.
func CheckReload(o Options, now *Site, log *logrus.Logger) error {
	s, err := Load(o)
	if err != nil {
		return err
	}
	if err := s.Mistakes(); err != nil {
		return err
	}
	if err := s.checkAddress(now); err != nil {
		return err
	}
	for _, p := range s.stackProblems() {
		if p.Severity == slurmconf.SeverityError {
			return fmt.Errorf("cannot use the plugin stack: %s", p)
		}
	}
	_, spankhost, err := programs()
	if err != nil {
		return err
	}
	// Nothing is made: the tracker is asked for nothing.
	_, _, err = s.containers(nil, spankhost, log)
	return err
}

// checkAddress finds that the address of the page of metrics cannot be listened at, unless
// now has its port already: noded itself listens there.
func (s *Site) checkAddress(now *Site) error {
	address := s.conf.Stepd.MetricsListen
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil // none, or a socket
	}
	if _, own, err := net.SplitHostPort(now.conf.Stepd.MetricsListen); err == nil && own == port {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("cannot listen at %q (MetricsListen): %w", address, err)
	}
	return l.Close()
}
