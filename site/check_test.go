package site

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"stepd/internal/printable"
	"stepd/internal/testkit"
	"stepd/slurmconf"
)

// TestCheckScreen: what is said of a typical site's files: keys by class, then mistakes, errors last.
func TestCheckScreen(t *testing.T) {
	testkit.RequireRoot(t) // who owns the plugin stack is looked at
	dir := shortDir(t)
	for _, name := range []string{"slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf"} {
		text, err := os.ReadFile(filepath.Join("testdata/site60", name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(text))
	}
	for _, c := range []struct {
		node  string // n1 has GPUs, n9 none
		width int
	}{{"n1", 80}, {"n9", 80}, {"n9", 40}, {"n9", 200}} {
		var out bytes.Buffer
		err := Check(&out, Options{File: filepath.Join(dir, "slurm.conf"), Node: c.node}, c.width)
		text := strings.ReplaceAll(fmt.Sprintf("%snoded: error: %v\n", &out, err), dir, "/etc/slurm")
		golden := filepath.Join("testdata", fmt.Sprintf("check-%s-%d.txt", c.node, c.width))
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
		last, counted := "", map[string]int{}
		for line := range strings.Lines(text) {
			severity, _, _ := strings.Cut(line, ": ")
			if last == "error" && severity != "error" && severity != "noded" && !strings.HasPrefix(line, "  ") {
				t.Errorf("behind an error: %q", line)
			}
			if long := printable.Width(strings.TrimSuffix(line, "\n")) > c.width; long && severity != "noded" && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("wider than %d: %q", c.width, line)
			}
			if !strings.HasPrefix(line, " ") {
				last = severity
				counted[severity]++
			}
		}
		keys := 0
		for _, n := range regexp.MustCompile(`(?m)^\S.*, (\d+) keys?:$`).FindAllStringSubmatch(text, -1) {
			of, _ := strconv.Atoi(n[1]) // digits
			keys += of
		}
		if head := fmt.Sprintf("%s, %d warnings, %d keys without effect in ", mistakes(counted["error"]), counted["warning"], keys); !strings.HasPrefix(strings.ReplaceAll(text, "\n  ", " "), head) {
			t.Errorf("it does not begin with %q: %s", head, text)
		}
	}
}

// TestCheckHeadline: what noded --check says first, where all is well, and where only doubts are.
func TestCheckHeadline(t *testing.T) {
	dir := shortDir(t)
	for _, c := range []struct {
		conf string
		host []finding
		want string
	}{
		{"NodeName=n1 CPUs=4\n", nil, "0 mistakes, 0 warnings, 0 keys without effect in DIR/slurm.conf\n  noded starts\n\n"},
		{"NodeName=n1 CPUs=4\nCryptoTyp=x\n", nil, "0 mistakes, 1 warning, 0 keys without effect in DIR/slurm.conf\n" +
			"  warning: slurm.conf:2: CryptoTyp is not a key of Slurm's, releases 22.05 to 2…\n  noded starts: look at what begins with \"warning:\", at the end\n\n"},
		{"NodeName=n1 CPUs=4\n", []finding{mistake("spool", errors.New("it is\x1b[2J full"), "make room")}, "1 mistake, 0 warnings, 0 keys without effect in DIR/slurm.conf\n" +
			"  error: spool: it is?[2J full; make room\n  steps may fail: mend what begins with \"error:\", at the end\n\n"},
	} {
		write(t, filepath.Join(dir, "slurm.conf"), c.conf)
		s, err := Load(Options{File: filepath.Join(dir, "slurm.conf"), Node: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := report(s, &out, c.host, 80); (err != nil) != (c.host != nil) {
			t.Errorf("%q: %v", c.conf, err)
		}
		if got := strings.ReplaceAll(out.String(), dir, "DIR"); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q: got %s, want %s", c.conf, got, c.want)
		}
	}
}

// shortDir makes a directory whose name is as long as /etc/slurm: where lines break depends on it.
func shortDir(t *testing.T) string {
	t.Helper()
	for n := range 100 {
		dir := fmt.Sprintf("/tmp/%03x%02x", os.Getpid()%0x1000, n)
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	t.Fatal("cannot make a directory in /tmp")
	return ""
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
