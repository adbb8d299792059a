package main

import (
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed tests.tsv
var testsFile string

// row is a line of tests.tsv: tests of one package that the guest runs.
type row struct {
	dir   string // of the package, from the top of the tree
	tests string // a regular expression over their names
}

// parseList reads tests.tsv: package, tests, why; parted by tabs. Every row
// must name a test that there is.
func parseList(text string, names func(dir string) ([]string, error)) ([]row, error) {
	var rows []row
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 3 || strings.Contains(f[1], "/") || f[2] == "" {
			return nil, fmt.Errorf("tests.tsv:%d: want package, tests (without a subtest's name), why, parted by tabs: %q", i+1, line)
		}
		r := row{dir: path.Clean(f[0]), tests: f[1]}
		re, err := regexp.Compile(r.tests)
		if err != nil {
			return nil, fmt.Errorf("tests.tsv:%d: %w", i+1, err)
		}
		there, err := names(r.dir)
		if err != nil {
			return nil, fmt.Errorf("tests.tsv:%d: %w", i+1, err)
		}
		if !slices.ContainsFunc(there, re.MatchString) {
			return nil, fmt.Errorf("tests.tsv:%d: no test in %s matches %q", i+1, r.dir, r.tests)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// merge makes one row of all rows of a package, in the order of their first.
func merge(rows []row) []row {
	var merged []row
	for _, r := range rows {
		i := slices.IndexFunc(merged, func(m row) bool { return m.dir == r.dir })
		if i < 0 {
			merged = append(merged, r)
			continue
		}
		merged[i].tests += "|" + r.tests
	}
	return merged
}

// choose finds the packages whose tests match a pattern given by hand; its
// part before the first slash names the tests. Without packages given, all
// of the tree are looked through.
func choose(top, pattern string, packages []string) ([]row, error) {
	head, _, _ := strings.Cut(pattern, "/")
	re, err := regexp.Compile(head)
	if err != nil {
		return nil, fmt.Errorf("cannot read the pattern %q: %w", pattern, err)
	}
	if len(packages) == 0 {
		if packages, err = testFolders(top); err != nil {
			return nil, err
		}
	}
	var rows []row
	for _, dir := range packages {
		dir = path.Clean(dir)
		names, err := testNames(filepath.Join(top, dir))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(names, re.MatchString) {
			rows = append(rows, row{dir: dir, tests: pattern})
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no test matches %q", pattern)
	}
	return rows, nil
}

// testFolders lists the folders that have tests.
func testFolders(top string) ([]string, error) {
	var dirs []string
	err := walkSource(top, func(rel string, d fs.DirEntry) error {
		dir := path.Dir(rel)
		if strings.HasSuffix(rel, "_test.go") && !strings.Contains(dir, "testdata") && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		return nil
	})
	return dirs, err
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testNames lists the tests in a folder's files, without compiling them.
func testNames(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, m := range testFunc.FindAllSubmatch(data, -1) {
			if name := string(m[1]); name != "TestMain" {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// Tests whose names begin so run after all others: just before the guest is
// booted again, and then. They find Debian packages in /share/deb.
const (
	beforeReboot = "TestBeforeReboot"
	afterReboot  = "TestAfterReboot"
)

// chosen lists the tests of a row, without a subtest's name.
func (r row) chosen(top string) ([]string, error) {
	head, _, _ := strings.Cut(r.tests, "/")
	re, err := regexp.Compile(head)
	if err != nil {
		return nil, fmt.Errorf("cannot read the pattern %q: %w", r.tests, err)
	}
	names, err := testNames(filepath.Join(top, r.dir))
	return slices.DeleteFunc(names, func(name string) bool { return !re.MatchString(name) }), err
}

// jobs are the lines of run.sh's three lists.
type jobs struct{ now, before, after strings.Builder }

// add gives a row's tests to the lists that they belong to.
func (j *jobs) add(r row, binary string, names []string, timeout time.Duration) {
	var before, after []string
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, beforeReboot):
			before = append(before, name)
		case strings.HasPrefix(name, afterReboot):
			after = append(after, name)
		}
	}
	// The gate takes what it is told as the name of a package, and each one once.
	line := func(to *strings.Builder, part, tests, skip string) {
		fmt.Fprintf(to, "stepd/%s%s\t%s\t%s\t%s\t%s\t%s\n", r.dir, part, r.dir, binary, tests, timeout, skip)
	}
	if len(names) > len(before)+len(after) {
		line(&j.now, "", r.tests, "^("+beforeReboot+"|"+afterReboot+")")
	}
	if len(before) > 0 {
		line(&j.before, "-last", "^("+strings.Join(before, "|")+")$", "-")
	}
	if len(after) > 0 {
		line(&j.after, "-rebooted", "^("+strings.Join(after, "|")+")$", "-")
	}
}
