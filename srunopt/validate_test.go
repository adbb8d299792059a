package srunopt

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"stepd/step"
)

func goodRequest() step.Request {
	return step.Request{
		Schema: step.Schema, Name: "job", NTasks: 2, NNodes: 1, CPUsPerTask: 1,
		Argv: []string{"/bin/true"}, Env: []string{"A=1", "B="}, Cwd: "/",
		Stdin: step.Stream{Kind: step.StreamNull}, Stdout: step.Stream{Kind: step.StreamClient}, Stderr: step.Stream{Kind: step.StreamSame},
	}
}

func ptr[T any](v T) *T { return &v }

func TestRequestValidate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		edit  func(*step.Request)
		field string // "" is a good request
	}{
		{"good", func(r *step.Request) {}, ""},
		{"stream of one rank", func(r *step.Request) { r.Stdin = step.Stream{Kind: step.StreamClient, Rank: ptr(1)} }, ""},
		{"longer than execve takes", func(r *step.Request) { r.Argv = append(r.Argv, strings.Repeat("x", 200<<10)) }, ""},
		{"schema", func(r *step.Request) { r.Schema = 2 }, "schema"},
		{"job 0", func(r *step.Request) { r.Job = ptr(uint32(0)) }, "job"},
		{"uid -1", func(r *step.Request) { r.UID = ptr(^uint32(0)) }, "uid"},
		{"gid -1", func(r *step.Request) { r.GID = ptr(^uint32(0)) }, "gid"},
		{"no tasks", func(r *step.Request) { r.NTasks = 0 }, "ntasks"},
		{"negative tasks", func(r *step.Request) { r.NTasks = -3 }, "ntasks"},
		{"too many tasks", func(r *step.Request) { r.NTasks = step.TasksMax + 1 }, "ntasks"},
		{"no nodes", func(r *step.Request) { r.NNodes = 0 }, "nnodes"},
		{"no cpus", func(r *step.Request) { r.CPUsPerTask = 0 }, "cpus_per_task"},
		{"waits for less than for ever", func(r *step.Request) { r.ImmediateS = ptr(WaitForever - 1) }, "immediate_s"},
		{"waits for longer than a Duration", func(r *step.Request) { r.ImmediateS = ptr(1 << 40) }, "immediate_s"},
		{"too many cpus", func(r *step.Request) { r.CPUsPerTask = 1 << 40 }, "cpus_per_task"},
		{"no command", func(r *step.Request) { r.Argv = nil }, "argv"},
		{"empty command", func(r *step.Request) { r.Argv = []string{""} }, "argv"},
		{"NUL in argument", func(r *step.Request) { r.Argv = []string{"a\x00b"} }, "argv"},
		{"env without =", func(r *step.Request) { r.Env = []string{"A"} }, "env"},
		{"env without name", func(r *step.Request) { r.Env = []string{"=1"} }, "env"},
		{"NUL in env", func(r *step.Request) { r.Env = []string{"A=\x00"} }, "env"},
		{"no cwd", func(r *step.Request) { r.Cwd = "" }, "cwd"},
		{"relative cwd", func(r *step.Request) { r.Cwd = "x/y" }, "cwd"},
		{"long cwd", func(r *step.Request) { r.Cwd = "/" + strings.Repeat("d", PathMax) }, "cwd"},
		{"NUL in cwd", func(r *step.Request) { r.Cwd = "/\x00" }, "cwd"},
		{"umask", func(r *step.Request) { r.Umask = 0o1000 }, "umask"},
		{"no stdin", func(r *step.Request) { r.Stdin = step.Stream{} }, "stdin"},
		{"unattended stdout", func(r *step.Request) { r.Stdin.Kind, r.Unattended = step.StreamNull, true }, "stdout"},
		{"stdin same", func(r *step.Request) { r.Stdin.Kind = step.StreamSame }, "stdin"},
		{"file without pattern", func(r *step.Request) { r.Stdout.Kind = step.StreamFile }, "stdout"},
		{"pattern without file", func(r *step.Request) { r.Stdout.Pattern = "x" }, "stdout"},
		{"long pattern", func(r *step.Request) {
			r.Stdout = step.Stream{Kind: step.StreamFile, Pattern: strings.Repeat("p", PathMax+1)}
		}, "stdout"},
		{"rank beyond", func(r *step.Request) { r.Stderr.Rank = ptr(2) }, "stderr"},
		{"rank below", func(r *step.Request) { r.Stdin.Rank = ptr(-1) }, "stdin"},
		{"newline in name", func(r *step.Request) { r.Name = "a\nb" }, "name"},
		{"long name", func(r *step.Request) { r.Name = strings.Repeat("n", NameMax+1) }, "name"},
		{"escape in host", func(r *step.Request) { r.SubmitHost = "\x1b[2J" }, "submit_host"},
		{"newline in mpi", func(r *step.Request) { r.MPI = "pmi2\n" }, "mpi"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := goodRequest()
			tc.edit(&r)
			err := Validate(&r)
			if tc.field == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			var fe *step.FieldError
			if !errors.As(err, &fe) || fe.Field != tc.field {
				t.Fatalf("got %v, want an error of field %q", err, tc.field)
			}
			if len(err.Error()) > 400 {
				t.Errorf("message has %d bytes: it repeats the user's input", len(err.Error()))
			}
		})
	}
}

func TestSpecValidate(t *testing.T) {
	good := step.Spec{
		Request: goodRequest(), ID: step.ID{Job: 1}, NodeName: "n", CPUs: "0-1", NCPUs: 2,
		Proctrack: step.Proctrack{Kind: "cgroup/hybrid"},
	}
	if err := ValidateSpec(&good); err != nil {
		t.Fatal(err)
	}
	for field, edit := range map[string]func(*step.Spec){
		"id":        func(s *step.Spec) { s.ID.Job = 0 },
		"user":      func(s *step.Spec) { s.User.UID = ^uint32(0) },
		"node_name": func(s *step.Spec) { s.NodeName = "" },
		"proctrack": func(s *step.Spec) { s.Proctrack.Kind = "" },
		"cpus":      func(s *step.Spec) { s.CPUs = "3-1" },
		"ncpus":     func(s *step.Spec) { s.NCPUs = 3 },
		"ntasks":    func(s *step.Spec) { s.NTasks = 0 },
	} {
		s := good
		edit(&s)
		var fe *step.FieldError
		if err := ValidateSpec(&s); !errors.As(err, &fe) || fe.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

// FuzzRequest feeds bytes as a client would: whatever passes Validate must
// keep the bounds that root's side relies on.
func FuzzRequest(f *testing.F) {
	b, err := json.Marshal(goodRequest())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schema":1,"ntasks":-1,"argv":["x"],"cwd":"/"}`))
	f.Add([]byte(`{"schema":1,"job":0}`))
	f.Add([]byte(`{"stdin":{"kind":"same","rank":99999999999}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r step.Request
		if json.Unmarshal(b, &r) != nil || Validate(&r) != nil {
			return
		}
		if r.NTasks < 1 || r.NTasks > step.TasksMax || r.NNodes < 1 || len(r.Argv) == 0 || r.Argv[0] == "" || r.Cwd[0] != '/' {
			t.Fatalf("accepted %+v", r)
		}
		for _, s := range append(append([]string{r.Cwd, r.Stdin.Pattern, r.Stdout.Pattern, r.Stderr.Pattern}, r.Argv...), r.Env...) {
			if strings.ContainsRune(s, 0) {
				t.Fatalf("accepted string %.80q", s)
			}
		}
		if strings.ContainsAny(r.Name+r.SubmitHost+r.MPI, "\n\r\x1b") {
			t.Fatalf("accepted words %q %q %q", r.Name, r.SubmitHost, r.MPI)
		}
	})
}

func TestValidateTerminal(t *testing.T) {
	null := step.Stream{Kind: step.StreamNull}
	good := func() step.Request {
		r := goodRequest()
		r.Stdin, r.Stdout, r.Stderr, r.Terminal = null, null, null, &step.Terminal{Rows: 24, Cols: 80, Chars: make([]byte, terminalChars)}
		return r
	}
	for _, c := range []struct {
		name   string
		change func(*step.Request)
		field  string
	}{
		{"plain", func(*step.Request) {}, ""},
		{"sizes of any kind", func(r *step.Request) { r.Terminal.Rows, r.Terminal.Cols = 0, 65535 }, ""},
		{"stdin beside it", func(r *step.Request) { r.Stdin.Kind = step.StreamClient }, "stdin"},
		{"stdout in a file", func(r *step.Request) { r.Stdout = step.Stream{Kind: step.StreamFile, Pattern: "x"} }, "stdout"},
		{"stderr as stdout", func(r *step.Request) { r.Stderr.Kind = step.StreamSame }, "stderr"},
		{"labels", func(r *step.Request) { r.Label = true }, "label"},
		{"of a script", func(r *step.Request) { r.Script = []byte("#!/bin/sh\n") }, "terminal"},
		{"too many characters", func(r *step.Request) { r.Terminal.Chars = make([]byte, terminalChars+1) }, "terminal"},
	} {
		r := good()
		c.change(&r)
		err := Validate(&r)
		var fe *step.FieldError
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.field != "" && (!errors.As(err, &fe) || fe.Field != c.field):
			t.Errorf("%s: %v, want an error of field %q", c.name, err, c.field)
		}
	}
}
