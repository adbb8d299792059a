package main

import "testing"

func TestBlank(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "",
		"\x00\x0fMUNGE:AwQ/+a==:\x00it": "\x00\x0fMUNGE:AAAAAAAA:\x00it",
		"MUNGE:a:MUNGE:b:":              "MUNGE:A:MUNGE:A:",
		"MUNGE: is no token":            "MUNGE: is no token",
	} {
		if got := string(blank([]byte(in))); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}
