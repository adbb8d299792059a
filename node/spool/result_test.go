package spool

import (
	"errors"
	"os"
	"path/filepath"
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
		if err == nil && (rec.ID != id || !rec.State.Final() || !IsFinal(rec.State)) {
			t.Fatalf("accepted %+v", rec)
		}
	})
}
