package build

import (
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	defer func(v string) { version = v }(version)
	version = ""
	if v := Version(); v == "" || strings.ContainsAny(v, " \n") || v == "(devel)" {
		t.Errorf("the version of a program that was linked without one is %q", v)
	}
	version = "1.4-3-gabc"
	if line := Line(); line != "stepd 1.4-3-gabc" {
		t.Errorf("the line is %q", line)
	}
}
