package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/internal/testkit"
)

// TestThemes: no option of a verb is among the others, and no verb is without a word
// on its exit codes.
func TestThemes(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		p := pageOf(c)
		for _, g := range p.Groups {
			if g.Title == "Other options" {
				t.Errorf("%s: %v are in no theme: themes() has them", c.CommandPath(), g.Options)
			}
		}
		if c.Runnable() && c.Name() != "help" && exitCodes(c) == nil {
			t.Errorf("%s: its exit codes are not told", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&dialer{}))
}

// TestManPages: there is one for every verb and file, and neither groff nor mandoc finds
// fault with any.
func TestManPages(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed")
	}
	dir := t.TempDir()
	root := newRoot(&dialer{})
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "man?", "*"))
	if err != nil || len(files) < 25 {
		t.Fatalf("%d pages, %v: %q", len(files), err, files)
	}
	for _, want := range []string{"man1/stepctl.1", "man1/stepctl-run.1", "man1/stepctl-node-drain.1", "man5/stepd.conf.5", "man5/stepd-slurm.conf.5", "man5/stepd-json.5"} {
		if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
			t.Error(err)
		}
	}
	cmd := exec.Command(groff, append([]string{"-man", "-ww", "-Tutf8", "-P-cbou"}, files...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil || said.Len() > 0 {
		t.Errorf("groff: %v\n%s", err, &said)
	}
	if !strings.Contains(out.String(), "HookTimeout") || !strings.Contains(out.String(), "ntasks") {
		t.Errorf("neither an option nor a key is in %d bytes of pages", out.Len())
	}
	testkit.LintManual(t, append(files, "../../docs/man/stepd-spank.7")...)
}

// TestSeeAlso: a page that is named is there.
func TestSeeAlso(t *testing.T) {
	pages, err := manPages(newRoot(&dialer{}))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{"noded(8)": true, "stepd-spank(7)": true}
	for _, p := range pages {
		have[p.File()+"("+string(rune('0'+p.Section))+")"] = true
	}
	for _, p := range pages {
		for _, name := range p.See {
			if !have[name] {
				t.Errorf("%s: see also %s, which is not there", p.File(), name)
			}
		}
	}
}
