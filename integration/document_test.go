package integration

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestSpankDocumentItems: the table of items of docs/spank.md has a dot where a recording plugin
// was answered (testdata/traces, with which TestRootConformance compares our answers), and none
// elsewhere.
func TestSpankDocumentItems(t *testing.T) {
	answered := map[string][]string{} // by item: the hooks with an answer
	var hooks []string
	for line := range strings.Lines(readFile(t, "testdata/traces/table_items.tsv")) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if hooks == nil {
			hooks = f
			continue
		}
		item := strings.TrimPrefix(f[0], "items.")
		for i, v := range f[1:] {
			if v == "0" || strings.HasPrefix(v, "0=") {
				answered[item] = append(answered[item], hooks[i+1])
			}
		}
	}
	doc, err := os.ReadFile("../docs/spank.md")
	must(t, err)
	_, table, _ := strings.Cut(string(doc), "\n| item | | remote, all hooks |")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if strings.TrimSpace(line) == "" {
			break
		}
		if len(cells) < 9 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "S_") {
			continue
		}
		for item := range strings.SplitSeq(strings.TrimSpace(cells[1]), ", ") {
			got := answered[item]
			if strings.Contains(item, "_TO_") {
				continue // the trace has them by argument
			}
			rows++
			for _, h := range hooks[1:] {
				want := false
				for i, of := range []string{"remote:", "remote:task_", "local:local_user_init", "job_script:", ""} {
					cell := strings.TrimSpace(cells[3+i])
					if i == 1 && strings.HasPrefix(cell, "task_exit") {
						of, cell = "remote:task_exit", "·"
					}
					want = want || strings.HasPrefix(cell, "·") && strings.HasPrefix(h, of)
				}
				if slices.Contains(got, h) != want {
					t.Errorf("%s in %s: the document has an answer: %t, the recording plugin: %t", item, h, want, !want)
				}
			}
		}
	}
	if rows < 28 {
		t.Errorf("%d items were compared", rows)
	}
}
