package terminal

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"a line\n\tand a tab\r\n": "a line\n\tand a tab\r\n",
		"\x1b[6n\x1b]0;t\x07":     "^[[6n^[]0;t^G",
		"over\rwritten":           "over^Mwritten",
		"\x7f\x00":                "^?^@",
		"héé €":                   "héé €",
		"\u009b6n":                "<U+009B>6n",
		"\x9b6n":                  `\x9b6n`,
		"gpj.\u202eexe":           "gpj.<U+202E>exe",
		"cut \xe2\x82":            `cut \xe2\x82`,
		"end\r":                   "end^M",
	} {
		if got := Escape(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// FuzzVisible: whatever comes, and in whatever pieces, nothing controls a terminal.
func FuzzVisible(f *testing.F) {
	f.Add([]byte("a\r\nb\r\x1b[31m\xc2\x9b\u202e"), 3)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		at = max(0, min(at, len(b)))
		var whole, cut Escaper
		one := whole.Rest(whole.Append(nil, b))
		two := cut.Append(cut.Append(nil, b[:at]), b[at:])
		two = cut.Rest(two)
		if !bytes.Equal(one, two) {
			t.Errorf("%q cut at %d is %q, whole it is %q", b, at, two, one)
		}
		if !utf8.Valid(one) {
			t.Errorf("%q is no text: %q", b, one)
		}
		for _, r := range strings.ReplaceAll(string(one), "\r\n", "\n") {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
				t.Errorf("%q has %U in %q", b, r, one)
			}
		}
	})
}

// TestClean: a message of stepctl's moves no cursor, whatever a file's name has.
func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"cannot open \"a\": no\n\tsuch file":  "cannot open \"a\": no\n\tsuch file",
		"open \x1b[2J\x07\r\u202e\u009bx: no": "open ?[2J????x: no",
		"open Größe\xff日本: no":                "open Größe?日本: no",
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}
