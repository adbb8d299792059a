package node

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	for _, tc := range []struct {
		name   string
		chunks []string
		want   []string
	}{
		{"nothing", []string{""}, nil},
		{"whole lines", []string{"a\nbb\n"}, []string{"a", "bb"}},
		{"a line in parts", []string{"a", "b", "c\nd\n"}, []string{"abc", "d"}},
		{"an unfinished last line", []string{"a\nb"}, []string{"a"}},
		{"empty lines", []string{"\n\na\n\n"}, []string{"a"}},
		{"too long a line", []string{strings.Repeat("x", lineMax), "y", "\nz\n"}, []string{"z"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r bytes.Buffer
			tail := &tail{r: &r}
			var got []string
			for _, c := range tc.chunks {
				r.WriteString(c)
				if err := tail.send(func(b []byte) error { got = append(got, string(b)); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %.100q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzTail(f *testing.F) {
	f.Add([]byte("a\nb\n"), 1)
	f.Add([]byte("\n\n{\"event\":\"end\"}"), 3)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		tail := &tail{}
		var got []byte
		for chunk := range slices.Chunk(b, max(1, size%64)) {
			if err := tail.lines(chunk, func(l []byte) error { got = append(append(got, l...), '\n'); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		// Whole lines come through unchanged, empty ones excepted.
		whole := b[:bytes.LastIndexByte(b, '\n')+1]
		var want []byte
		for l := range bytes.Lines(whole) {
			if len(l) > 1 {
				want = append(want, l...)
			}
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
