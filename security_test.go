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

// TestSecurityDocument: each cause and rule of docs/security.md names a test, and each
// test that it names is one of the project's.
func TestSecurityDocument(t *testing.T) {
	namesTests(t, "docs/security.md", 30)
}

// TestRecoveryDocument: each event of docs/recovery.md names a test, or says that it has
// none, and each test that it names is one of the project's.
func TestRecoveryDocument(t *testing.T) {
	namesTests(t, "docs/recovery.md", 15)
}

// namesTests holds that a document has so many items with a name in bold, that each ends
// with its tests ("Tests: none." where it has none), and that they exist.
func namesTests(t *testing.T, path string, least int) {
	have := declaredTests(t)
	named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
	doc := readText(t, path)
	items := boldItem.FindAllString(doc, -1)
	if len(items) < least {
		t.Errorf("%d items", len(items))
	}
	for _, item := range items {
		_, tests, _ := strings.Cut(strings.Join(strings.Fields(item), " "), " Tests: ")
		if tests != "none." && !named.MatchString(tests) {
			t.Errorf("no test is named in %s", item)
		}
	}
	for _, name := range named.FindAllString(doc, -1) {
		if !have[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

// boldItem is an item of a list that begins with a name in bold, over all of its lines.
var boldItem = regexp.MustCompile(`(?m)^- \*\*.*(?:\n  .*)*`)
