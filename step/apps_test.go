package step

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestApps(t *testing.T) {
	good := func() *Request {
		req := goodRequest()
		r := &req
		r.NTasks = 3
		r.Apps = []App{{NTasks: 2, Argv: Raw([]string{"a", "\xff"})}, {NTasks: 1, Argv: Raw([]string{"b"}), Env: Raw([]string{"A=1"}), Cwd: []byte("sub")}}
		return r
	}
	r := good()
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	for rank, want := range []int{0, 0, 1, 0} {
		if got := r.AppOf(rank); got != want {
			t.Errorf("rank %d runs command %d, want %d", rank, got, want)
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	back := new(Request)
	if err := json.Unmarshal(b, back); err != nil || !reflect.DeepEqual(back.Apps, r.Apps) {
		t.Errorf("over JSON: %+v, %v", back.Apps, err)
	}
	for name, c := range map[string]struct {
		change func(*Request)
		word   string
	}{
		"none":      {func(r *Request) { r.Apps[0].Argv = nil }, "command 0 is empty"},
		"no word":   {func(r *Request) { r.Apps[1].Argv[0] = nil }, "command 1 is empty"},
		"NUL":       {func(r *Request) { r.Apps[0].Argv[1] = []byte("a\x00") }, "NUL"},
		"count":     {func(r *Request) { r.NTasks = 4 }, "have 3 tasks, and the step 4"},
		"no tasks":  {func(r *Request) { r.Apps[0].NTasks = 0 }, "has 0 tasks"},
		"too many":  {func(r *Request) { r.Apps[0].NTasks = TasksMax + 1 }, "want 1 to"},
		"env":       {func(r *Request) { r.Apps[1].Env = Raw([]string{"A"}) }, "NAME=VALUE"},
		"directory": {func(r *Request) { r.Apps[1].Cwd = make([]byte, PathMax+1) }, "directory"},
		"commands":  {func(r *Request) { r.Apps = make([]App, AppsMax+1) }, "the limit is 65533"},
	} {
		r := good()
		c.change(r)
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v, want %q", name, err, c.word)
		}
	}
}

func TestSpawnError(t *testing.T) {
	err := &SpawnError{ID: ID{Job: 3, Step: 2}, Failed: map[int]string{2: "x", 1: "x"}, Cause: "execve(): x: No such file or directory"}
	if got := err.Error(); !strings.Contains(got, "3.2 (rank 1-2): execve()") {
		t.Errorf("%q", got)
	}
}
