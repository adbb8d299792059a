package step

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func goodRequest() Request {
	return Request{
		Schema: Schema, Name: "job", NTasks: 2, NNodes: 1, CPUsPerTask: 1,
		Argv: []string{"/bin/true"}, Env: []string{"A=1", "B="}, Cwd: "/",
		Stdin: Stream{Kind: StreamNull}, Stdout: Stream{Kind: StreamClient}, Stderr: Stream{Kind: StreamSame},
	}
}

func ptr[T any](v T) *T { return &v }

func TestRequestValidate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		edit  func(*Request)
		field string // "" is a good request
	}{
		{"good", func(r *Request) {}, ""},
		{"stream of one rank", func(r *Request) { r.Stdin = Stream{Kind: StreamClient, Rank: ptr(1)} }, ""},
		{"longer than execve takes", func(r *Request) { r.Argv = append(r.Argv, strings.Repeat("x", 200<<10)) }, ""},
		{"schema", func(r *Request) { r.Schema = 2 }, "schema"},
		{"job 0", func(r *Request) { r.Job = ptr(uint32(0)) }, "job"},
		{"uid -1", func(r *Request) { r.UID = ptr(^uint32(0)) }, "uid"},
		{"gid -1", func(r *Request) { r.GID = ptr(^uint32(0)) }, "gid"},
		{"no tasks", func(r *Request) { r.NTasks = 0 }, "ntasks"},
		{"negative tasks", func(r *Request) { r.NTasks = -3 }, "ntasks"},
		{"too many tasks", func(r *Request) { r.NTasks = TasksMax + 1 }, "ntasks"},
		{"no nodes", func(r *Request) { r.NNodes = 0 }, "nnodes"},
		{"no cpus", func(r *Request) { r.CPUsPerTask = 0 }, "cpus_per_task"},
		{"waits for less than for ever", func(r *Request) { r.ImmediateS = ptr(WaitForever - 1) }, "immediate_s"},
		{"waits for longer than a Duration", func(r *Request) { r.ImmediateS = ptr(1 << 40) }, "immediate_s"},
		{"too many cpus", func(r *Request) { r.CPUsPerTask = 1 << 40 }, "cpus_per_task"},
		{"no command", func(r *Request) { r.Argv = nil }, "argv"},
		{"empty command", func(r *Request) { r.Argv = []string{""} }, "argv"},
		{"NUL in argument", func(r *Request) { r.Argv = []string{"a\x00b"} }, "argv"},
		{"env without =", func(r *Request) { r.Env = []string{"A"} }, "env"},
		{"env without name", func(r *Request) { r.Env = []string{"=1"} }, "env"},
		{"NUL in env", func(r *Request) { r.Env = []string{"A=\x00"} }, "env"},
		{"no cwd", func(r *Request) { r.Cwd = "" }, "cwd"},
		{"relative cwd", func(r *Request) { r.Cwd = "x/y" }, "cwd"},
		{"long cwd", func(r *Request) { r.Cwd = "/" + strings.Repeat("d", PathMax) }, "cwd"},
		{"NUL in cwd", func(r *Request) { r.Cwd = "/\x00" }, "cwd"},
		{"umask", func(r *Request) { r.Umask = 0o1000 }, "umask"},
		{"no stdin", func(r *Request) { r.Stdin = Stream{} }, "stdin"},
		{"unattended stdout", func(r *Request) { r.Stdin.Kind, r.Unattended = StreamNull, true }, "stdout"},
		{"stdin same", func(r *Request) { r.Stdin.Kind = StreamSame }, "stdin"},
		{"file without pattern", func(r *Request) { r.Stdout.Kind = StreamFile }, "stdout"},
		{"pattern without file", func(r *Request) { r.Stdout.Pattern = "x" }, "stdout"},
		{"long pattern", func(r *Request) { r.Stdout = Stream{Kind: StreamFile, Pattern: strings.Repeat("p", PathMax+1)} }, "stdout"},
		{"rank beyond", func(r *Request) { r.Stderr.Rank = ptr(2) }, "stderr"},
		{"rank below", func(r *Request) { r.Stdin.Rank = ptr(-1) }, "stdin"},
		{"newline in name", func(r *Request) { r.Name = "a\nb" }, "name"},
		{"long name", func(r *Request) { r.Name = strings.Repeat("n", NameMax+1) }, "name"},
		{"escape in host", func(r *Request) { r.SubmitHost = "\x1b[2J" }, "submit_host"},
		{"newline in mpi", func(r *Request) { r.MPI = "pmi2\n" }, "mpi"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := goodRequest()
			tc.edit(&r)
			err := r.Validate()
			if tc.field == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			var fe *FieldError
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
	good := Spec{
		Request: goodRequest(), ID: ID{Job: 1}, NodeName: "n", CPUs: "0-1", NCPUs: 2,
		Proctrack: Proctrack{Kind: "cgroup/hybrid"},
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for field, edit := range map[string]func(*Spec){
		"id":        func(s *Spec) { s.ID.Job = 0 },
		"user":      func(s *Spec) { s.User.UID = ^uint32(0) },
		"node_name": func(s *Spec) { s.NodeName = "" },
		"proctrack": func(s *Spec) { s.Proctrack.Kind = "" },
		"cpus":      func(s *Spec) { s.CPUs = "3-1" },
		"ncpus":     func(s *Spec) { s.NCPUs = 3 },
		"ntasks":    func(s *Spec) { s.NTasks = 0 },
	} {
		s := good
		edit(&s)
		var fe *FieldError
		if err := s.Validate(); !errors.As(err, &fe) || fe.Field != field {
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
		var r Request
		if json.Unmarshal(b, &r) != nil || r.Validate() != nil {
			return
		}
		if r.NTasks < 1 || r.NTasks > TasksMax || r.NNodes < 1 || len(r.Argv) == 0 || r.Argv[0] == "" || r.Cwd[0] != '/' {
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
	null := Stream{Kind: StreamNull}
	good := func() Request {
		r := goodRequest()
		r.Stdin, r.Stdout, r.Stderr, r.Terminal = null, null, null, &Terminal{Rows: 24, Cols: 80, Chars: make([]byte, TerminalChars)}
		return r
	}
	for _, c := range []struct {
		name   string
		change func(*Request)
		field  string
	}{
		{"plain", func(*Request) {}, ""},
		{"sizes of any kind", func(r *Request) { r.Terminal.Rows, r.Terminal.Cols = 0, 65535 }, ""},
		{"stdin beside it", func(r *Request) { r.Stdin.Kind = StreamClient }, "stdin"},
		{"stdout in a file", func(r *Request) { r.Stdout = Stream{Kind: StreamFile, Pattern: "x"} }, "stdout"},
		{"stderr as stdout", func(r *Request) { r.Stderr.Kind = StreamSame }, "stderr"},
		{"labels", func(r *Request) { r.Label = true }, "label"},
		{"of a script", func(r *Request) { r.Script = []byte("#!/bin/sh\n") }, "terminal"},
		{"too many characters", func(r *Request) { r.Terminal.Chars = make([]byte, TerminalChars+1) }, "terminal"},
	} {
		r := good()
		c.change(&r)
		err := r.Validate()
		var fe *FieldError
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.field != "" && (!errors.As(err, &fe) || fe.Field != c.field):
			t.Errorf("%s: %v, want an error of field %q", c.name, err, c.field)
		}
	}
}
