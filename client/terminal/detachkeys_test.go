package terminal

import (
	"bytes"
	"testing"
)

func TestDetachKeys(t *testing.T) {
	for _, c := range []struct {
		keys, in, typed string
		left            bool
	}{
		{DefaultDetachKeys, "hello\x03", "hello\x03", false},
		{DefaultDetachKeys, "ab\x1ddcd", "ab", true},
		{DefaultDetachKeys, "a\x1d\x1db", "a\x1db", false},
		{DefaultDetachKeys, "a\x1dxb", "a\x1dxb", false},
		{DefaultDetachKeys, "\x1dx\x1dd", "\x1dx", true},
		{DefaultDetachKeys, "\x1d\x1d\x1dd", "\x1d", true},
		{"ctrl-p,ctrl-q", "\x10\x10\x11", "\x10\x11", false},
		{"ctrl-p,ctrl-q", "\x10\x11", "", true},
		{"ctrl-a,a,b", "\x01a\x01ab", "\x01a", true},
		{"~", "a~", "a", true},
		{"none", "\x1dd", "\x1dd", false},
	} {
		// In one piece, and byte by byte.
		for _, size := range []int{len(c.in), 1} {
			d, err := ParseDetachKeys(c.keys)
			if err != nil {
				t.Fatal(err)
			}
			var typed []byte
			left := false
			for at := 0; at < len(c.in) && !left; at += size {
				var got []byte
				got, left = d.pass([]byte(c.in[at : at+size]))
				typed = append(typed, got...)
			}
			if string(typed) != c.typed || left != c.left {
				t.Errorf("%s: %q: typed %q, left %t; want %q, %t", c.keys, c.in, typed, left, c.typed, c.left)
			}
		}
	}
	for _, bad := range []string{"ctrl-", "ctrl-1", "ab", ",", "a,,b", "é"} {
		if d, err := ParseDetachKeys(bad); err == nil {
			t.Errorf("%q is %q", bad, d.keys)
		}
	}
	if d, _ := ParseDetachKeys(DefaultDetachKeys); d.Words() != "Ctrl-] d" {
		t.Errorf("the keys are called %q", d.Words())
	}
}

// FuzzDetachKeys: nothing that is typed is lost or changed but the keys, and what is
// held back is the beginning of them.
func FuzzDetachKeys(f *testing.F) {
	f.Add("ctrl-],d", []byte("a\x1dx\x1d"))
	f.Fuzz(func(t *testing.T, keys string, in []byte) {
		d, err := ParseDetachKeys(keys)
		if err != nil || d == nil {
			return
		}
		typed, left := d.pass(in)
		if !left && !bytes.Contains(in, d.keys[:1]) && !bytes.Equal(typed, in) {
			t.Errorf("%q became %q", in, typed)
		}
		if !left && d.seen >= len(d.keys) {
			t.Errorf("%d of %d keys were seen", d.seen, len(d.keys))
		}
		if len(typed) > len(in) {
			t.Errorf("%q became %q", in, typed)
		}
	})
}
