package main

import (
	"slices"
	"testing"
)

func TestCompleting(t *testing.T) {
	for _, c := range []struct {
		args []string
		verb string
		rest []string
	}{
		{[]string{"__complete", "run", "-n", "2", "--"}, "run", []string{"-n", "2"}},
		{[]string{"__completeNoDesc", "--socket", "/s", "alloc", "-"}, "alloc", []string{"--socket", "/s"}},
		{[]string{"__complete", "ru"}, "", nil},
		{[]string{"__complete"}, "", nil},
		{[]string{"run", "--help"}, "", nil},
	} {
		got, rest := completing(newRoot(&dialer{}), c.args)
		switch {
		case got == nil && c.verb == "":
		case got == nil || got.Name() != c.verb || !slices.Equal(rest, c.rest):
			t.Errorf("%q: %v, %q", c.args, got, rest)
		}
	}
}
