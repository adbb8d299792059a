package site

import (
	"context"
	"fmt"
	"net"
	"stepd/slurmconf"

	"github.com/sirupsen/logrus"
)

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
