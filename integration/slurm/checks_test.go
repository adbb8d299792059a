package slurm

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
)

// A check is a script of testdata/checks.txt, whose head explains the flags.
type check struct {
	id     string
	script string
	site   string // a key of cluster.Sites
	limit  time.Duration
	drop   string // an expression for lines that are not compared

	sorted, alone, root, later, slow, racy, guest bool
}

// user is the account that the check runs as.
func (c check) user() string { return "u" + c.id }

// parseChecks reads checks: "== ID FLAG..." and the lines of a script, until the next.
func parseChecks(text string) (checks []check, err error) {
	for i, line := range strings.SplitAfter(text, "\n") {
		head, isHead := strings.CutPrefix(line, "== ")
		switch {
		case isHead:
			c, err := parseHead(strings.Fields(head))
			if err != nil {
				return nil, fmt.Errorf("checks.txt:%d: %w", i+1, err)
			}
			if slices.ContainsFunc(checks, func(other check) bool { return other.id == c.id }) {
				return nil, fmt.Errorf("checks.txt:%d: a second check %q", i+1, c.id)
			}
			checks = append(checks, c)
		case line == "\n", strings.HasPrefix(line, "# "): // not #! of a script in a script
		case len(checks) == 0 && line != "":
			return nil, fmt.Errorf("checks.txt:%d: a command before the first check", i+1)
		case line != "":
			checks[len(checks)-1].script += line
		}
	}
	for _, c := range checks {
		if c.script == "" {
			return nil, fmt.Errorf("checks.txt: %q has no command", c.id)
		}
	}
	return checks, nil
}

func parseHead(words []string) (check, error) {
	if len(words) == 0 {
		return check{}, fmt.Errorf("a check without a name")
	}
	c := check{id: words[0], limit: 90 * time.Second}
	flags := map[string]*bool{"sort": &c.sorted, "alone": &c.alone, "root": &c.root, "later": &c.later, "slow": &c.slow, "racy": &c.racy, "guest": &c.guest}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "site":
			if _, ok := cluster.Sites[value]; !ok {
				return c, fmt.Errorf("%s: no such site %q", c.id, value)
			}
			c.site = value
		case "drop":
			if _, err := regexp.Compile(value); err != nil {
				return c, fmt.Errorf("%s: drop: %w", c.id, err)
			}
			if c.drop != "" {
				return c, fmt.Errorf("%s: a second drop", c.id)
			}
			c.drop = value
		case "limit":
			s, err := strconv.Atoi(value)
			if err != nil {
				return c, fmt.Errorf("%s: limit: %w", c.id, err)
			}
			c.limit = time.Duration(s) * time.Second
		default:
			if flags[word] == nil {
				return c, fmt.Errorf("%s: no such flag %q", c.id, word)
			}
			*flags[word] = true
		}
	}
	return c, nil
}

func readChecks(t testing.TB) []check {
	t.Helper()
	text, err := os.ReadFile("testdata/checks.txt")
	if err != nil {
		t.Fatal(err)
	}
	checks, err := parseChecks(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return checks
}

// TestNumberOfChecks: docs/slurm.md has the number of commands that each test run runs.
func TestNumberOfChecks(t *testing.T) {
	text, err := os.ReadFile("../../docs/slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	runs := len(slices.DeleteFunc(readChecks(t), func(c check) bool { return c.slow }))
	if want := fmt.Sprintf("| runs %d commands of users ", runs); !strings.Contains(string(text), want) {
		t.Errorf("docs/slurm.md lacks %q", want)
	}
}

func TestParseChecks(t *testing.T) {
	checks, err := parseChecks("# head\n== 01 sort later limit=7\nsrun a\n\n# between\n== b site=acct\nsrun b\n#!/bin/sh\n")
	want := []check{
		{id: "01", script: "srun a\n", sorted: true, later: true, limit: 7 * time.Second},
		{id: "b", script: "srun b\n#!/bin/sh\n", site: "acct", limit: 90 * time.Second},
	}
	if err != nil || !slices.Equal(checks, want) {
		t.Errorf("got %+v, %v", checks, err)
	}
	for _, bad := range []string{"srun\n", "== \nsrun\n", "== a\n", "== a what\nx\n", "== a site=no\nx\n", "== a limit=x\nx\n", "== a drop=(\nx\n", "== a drop=x drop=y\nx\n", "== a\nx\n== a\nx\n"} {
		if got, err := parseChecks(bad); err == nil {
			t.Errorf("%q: got %+v", bad, got)
		}
	}
}

// topAlternatives parts an expression at each | that is in no brackets.
func topAlternatives(expression string) (all []string) {
	depth, from := 0, 0
	for i, c := range expression {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			all = append(all, expression[from:i])
			from = i + 1
		}
	}
	return append(all, expression[from:])
}

// TestDrops: what is left out of the comparison has its reason in drops.tsv, and no reason is left over.
func TestDrops(t *testing.T) {
	text, err := os.ReadFile("testdata/drops.tsv")
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{} // whether a check uses it
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if _, twice := reasons[f[0]]; twice || len(f) != 2 || f[1] == "" {
			t.Errorf("drops.tsv: %q: want an alternative that no other row has, a tab and why", line)
		}
		reasons[f[0]] = false
	}
	for _, c := range readChecks(t) {
		if c.drop == "" {
			continue
		}
		for _, a := range topAlternatives(c.drop) {
			if _, ok := reasons[a]; !ok {
				t.Errorf("%s drops %q, and drops.tsv does not say why", c.id, a)
			}
			reasons[a] = true
		}
	}
	for a, used := range reasons {
		if !used {
			t.Errorf("no check drops %q any more", a)
		}
	}
}

// TestChecks holds what the table has of the list that was measured, 82 commands, and that there
// are enough of our own.
func TestChecks(t *testing.T) {
	checks := readChecks(t)
	has := map[string]bool{}
	later := 0
	for _, c := range checks {
		has[c.id] = true
		if c.later {
			later++
		}
	}
	list := []string{"b1", "b2", "b3", "b4", "b6", "b7", "b8"}
	for i := 1; i <= 75; i++ {
		list = append(list, fmt.Sprintf("%02d", i))
	}
	for _, id := range list {
		if !has[id] {
			t.Errorf("check %s is not in the table", id)
		}
	}
	if own := len(checks) - len(list); later < 15 || own < 25+40 {
		t.Errorf("%d checks for later releases, %d of our own", later, own)
	}
}

// TestChecksTryEachOption: each option, variable and command that docs/slurm.md lists is tried by a
// check, or by the test that is named here.
func TestChecksTryEachOption(t *testing.T) {
	elsewhere := map[string]string{
		"ssh":    "TestRootSSH",
		"getent": "TestNames", // of slurm/socket: the library is in no package of Debian, its requests are played
	}
	text, err := os.ReadFile("../../docs/slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n### Options and commands\n")
	table, _, found := strings.Cut(table, "\n### ")
	if !found {
		t.Fatal("docs/slurm.md has no table of options and commands")
	}
	var scripts strings.Builder
	for _, c := range readChecks(t) {
		scripts.WriteString(c.script)
	}
	tried := 0
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]*) \| (?:same|better|in part|not) \|`).FindAllStringSubmatch(table, -1) {
		for _, option := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if elsewhere[option[1]] != "" {
				continue
			}
			if !regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(option[1]), " ", " ?") + `(\d|\b)`).MatchString(scripts.String()) {
				t.Errorf("docs/slurm.md lists %q, and no check has it", option[1])
			}
			tried++
		}
	}
	if tried < 80 {
		t.Errorf("only %d options were found", tried)
	}
}
