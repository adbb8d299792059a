package stepd

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLogKeys: the table of docs/seeing.md has each key that the daemons put beside a
// message, and no other.
func TestLogKeys(t *testing.T) {
	told := map[string]bool{}
	for _, key := range groups(regexp.MustCompile("(?m)^\\| `(\\w+)` \\|"), sectionOf(t, readText(t, "docs/seeing.md"), "The log")) {
		told[key] = true
	}
	have := map[string]bool{"time": true, "level": true, "msg": true} // logrus's own
	field := regexp.MustCompile(`\.WithField\("(\w+)"`)
	for _, dir := range []string{"node", "node/child", "node/place", "site", "stepd", "cmd/noded", "metrics"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range field.FindAllStringSubmatch(string(b), -1) {
				have[m[1]] = true
			}
		}
	}
	for key := range have {
		if !told[key] {
			t.Errorf("docs/seeing.md does not tell of key %q", key)
		}
	}
	for key := range told {
		if !have[key] {
			t.Errorf("docs/seeing.md tells of key %q, which nothing uses", key)
		}
	}
}
