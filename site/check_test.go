package site

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"stepd/slurmconf"
)

// TestCheckAddresses: a reload is refused for a new address that is in use, and not for
// those at which noded itself is.
func TestCheckAddresses(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	_, port, err := net.SplitHostPort(used.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	page := func(at string) *slurmconf.Config {
		c := new(slurmconf.Config)
		c.Stepd.MetricsListen = at
		return c
	}
	for _, c := range []struct {
		name     string
		now, new *slurmconf.Config
		says     string
	}{
		{"page", page(""), page("127.0.0.1:" + port), "MetricsListen"},
		{"page that is there", page("127.0.0.1:" + port), page("0.0.0.0:" + port), ""},
		{"page at its socket", page(""), page("unix"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := (&Site{conf: c.new}).checkAddress(&Site{conf: c.now})
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), ":"+port)) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// TestReloadRefusesAddress: CheckReload asks, with the files as they are then.
func TestReloadRefusesAddress(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	dir := t.TempDir()
	o := Options{File: write(t, filepath.Join(dir, "slurm.conf"), ""), RunDir: dir, SpoolDir: dir}
	now, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "stepd.conf"), "MetricsListen="+used.Addr().String()+"\n")
	if err := CheckReload(o, now); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%v", err)
	}
}
