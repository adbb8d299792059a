package site

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/metrics"
	"stepd/node"
)

// MetricsPage is the page of metrics; nil where the site wants none.
type MetricsPage struct {
	Metrics *metrics.Metrics
	address string // "IP:PORT", or "unix"
	run     string
	server  *metrics.Server
}

// NewPage returns nil where the site wants no page.
func NewPage(s *Site) *MetricsPage {
	if s.conf.Stepd.MetricsListen == "" {
		return nil
	}
	return &MetricsPage{Metrics: metrics.New(), address: s.conf.Stepd.MetricsListen, run: s.Run}
}

// Serve listens, and serves until Close; on nil it does nothing.
func (p *MetricsPage) Serve(n *node.Node, log *logrus.Logger) error {
	if p == nil {
		return nil
	}
	l, err := p.listen()
	if err != nil {
		return fmt.Errorf("cannot serve metrics at %q (MetricsListen): %w", p.address, err)
	}
	p.Metrics.Watch(n)
	p.server = p.Metrics.Serve(l, n.NotReady, func(err error) { log.Error(err) })
	log.Infof("serving metrics at %s", l.Addr())
	return nil
}

// metricsSocket is the page's name in the run directory, which noded has locked.
const metricsSocket = "metrics.sock"

func (p *MetricsPage) listen() (net.Listener, error) {
	if p.address != "unix" {
		return new(net.ListenConfig).Listen(context.Background(), "tcp", p.address)
	}
	// By a descriptor: a socket's path holds 108 bytes.
	dir, err := os.OpenFile(p.run, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := unix.Unlinkat(int(dir.Fd()), metricsSocket, 0); err != nil && err != unix.ENOENT {
		return nil, err
	}
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), metricsSocket))
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its name is a descriptor's
	// Connecting needs the right to write.
	if err := unix.Fchmodat(int(dir.Fd()), metricsSocket, 0o600, 0); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close ends Serve; it may be called on nil.
func (p *MetricsPage) Close() {
	if p == nil || p.server == nil {
		return
	}
	p.server.Close()
	if p.address == "unix" {
		_ = os.Remove(filepath.Join(p.run, metricsSocket)) // the next noded replaces it
	}
}
