package check

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"stepd/slurm/wire"
)

// line is a row of the tables in docs/slurm.md that list what users have, line by line.
type line struct {
	section     string
	names       []string // what is in backquotes
	here, words string
}

var (
	named     = regexp.MustCompile("`([^`]+)`")
	checkHas  = regexp.MustCompile("`--check` has ([A-Z][A-Za-z]+)")
	notSilent = regexp.MustCompile("refused|`--check` has |\"not done\"|^the same$")
)

func lines(t *testing.T) (all []line) {
	t.Helper()
	text, err := os.ReadFile("../../docs/slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "\n## Line by line\n")
	if !found {
		t.Fatal(`docs/slurm.md has no section "Line by line"`)
	}
	section := ""
	for row := range strings.Lines(list) {
		if title, ok := strings.CutPrefix(row, "### "); ok {
			section = strings.TrimSpace(title)
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		if !strings.HasPrefix(row, "| ") || len(cells) != 3 || strings.TrimSpace(cells[1]) == "here" {
			continue
		}
		l := line{section: section, here: strings.TrimSpace(cells[1]), words: strings.TrimSpace(cells[2])}
		for _, m := range named.FindAllStringSubmatch(cells[0], -1) {
			l.names = append(l.names, m[1])
		}
		all = append(all, l)
	}
	return all
}

// TestDocument compares the list in docs/slurm.md with the settings that --check lists: what
// one of the two calls missing, the other does, and no line is a silent no.
func TestDocument(t *testing.T) {
	keys := map[string][]string{}
	for _, r := range slices.Concat(site, node) {
		keys["slurm.conf"] = append(keys["slurm.conf"], r.key)
	}
	keys["cgroup.conf"] = []string{} // all of it is done
	all := lines(t)
	if len(all) < 90 {
		t.Fatalf("%d lines: the test does not find the tables", len(all))
	}
	for _, l := range all {
		missing := l.here == "not" || l.here == "in part"
		if !missing && l.here != "same" && l.here != "better" {
			t.Errorf("%v: %q is none of same, better, in part, not", l.names, l.here)
		}
		if list := keys[l.section]; list != nil {
			for _, name := range l.names {
				if slices.Contains(list, name) != missing {
					t.Errorf("%s: %s is %q, and in the list of --check: %v", l.section, name, l.here, !missing)
				}
			}
		} else if missing && !notSilent.MatchString(l.words) {
			t.Errorf("%s: %v is %q, and the line does not say who says so: %q", l.section, l.names, l.here, l.words)
		}
		for _, m := range checkHas.FindAllStringSubmatch(l.words, -1) {
			if !slices.Contains(keys["slurm.conf"], m[1]) && m[1] != "AcctGather" {
				t.Errorf("%v: --check has no %s", l.names, m[1])
			}
		}
	}
	for section, list := range keys {
		for _, key := range list {
			if !slices.ContainsFunc(all, func(l line) bool { return l.section == section && slices.Contains(l.names, key) }) {
				t.Errorf("docs/slurm.md: %s: no line for %s, which --check lists", section, key)
			}
		}
	}
}

// TestDocumentReasons: each line that says "not" or "in part" has its reason below "Why not", and no
// other one has.
func TestDocumentReasons(t *testing.T) {
	text, err := os.ReadFile("../../docs/slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, why, _ := strings.Cut(string(text), "\n### Why not\n")
	reasons := map[string]bool{}
	for row := range strings.Lines(why) {
		if cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|"); len(cells) == 2 {
			for _, m := range named.FindAllStringSubmatch(cells[0], -1) {
				reasons[m[1]] = true
			}
		}
	}
	for _, l := range lines(t) {
		for _, name := range l.names {
			if missing := l.here == "not" || l.here == "in part"; missing != reasons[name] {
				t.Errorf("%s is %q, and has a reason: %t", name, l.here, reasons[name])
			}
			delete(reasons, name)
		}
	}
	for name := range reasons {
		t.Errorf("a reason for %s, which no line has", name)
	}
}

// TestDocumentRefusals compares the list's options with what Refuse refuses.
func TestDocumentRefusals(t *testing.T) {
	launch := func(change func(*wire.Stream, *wire.Launch)) *wire.Stream {
		s := &wire.Stream{Launch: &wire.Launch{Nodes: 1, Cred: new(wire.Cred), Het: wire.Het{Steps: 1}}, MPIType: "none"}
		change(s, s.Launch)
		return s
	}
	options := map[string]*wire.Stream{
		"-n":        launch(func(*wire.Stream, *wire.Launch) {}),
		"--pty":     launch(func(_ *wire.Stream, l *wire.Launch) { l.Flags = wire.FlagPTY }),
		"--context": launch(func(_ *wire.Stream, l *wire.Launch) { l.Cred.SELinux = "u:r:t" }),
		"-N 2":      launch(func(s *wire.Stream, l *wire.Launch) { s.MPIType, l.Nodes = "pmix", 2 }),
		"TLSType":   launch(func(_ *wire.Stream, l *wire.Launch) { l.TLSCert = "-----BEGIN" }),
	}
	for _, l := range lines(t) {
		for _, name := range l.names {
			s := options[name]
			if s == nil {
				continue
			}
			delete(options, name)
			if refused := Refuse(s) != nil; refused != strings.Contains(l.words, "refused") || refused != (l.here == "not" || l.here == "in part") {
				t.Errorf("%s is %q, %q, and Refuse refuses it: %v", name, l.here, l.words, refused)
			}
		}
	}
	for name := range options {
		t.Errorf("no line for %s", name)
	}
}
