package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"stepd/step"
)

func TestReadResult(t *testing.T) {
	dir := t.TempDir()
	id := step.ID{Job: 3, Step: 1}
	for name, tc := range map[string]struct{ text, says string }{
		"final":      {`{"job_id":3,"step_id":1,"state":"COMPLETED","exit_code":0}`, ""},
		"running":    {`{"job_id":3,"step_id":1,"state":"RUNNING"}`, "not final"},
		"made up":    {`{"job_id":3,"step_id":1,"state":"HAPPY"}`, "not final"},
		"no state":   {`{"job_id":3,"step_id":1}`, "not final"},
		"another's":  {`{"job_id":3,"step_id":2,"state":"COMPLETED"}`, "of step 3.2"},
		"truncated":  {`{"job_id":3,"step_`, "unexpected end"},
		"empty":      {"", "unexpected end"},
		"wrong type": {`[1]`, "cannot unmarshal"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		rec, err := readResult(path, id)
		if tc.says == "" {
			if err != nil || rec.State != step.Completed {
				t.Errorf("%s: %+v, %v", name, rec, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
	if _, err := readResult(filepath.Join(dir, "absent"), id); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if err := os.Symlink(filepath.Join(dir, "final"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := readResult(filepath.Join(dir, "link"), id); err == nil {
		t.Error("a link was followed")
	}
}

func FuzzParseResult(f *testing.F) {
	f.Add([]byte(`{"job_id":3,"step_id":1,"state":"COMPLETED","exit_code":0,"tasks":[{"rank":0,"state":"EXITED","status":0}]}`))
	f.Add([]byte(`{"job_id":3,"step_id":1,"state":"RUNNING"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		id := step.ID{Job: 3, Step: 1}
		rec, err := parseResult(b, id)
		if err == nil && (rec.ID != id || !rec.State.Final() || !isFinal(rec.State)) {
			t.Fatalf("accepted %+v", rec)
		}
	})
}

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
