package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadMultiProg(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"missing": {"", "no such file"},
		"NUL":     {"0 a\x00", "NUL byte"},
		"large":   {strings.Repeat("#\n", multiProgMax/2+1), "longer than"},
	} {
		path := filepath.Join(dir, name)
		if c.text != "" {
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := readMultiProg(path, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExportItems(t *testing.T) {
	for in, want := range map[string]string{
		"A,B=x": "A;B=x", `A="a,b",B`: `A="a,b";B`, "A='a,b',B": "A='a,b';B", `A="a,b`: `A="a,b`, "": "", "A,": "A;",
	} {
		if got := strings.Join(exportItems(in), ";"); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestRankList(t *testing.T) {
	for want, ranks := range map[string][]int{
		"task 0": {0}, "tasks 0-1": {0, 1}, "tasks 0,2": {0, 2}, "tasks 0-2,4,6-7": {0, 1, 2, 4, 6, 7}, "task ": nil,
	} {
		if got := Tasks(ranks); got != want {
			t.Errorf("Tasks(%v) = %q, want %q", ranks, got, want)
		}
	}
}
