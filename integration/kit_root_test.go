package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// installed is a tree that `make install` has made.
type installed struct {
	root string
	bin  string // its programs, in one folder, as a test wants them
}

func installTree(t *testing.T) installed {
	t.Helper()
	top, err := os.MkdirTemp(workRoot, "stepd-it-kit-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	in := installed{root: filepath.Join(top, "root"), bin: filepath.Join(top, "bin")}
	must(t, os.Chmod(top, 0o755))
	must(t, os.Mkdir(in.bin, 0o755))
	programs := filepath.Dir(binary(t, "noded"))
	in.make(t, "..", "install-files", "DESTDIR="+in.root, "PREFIX=/usr", "BIN="+programs)
	for _, p := range []string{"sbin/noded", "bin/stepctl", "libexec/stepd/stepd", "libexec/stepd/spankhost"} {
		must(t, os.Symlink(in.path(p), filepath.Join(in.bin, filepath.Base(p))))
	}
	return in
}

func (in installed) path(elem ...string) string {
	return filepath.Join(append([]string{in.root, "usr"}, elem...)...)
}

func (in installed) make(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("make", append([]string{"-s", "-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+in.path("share/pkgconfig"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %q: %v\n%s", args, err, out)
	}
}

// TestRootInstalledKit: what a plugin's author needs is in the installed tree,
// and nothing of it leads back to where it was built.
func TestRootInstalledKit(t *testing.T) {
	in := installTree(t)
	t.Run("layout", func(t *testing.T) { in.layout(t) })
	t.Run("links", func(t *testing.T) { in.links(t) })
	t.Run("headers", func(t *testing.T) { in.headersAlone(t) })
	t.Run("plugins", func(t *testing.T) { in.pluginsRun(t) })
}

// layout: what a site looks for is where it looks, with modes that let all users read
// it and root alone write it; and another prefix is the unit's as well.
func (in installed) layout(t *testing.T) {
	for name, mode := range map[string]os.FileMode{
		"sbin/noded": 0o755, "bin/stepctl": 0o755, "libexec/stepd/stepd": 0o755, "libexec/stepd/spankhost": 0o755, "libexec/stepd/stepkeeper": 0o755,
		"libexec/stepd/slurmstepd": 0o755, "share/man/man7/stepd-slurm.7": 0o644,
		"lib/systemd/system/noded.service": 0o644, "share/man/man8/noded.8": 0o644, "share/man/man1/stepctl.1": 0o644, "share/man/man7/stepd-spank.7": 0o644,
		"share/bash-completion/completions/stepctl": 0o644, "share/zsh/site-functions/_stepctl": 0o644, "share/fish/vendor_completions.d/stepctl.fish": 0o644,
		"include/stepd/slurm/spank.h": 0o644, "share/pkgconfig/stepd-spank.pc": 0o644,
		"share/doc/stepd/README.md": 0o644, "share/doc/stepd/install.md": 0o644, "share/doc/stepd/examples/slurm.conf": 0o644,
	} {
		if info, err := os.Stat(in.path(name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, want a file of mode %v", name, errors.Join(err, modeOf(info)), mode)
		}
	}
	if out, err := exec.Command(in.path("sbin/noded"), "--check").CombinedOutput(); err != nil {
		t.Errorf("the installed noded --check: %v: %s", err, out)
	}
	root := t.TempDir()
	in.make(t, "..", "install-files", "DESTDIR="+root, "PREFIX=/opt/stepd", "BIN="+filepath.Dir(binary(t, "noded")))
	unit, err := os.ReadFile(filepath.Join(root, "opt/stepd/lib/systemd/system/noded.service"))
	if err != nil || !strings.Contains(string(unit), "\nExecStart=/opt/stepd/sbin/noded ") || strings.Contains(string(unit), "/usr/") {
		t.Errorf("the unit below another prefix (%v): %s", err, unit)
	}
	if entries, _ := os.ReadDir(root); len(entries) != 1 {
		t.Errorf("an installation below /opt/stepd makes %v", entries)
	}
}

// links: each link of an installed document leads to a file that is installed, and not to the
// document itself.
func (in installed) links(t *testing.T) {
	documents, err := filepath.Glob(in.path("share/doc/stepd/*.md"))
	if err != nil || len(documents) < 20 || !slices.Contains(documents, in.path("share/doc/stepd/index.md")) {
		t.Fatalf("%q, %v", documents, err)
	}
	for _, doc := range documents {
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(readFile(t, doc), -1) {
			to := filepath.Join(filepath.Dir(doc), m[1])
			if _, err := os.Stat(to); err != nil || to == doc {
				t.Errorf("%s: a link to %q: %v", filepath.Base(doc), m[1], err)
			}
		}
	}
}

// modeOf is a mode as an error's text.
func modeOf(info os.FileInfo) error {
	if info == nil {
		return nil
	}
	return errors.New(info.Mode().String())
}

// headersAlone: each header compiles by itself, in the languages that plugins
// are written in, without a word from a strict compiler.
func (in installed) headersAlone(t *testing.T) {
	headers, err := filepath.Glob(in.path("include/stepd/slurm/*.h"))
	if err != nil || len(headers) < 4 {
		t.Fatalf("installed headers: %q, %v", headers, err)
	}
	for _, h := range headers {
		for _, cc := range [][]string{{"cc", "-x", "c", "-std=c99"}, {"cc", "-x", "c", "-std=c11"}, {"c++", "-x", "c++", "-std=c++17"}} {
			src := filepath.Join(t.TempDir(), "alone")
			text := "#include <slurm/" + filepath.Base(h) + ">\nextern int alone; /* an empty file is not C */\n"
			must(t, os.WriteFile(src, []byte(text), 0o644))
			args := append(cc[1:], "-Wall", "-Wextra", "-Wshadow", "-pedantic", "-Werror", "-fsyntax-only", "-I", in.path("include/stepd"), src)
			if out, err := exec.Command(cc[0], args...).CombinedOutput(); err != nil {
				t.Errorf("%s, %s: %v\n%s", filepath.Base(h), cc[3], err, out)
			}
		}
	}
}

// pluginsRun: the installed examples build with the installed Makefile, which
// finds the headers by pkg-config, and run under the installed programs.
func (in installed) pluginsRun(t *testing.T) {
	dir := in.path("share/doc/stepd-dev/examples")
	in.make(t, dir, "install", "PKG_CONFIG=pkg-config --define-variable=prefix="+in.path(), "CFLAGS=-O2 -Wall -Wextra -Werror", "SLURM_VERSION=23.11.4")
	t.Setenv("STEPD_BIN", in.bin)
	n := startNode(t, site{
		Slurm:     "PluginDir=" + in.path("lib/slurm") + "\n",
		Plugstack: "required nice.so nice=5\n",
	})
	if r := n.ctl(t, "plugins", "--check"); r.code != 0 {
		t.Errorf("plugins --check: %v", r)
	}
	if r := n.ctl(t, "plugins"); !strings.Contains(r.out, in.path("lib/slurm/nice.so")) || !strings.Contains(r.out, "23.11") {
		t.Errorf("plugins: %v", r)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "nice"}, "5\n"},
		{[]string{"run", "--nice-task=7", "nice"}, "7\n"},
	} {
		if r := n.ctl(t, c.args...); r.code != 0 || r.out != c.want || r.err != "" {
			t.Errorf("%q: %v, want %q", c.args, r, c.want)
		}
	}
	in.scratchGoesRound(t, n)
	if r := n.ctl(t, "run", "--nice-task=-7", "nice"); r.code != 1 || !strings.Contains(r.err, "want a number from 0 to 19") {
		t.Errorf("a value that is no good: %v", r)
	}
}

// scratchGoesRound: the example that uses all contexts: an option that was
// checked on the local side makes a directory in prolog, which the tasks get by a variable,
// reaches the site's own script, and the directory is gone after the epilog.
func (in installed) scratchGoesRound(t *testing.T, n *node) {
	base := n.path("scratch")
	must(t, os.Mkdir(base, 0o755))
	n.stack(t, "required scratch.so base="+base+" max=50")
	for _, verb := range [][]string{{"run", "--scratch=51", "true"}, {"alloc", "--scratch=51", "true"}, {"batch", "--scratch=51", "--wrap=true"}} {
		if r := n.ctl(t, verb...); r.code != 1 || !strings.Contains(r.err, "want a number from 1 to 50") {
			t.Errorf("%s beyond the maximum: %v", verb[0], r)
		}
	}
	const show = "stat -c %a:%u $SCRATCH_DIR; touch $SCRATCH_DIR/mine; basename $SCRATCH_DIR"
	user := testUser(t)
	want := fmt.Sprintf("700:%d\n", user.uid)
	r := n.ctl(t, "run", "--scratch=5", "sh", "-c", show)
	if r.code != 0 || !strings.HasPrefix(r.out, want) || r.err != "" {
		t.Errorf("run: %v, want %q", r, want)
	}
	if r := n.ctl(t, "run", "sh", "-c", "echo ${SCRATCH_DIR-none}"); r.code != 0 || r.out != "none\n" {
		t.Errorf("without the option: %v", r)
	}
	// An allocation has one directory for all of its steps.
	r = n.ctl(t, "alloc", "-Q", "--scratch=7", "sh", "-c",
		n.bin+" run sh -c '"+show+"'; "+n.bin+" run ls $(echo "+base+"/*); echo GB=$SLURM_SPANK_SCRATCH_GB")
	if r.code != 0 || !strings.HasPrefix(r.out, want) || !strings.HasSuffix(r.out, "mine\nGB=7\n") {
		t.Errorf("alloc: %v", r)
	}
	n.idle(t)
	left, err := os.ReadDir(base)
	if err != nil || len(left) > 0 {
		t.Errorf("left after the epilogs: %v, %v", left, err)
	}
	n.stack(t, "required nice.so nice=5")
}
