package srunopt

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"stepd/step"
)

func TestApps(t *testing.T) {
	good := func() *step.Request {
		req := goodRequest()
		r := &req
		r.NTasks = 3
		r.Apps = []step.App{{NTasks: 2, Argv: step.Raw([]string{"a", "\xff"})}, {NTasks: 1, Argv: step.Raw([]string{"b"}), Env: step.Raw([]string{"A=1"}), Cwd: []byte("sub")}}
		return r
	}
	r := good()
	if err := Validate(r); err != nil {
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
	back := new(step.Request)
	if err := json.Unmarshal(b, back); err != nil || !reflect.DeepEqual(back.Apps, r.Apps) {
		t.Errorf("over JSON: %+v, %v", back.Apps, err)
	}
	for name, c := range map[string]struct {
		change func(*step.Request)
		word   string
	}{
		"none":      {func(r *step.Request) { r.Apps[0].Argv = nil }, "command 0 is empty"},
		"no word":   {func(r *step.Request) { r.Apps[1].Argv[0] = nil }, "command 1 is empty"},
		"NUL":       {func(r *step.Request) { r.Apps[0].Argv[1] = []byte("a\x00") }, "NUL"},
		"count":     {func(r *step.Request) { r.NTasks = 4 }, "have 3 tasks, and the step 4"},
		"no tasks":  {func(r *step.Request) { r.Apps[0].NTasks = 0 }, "has 0 tasks"},
		"too many":  {func(r *step.Request) { r.Apps[0].NTasks = step.TasksMax + 1 }, "want 1 to"},
		"env":       {func(r *step.Request) { r.Apps[1].Env = step.Raw([]string{"A"}) }, "NAME=VALUE"},
		"directory": {func(r *step.Request) { r.Apps[1].Cwd = make([]byte, PathMax+1) }, "directory"},
		"commands":  {func(r *step.Request) { r.Apps = make([]step.App, appsMax+1) }, "the limit is 65533"},
	} {
		r := good()
		c.change(r)
		if err := Validate(r); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v, want %q", name, err, c.word)
		}
	}
}
