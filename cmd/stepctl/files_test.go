package main

import (
	"testing"

	"stepd/step"
)

// The client takes over what all tasks of several nodes have in common, and
// nothing else.
func TestCommonFiles(t *testing.T) {
	file := func(pattern string) step.Stream { return step.Stream{Kind: step.StreamFile, Pattern: pattern} }
	several := func(r *step.Request) { r.NNodes = 2 }
	for _, c := range []struct {
		name       string
		where      func(*step.Request)
		out, err   step.Stream
		want       commonFiles
		outK, errK step.StreamKind
	}{
		{"one node", func(r *step.Request) {}, file("o"), file("e"), commonFiles{}, step.StreamFile, step.StreamFile},
		{"several", several, file("o.%j"), file("e"), commonFiles{1: "o.%j", 2: "e"}, step.StreamClient, step.StreamClient},
		{"one for both", several, file("o"), step.Stream{Kind: step.StreamSame}, commonFiles{1: "o", 2: "o"}, step.StreamClient, step.StreamClient},
		{"of tasks and nodes", several, file("o%t"), file("e%3n"), commonFiles{}, step.StreamFile, step.StreamFile},
		{"another node", func(r *step.Request) { r.WantNodes = []string{"n2"} }, file("o"), step.Stream{Kind: step.StreamNull}, commonFiles{1: "o"}, step.StreamClient, step.StreamNull},
		{"nothing", several, file("/dev/null"), file("e"), commonFiles{2: "e"}, step.StreamNull, step.StreamClient},
		{"up to several", func(r *step.Request) { r.NNodesMax = 3 }, file("o"), file("e.%N"), commonFiles{1: "o"}, step.StreamClient, step.StreamFile},
	} {
		r := &step.Request{NNodes: 1, Stdin: step.Stream{Kind: step.StreamNull}, Stdout: c.out, Stderr: c.err}
		c.where(r)
		var got commonFiles
		got.take(r)
		if got != c.want || r.Stdout.Kind != c.outK || r.Stderr.Kind != c.errK {
			t.Errorf("%s: %q, stdout %+v, stderr %+v", c.name, got, r.Stdout, r.Stderr)
		}
	}
}
