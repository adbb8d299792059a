package site

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/internal/testkit"
	"stepd/slurmconf"
)

// TestCheckScreen: what is said of a typical site's files: keys by class, then mistakes, errors last.
func TestCheckScreen(t *testing.T) {
	testkit.RequireRoot(t) // who owns the plugin stack is looked at
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil { // else the plugin stack is not every user's
			t.Fatal(err)
		}
	}
	for _, name := range []string{"slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf"} {
		text, err := os.ReadFile(filepath.Join("testdata/site60", name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(text))
	}
	for _, node := range []string{"n1", "n9"} { // with GPUs, and without
		var out bytes.Buffer
		err := Check(&out, Options{File: filepath.Join(dir, "slurm.conf"), Node: node})
		text := strings.ReplaceAll(fmt.Sprintf("%snoded: error: %v\n", &out, err), dir, "/etc/slurm")
		golden := filepath.Join("testdata", "check-"+node+".txt")
		if *update {
			write(t, golden, text)
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if text != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", golden, text, want)
		}
		last := ""
		for line := range strings.Lines(text) {
			severity, _, _ := strings.Cut(line, ": ")
			if last == "error" && severity != "error" && severity != "noded" {
				t.Errorf("behind an error: %q", line)
			}
			if listed := strings.HasPrefix(line, " "); listed && len(line) > screen+1 {
				t.Errorf("wider than a screen: %q", line)
			}
			last = severity
		}
	}
}

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
