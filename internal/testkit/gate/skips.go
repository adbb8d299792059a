package main

import (
	"fmt"
	"strings"
)

// A skip is a row of skips.tsv: a test that may skip although STRICT=1.
type skip struct {
	pkg   string // import path without the module: proctrack
	test  string // with its subtest, if the subtest alone may
	where string // host, guest or any
	when  string // the condition under which it skips, and why nothing else will do
}

// parseSkips reads package, test, where, when; parted by tabs.
func parseSkips(text string) ([]skip, error) {
	var skips []skip
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || f[0] == "" || f[1] == "" || f[3] == "" {
			return nil, fmt.Errorf("skips.tsv:%d: want package, test, where, when, parted by tabs: %q", i+1, line)
		}
		if f[2] != "host" && f[2] != "guest" && f[2] != "any" {
			return nil, fmt.Errorf("skips.tsv:%d: where is %q: want host, guest or any", i+1, f[2])
		}
		skips = append(skips, skip{pkg: f[0], test: f[1], where: f[2], when: f[3]})
	}
	return skips, nil
}

// allowed reports whether a test of a package (an import path) may skip.
func allowed(skips []skip, where, pkg, test string) bool {
	for _, s := range skips {
		if "stepd/"+s.pkg == pkg && s.test == test && (s.where == where || s.where == "any") {
			return true
		}
	}
	return false
}
