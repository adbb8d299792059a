package options

import (
	"testing"

	"stepd/step"
)

// The client takes over the files into which it is to write labels, and nothing else.
func TestCommonFiles(t *testing.T) {
	file := func(pattern string) step.Stream { return step.Stream{Kind: step.StreamFile, Pattern: pattern} }
	for _, c := range []struct {
		name       string
		label      bool
		out, err   step.Stream
		want       Files
		outK, errK step.StreamKind
	}{
		{"no labels", false, file("o"), file("e"), Files{}, step.StreamFile, step.StreamFile},
		{"labels", true, file("o.%j"), file("e%t"), Files{1: "o.%j", 2: "e%t"}, step.StreamClient, step.StreamClient},
		{"one for both", true, file("o"), step.Stream{Kind: step.StreamSame}, Files{1: "o", 2: "o"}, step.StreamClient, step.StreamClient},
		{"one alone", true, file("o"), step.Stream{Kind: step.StreamNull}, Files{1: "o"}, step.StreamClient, step.StreamNull},
		{"nothing", true, file("/dev/null"), file("e"), Files{2: "e"}, step.StreamNull, step.StreamClient},
	} {
		r := &step.Request{NNodes: 1, Label: c.label, Stdin: step.Stream{Kind: step.StreamNull}, Stdout: c.out, Stderr: c.err}
		var got Files
		got.take(r)
		if got != c.want || r.Stdout.Kind != c.outK || r.Stderr.Kind != c.errK {
			t.Errorf("%s: %q, stdout %+v, stderr %+v", c.name, got, r.Stdout, r.Stderr)
		}
	}
}
