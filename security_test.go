package stepd

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// declaredTests are the names of the project's tests and fuzz tests.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	have := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "build" || d.Name() == "bin"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(b, -1) {
			have[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return have
}

// TestSecurityDocument: each row of docs/security.md's tables names a test, and each
// test that it names is one of the project's.
func TestSecurityDocument(t *testing.T) {
	have := declaredTests(t)
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	rows := 0
	for line := range strings.Lines(readText(t, "docs/security.md")) {
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(strings.TrimSpace(line), "| tests |") {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("no test is named in %s", line)
		}
		for _, m := range tests {
			if !have[m[1]] {
				t.Errorf("there is no %s: %s", m[1], line)
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d rows", rows)
	}
}

// TestRecoveryDocument: each test that docs/recovery.md names is one of the project's,
// and each row of its table names one or says with a dash that there is none.
func TestRecoveryDocument(t *testing.T) {
	have := declaredTests(t)
	named := regexp.MustCompile(`\b(?:Test|Fuzz)\w+`)
	rows := 0
	for line := range strings.Lines(readText(t, "docs/recovery.md")) {
		row := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| what |")
		tests := named.FindAllString(line, -1)
		if row {
			rows++
			if len(tests) == 0 && !strings.HasSuffix(strings.TrimSpace(line), "| – |") {
				t.Errorf("no test is named in %s", line)
			}
		}
		for _, name := range tests {
			if !have[name] {
				t.Errorf("there is no %s: %s", name, line)
			}
		}
	}
	if rows < 15 {
		t.Errorf("%d rows", rows)
	}
}
