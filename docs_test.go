package stepd

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What docs/spank.md lists is what the code has: a table that has lost a row,
// or gained one, fails here.
func TestSpankDocument(t *testing.T) {
	doc := readText(t, "docs/spank.md")
	header := readText(t, "spank/host/include/slurm/spank.h")
	numbers := readText(t, "spank/host/include/slurm/slurm_errno.h")
	for _, c := range []struct {
		what, section string
		said          *regexp.Regexp // in the document's section, its group
		code          string
		have          *regexp.Regexp // in the code, its group
	}{
		{"hooks", "What holds in each hook", hookWord, header, regexp.MustCompile(`extern spank_f slurm_spank_(\w+);`)},
		{"items", "Items", regexp.MustCompile(`\b(S_(?:JOB|TASK|SLURM|STEP)_\w+)`), header, regexp.MustCompile(`(?m)^\t(S_(?:JOB|TASK|SLURM|STEP)_\w+) = `)},
		{"contexts", "Contexts", regexp.MustCompile("`(S_CTX_\\w+)` \\d"), header, regexp.MustCompile(`(?m)^\t(S_CTX_(?:[A-DF-Z]\w+)) = `)},
		{"errors", "Items", regexp.MustCompile(`(?m)^\| (ESPANK_\w+) \| \d+ \|`), numbers, regexp.MustCompile(`(ESPANK_\w+) = 30\d\d`)},
		{"functions", "What a plugin finds to call", regexp.MustCompile("`((?:spank|slurm)_\\w+|debug)`"), readText(t, "spank/host/exports.list"), regexp.MustCompile(`(?m)^\t(\w+);`)},
		{"releases", "What a plugin finds to call", regexp.MustCompile(`\b(2[1-6]\.\d\d)\b`), readText(t, "spank/load.go"), regexp.MustCompile(`"(2[1-6]\.\d\d)"`)},
		{"keys", "Configuration", regexp.MustCompile("(?m)^\\| `(\\w+)` \\|"), readText(t, "slurmconf/beside.go"), regexp.MustCompile(`(?m)^\t((?:Hook|Exit|Spank|Quarantine|RequireSafe)\w+) `)},
	} {
		t.Run(c.what, func(t *testing.T) {
			said, have := groups(c.said, sectionOf(t, doc, c.section)), groups(c.have, c.code)
			if len(have) == 0 {
				t.Fatalf("%s finds nothing in the code", c.have)
			}
			for _, name := range have {
				if !slices.Contains(said, name) {
					t.Errorf("%q has no %q", c.section, name)
				}
			}
			for _, name := range said {
				if !slices.Contains(have, name) {
					t.Errorf("%q tells of %q, and the code has none", c.section, name)
				}
			}
		})
	}
}

// TestSpankDocumentNumbers: the numbers beside the names are the headers'.
func TestSpankDocumentNumbers(t *testing.T) {
	doc := readText(t, "docs/spank.md")
	code := readText(t, "spank/host/include/slurm/spank.h") + readText(t, "spank/host/include/slurm/slurm_errno.h")
	rows := regexp.MustCompile(`(?m)^\| ((?:S_|ESPANK_)[^|]+) \| ([0-9, to]+) \|`).FindAllStringSubmatch(doc, -1)
	if len(rows) < 20 {
		t.Fatalf("%d rows have a name and a number", len(rows))
	}
	for _, row := range rows {
		names, told := strings.Split(row[1], ", "), numbersOf(row[2])
		if len(names) != len(told) {
			t.Errorf("%q has %d names and the numbers %v", row[1], len(names), told)
			continue
		}
		for i, name := range names {
			m := regexp.MustCompile(`\b` + name + ` = (\d+)`).FindStringSubmatch(code)
			if m == nil || m[1] != told[i] {
				t.Errorf("%s is not %s: the headers say %q", name, told[i], m)
			}
		}
	}
}

// numbersOf reads "3, 4, 7" and "20 to 23".
func numbersOf(text string) (all []string) {
	from, to, span := strings.Cut(text, " to ")
	if !span {
		return strings.Split(text, ", ")
	}
	first, _ := strconv.Atoi(from) // what is no number is no number of the headers
	last, _ := strconv.Atoi(to)
	for i := first; i <= last; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// hookWord is a hook in the first column of a table.
var hookWord = regexp.MustCompile(`\b((?:init(?:_post_opt)?|local_user_init|user_init|task_\w+|job_(?:pro|epi)log|slurmd_exit|exit))\b`)

func readText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sectionOf is the text of a section, its title not among it.
func sectionOf(t *testing.T, doc, title string) string {
	t.Helper()
	_, rest, ok := strings.Cut(doc, "\n## "+title+"\n")
	if !ok {
		t.Fatalf("there is no section %q", title)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// groups are the first groups of all matches, each once.
func groups(re *regexp.Regexp, text string) (found []string) {
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(found, m[1]) {
			found = append(found, m[1])
		}
	}
	return found
}

// TestConformance: each row of docs/conformance.md names tests and places that exist, or a reason: a test
// as `TestName` or `TestName/subtest`, or `file_test.c:test_name`, behind them the difference that
// docs/spank.md lists.
func TestConformance(t *testing.T) {
	doc, differs := readText(t, "docs/conformance.md"), sectionOf(t, readText(t, "docs/spank.md"), "What differs from Slurm, and why")
	tests := make(map[string]bool)
	goTest, cTest := regexp.MustCompile(`(?m)^func (Test\w+)\(t `), regexp.MustCompile(`\bRUN\((test_\w+)\);`)
	for _, path := range projectFiles(t) {
		switch {
		case strings.HasSuffix(path, "_test.go"):
			for _, name := range groups(goTest, readText(t, path)) {
				tests[name] = true
			}
		case strings.HasSuffix(path, "_test.c"):
			for _, name := range groups(cTest, readText(t, path)) {
				tests[filepath.Base(path)+":"+name] = true
			}
		}
	}
	row, rows := regexp.MustCompile(`^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`), 0
	for i, line := range strings.Split(doc, "\n") {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || line == "| requirement | where | test |" {
			continue
		}
		rows++
		cells := row.FindStringSubmatch(line)
		if cells == nil {
			t.Errorf("docs/conformance.md:%d: want a requirement, where it is met, and its tests", i+1)
			continue
		}
		if reason, none := strings.CutPrefix(cells[3], "none: "); none {
			if cells[2] != "-" || len(strings.Fields(reason)) < 2 {
				t.Errorf("docs/conformance.md:%d: a row without a test has - for its place, and a reason", i+1)
			}
			continue
		}
		for path := range strings.SplitSeq(cells[2], ", ") {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("docs/conformance.md:%d: %v", i+1, err)
			}
		}
		names, title, differ := strings.Cut(cells[3], "; differs: ")
		if differ && !strings.Contains(strings.Join(strings.Fields(differs), " "), "- **"+title) {
			t.Errorf("docs/conformance.md:%d: docs/spank.md has no difference that begins with %q", i+1, title)
		}
		for name := range strings.SplitSeq(names, ", ") {
			if name, _, _ = strings.Cut(name, "/"); !tests[name] {
				t.Errorf("docs/conformance.md:%d: there is no test %q", i+1, name)
			}
		}
	}
	if rows < 250 {
		t.Errorf("docs/conformance.md has %d rows: the test does not find them", rows)
	}
}

// TestIndex: docs/README.md, the documents in the order for a reader, names each of them, and so does
// README.md.
func TestIndex(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	if err != nil || len(documents) < 20 {
		t.Fatal(documents, err)
	}
	index, readme := readText(t, "docs/README.md"), readText(t, "README.md")
	for _, doc := range documents {
		name := filepath.Base(doc)
		if name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md does not name %s", name)
		}
		if !strings.Contains(readme, "](docs/"+name+")") {
			t.Errorf("README.md does not name %s", name)
		}
	}
}
