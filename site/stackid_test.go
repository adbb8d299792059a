package site

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestStackID: a name for each stack, "" for none; it changes with every file
// that counts, and with nothing else.
func TestStackID(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := filepath.Join(dir, "plugstack.conf")
	s := &stackID{file: file}
	id := func() string {
		t.Helper()
		got, err := s.ID()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := id(); got != "" {
		t.Errorf("no file: %q", got)
	}
	put("plugstack.conf", "# nothing\ninclude *.d\n")
	if got := id(); got != "" {
		t.Errorf("no plugin: %q", got)
	}
	so := put("a.so", "1")
	seen := map[string]string{}
	changed := func(what string) {
		t.Helper()
		got := id()
		if got == "" || seen[got] != "" {
			t.Errorf("after %s: %q, as after %s", what, got, seen[got])
		}
		if again := id(); again != got {
			t.Errorf("%s: asked twice: %q and %q", what, got, again)
		}
		seen[got] = what
	}
	put("x.d", "optional "+so+"\n")
	changed("a plugin was included")
	put("x.d", "required "+so+"\n")
	changed("it is required")
	put("x.d", "required "+so+" arg\n")
	changed("it has an argument")
	put("a.so", "1")
	changed("its file is another one")
	put("y.d", "optional /no/such.so\n")
	changed("one that is missing")
	if err := os.Remove(filepath.Join(dir, "y.d")); err != nil {
		t.Fatal(err)
	}
	changed("it is gone again")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := id(); got != "" {
		t.Errorf("without its file: %q", got)
	}
}

// BenchmarkStackID is what a job pays for a stack of 20 plugins that have
// neither job_prolog nor job_epilog.
func BenchmarkStackID(b *testing.B) {
	dir := b.TempDir()
	var text string
	for i := range 20 {
		so := filepath.Join(dir, fmt.Sprintf("%d.so", i))
		text += "required " + so + "\n"
		if err := os.WriteFile(so, nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	file := filepath.Join(dir, "plugstack.conf")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	s := &stackID{file: file}
	for b.Loop() {
		if id, err := s.ID(); err != nil || id == "" {
			b.Fatal(id, err)
		}
	}
}
