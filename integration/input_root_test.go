package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/api"
)

// TestRootRefusedRequests: what cannot be is refused with exit code 1 and one
// line that names the thing, and no job number is spent.
func TestRootRefusedRequests(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	n.serves(t)
	before := n.last(t).JobID
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"run", "-n", "0", "true"}, "0"},
		{[]string{"run", "-n", "-1", "true"}, "-1"},
		{[]string{"run", "-n", "x", "true"}, "x"},
		{[]string{"run", "-n", "65", "true"}, "64"}, // names the CPUs there are
		{[]string{"run", "-n", "65534", "--overcommit", "true"}, "65533"},
		{[]string{"run", "-n", "99999999999999999999", "true"}, "99999999999999999999"},
		{[]string{"run", "-c", "0", "true"}, "0"},
		{[]string{"run", "-c", "65", "true"}, "64"},
		{[]string{"run", "-N", "2", "true"}, "several nodes: use Slurm"},
		{[]string{"run"}, "command"},
		{[]string{"run", "--no-such-option", "true"}, "no-such-option"},
		{[]string{"run", "--mpi=nosuch", "true"}, "nosuch"},
		{[]string{"run", "--jobid", "4242", "true"}, "4242"},
		{[]string{"run", "--export=ALL,=x", "true"}, "="},
		{[]string{"nosuchverb"}, "nosuchverb"},
		{[]string{"signal", "-s", "NOSUCH", "1.0"}, "NOSUCH"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			r := n.ctl(t, c.args...)
			if r.code != 1 || r.out != "" {
				t.Errorf("want exit code 1 and no output, got %v", r)
			}
			first, _, _ := strings.Cut(r.err, "\n")
			if !strings.HasPrefix(first, "stepctl: error: ") || !strings.Contains(first, c.says) {
				t.Errorf("want one line \"stepctl: error: ...\" that names %q, got %q", c.says, r.err)
			}
		})
	}
	if after := n.last(t).JobID; after != before {
		t.Errorf("refused requests have spent numbers: job %d after %d", after, before)
	}
	t.Run("more tasks than CPUs with --overcommit", func(t *testing.T) {
		if r := n.ctl(t, "run", "-n", "70", "--overcommit", "echo", "x"); r.code != 0 || strings.Count(r.out, "x\n") != 70 {
			t.Errorf("got %v", r)
		}
	})
	n.serves(t)
}

// TestRootNoNode: without a node stepctl says which socket it wanted.
func TestRootNoNode(t *testing.T) {
	n := startNode(t, site{})
	missing := n.path("run", "missing.sock")
	r := n.do(t, call{args: []string{"--socket", missing, "run", "true"}})
	if r.code != 1 || !strings.Contains(r.err, missing) || !strings.HasPrefix(r.err, "stepctl: error: ") {
		t.Errorf("got %v", r)
	}
}

// request is a step.Request without any stream, as JSON.
func request(t testing.TB, argv, env []string, change func(map[string]any)) []byte {
	t.Helper()
	null := map[string]any{"kind": "null"}
	doc := map[string]any{
		"schema": 1, "uid": alice.uid, "name": "raw", "ntasks": 1, "nnodes": 1, "cpus_per_task": 1,
		"argv": argv, "env": env, "cwd": "/", "umask": 0o22, "stdin": null, "stdout": null, "stderr": null,
	}
	if change != nil {
		change(doc)
	}
	b, err := json.Marshal(doc)
	must(t, err)
	return b
}

// runRaw sends one request and waits for the end of its step.
func runRaw(t testing.TB, client *http.Client, request []byte) (stepDoc, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	docs, err := post(ctx, client, "run", runBody(request))
	if err != nil {
		return stepDoc{}, err
	}
	var reply api.RunReply
	must(t, json.Unmarshal(docs[0], &reply))
	docs, err = post(ctx, client, "wait", fmt.Appendf(nil, `{"schema":1,"job_id":%d,"step_id":%d}`, reply.JobID, reply.StepID))
	if err != nil {
		return stepDoc{}, err
	}
	var end struct {
		Step stepDoc `json:"step"`
	}
	if len(docs) != 1 {
		return end.Step, fmt.Errorf("wait answered with %d documents, want 1", len(docs))
	}
	return end.Step, json.Unmarshal(docs[0], &end)
}

// TestRootBeyondKernelLimits: an argument or environment that execve refuses
// is the task's failure (E2BIG, 7), not the node's.
func TestRootBeyondKernelLimits(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	client := n.web(t)
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf("BIG%d=%s", i, strings.Repeat("x", 120<<10))
	}
	env := []string{"PATH=/usr/bin:/bin"}
	for _, c := range []struct {
		name      string
		argv, env []string
	}{
		{"one argument of 200 KiB", []string{"true", strings.Repeat("x", 200<<10)}, env},
		{"one variable of 200 KiB", []string{"true"}, append([]string{"BIG=" + strings.Repeat("x", 200<<10)}, env...)},
		{"an environment of 5 MB", []string{"true"}, append(many, env...)},
		{"arguments of 5 MB", append([]string{"true"}, many...), env},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc, err := runRaw(t, client, request(t, c.argv, c.env, nil))
			must(t, err)
			if doc.State != "FAILED" || doc.ExitCode == nil || *doc.ExitCode != 7 || doc.Tasks[0].Errno != int(unix.E2BIG) {
				t.Errorf("want FAILED, exit code and errno 7, got state %s, exit code %v, tasks %+v", doc.State, doc.ExitCode, doc.Tasks)
			}
		})
	}
	t.Run("just below", func(t *testing.T) {
		doc, err := runRaw(t, client, request(t, []string{"true", strings.Repeat("x", 127<<10)}, env, nil))
		must(t, err)
		if doc.State != "COMPLETED" {
			t.Errorf("want COMPLETED, got %+v", doc)
		}
	})
	n.serves(t)
}

// TestRootMalformedRequests: noded names the field that is wrong.
func TestRootMalformedRequests(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	client := n.web(t)
	set := func(key string, value any) func(map[string]any) {
		return func(doc map[string]any) { doc[key] = value }
	}
	argv, env := []string{"true"}, []string{"PATH=/bin"}
	for _, c := range []struct {
		name string
		body []byte
		says string
	}{
		{"empty", nil, ""},
		{"no JSON", []byte("\x00\xff{{"), ""},
		{"an array", []byte("[]"), ""},
		{"another schema", request(t, argv, env, set("schema", 99)), "schema"},
		{"no argv", request(t, nil, env, nil), "argv"},
		{"an empty argv[0]", request(t, []string{""}, env, nil), "argv"},
		{"NUL in argv", request(t, []string{"a\x00b"}, env, nil), "argv"},
		{"an environment entry without =", request(t, argv, []string{"FOO"}, nil), "env"},
		{"NUL in the environment", request(t, argv, []string{"A=\x00"}, nil), "env"},
		{"a relative cwd", request(t, argv, env, set("cwd", "tmp")), "cwd"},
		{"umask beyond 0777", request(t, argv, env, set("umask", 0o7777)), "umask"},
		{"no tasks", request(t, argv, env, set("ntasks", 0)), "ntasks"},
		{"negative tasks", request(t, argv, env, set("ntasks", -5)), "ntasks"},
		{"no nodes", request(t, argv, env, set("nnodes", 0)), "nnodes"},
		{"a stream of no kind", request(t, argv, env, set("stdin", map[string]any{"kind": "telnet"})), "stdin"},
		{"a file without a pattern", request(t, argv, env, set("stdout", map[string]any{"kind": "file"})), "stdout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			defer cancel()
			_, err := post(ctx, client, "run", runBody(c.body))
			if api.CodeOf(err) != api.InvalidArgument || !strings.Contains(err.Error(), c.says) {
				t.Errorf("want invalid_argument with %q in it, got %v", c.says, err)
			}
		})
	}
	t.Run("more than 16 MiB", func(t *testing.T) {
		big := make([]string, 150)
		for i := range big {
			big[i] = fmt.Sprintf("B%d=%s", i, strings.Repeat("x", 120<<10))
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		_, err := post(ctx, client, "run", runBody(request(t, argv, big, nil)))
		if api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("want invalid_argument, got %v", err)
		}
	})
	if steps := n.ps(t, "--all"); len(steps) != 0 {
		t.Errorf("refused requests have made steps: %+v", steps)
	}
	n.serves(t)
}

// TestRootGarbageOnSockets: bytes that are no protocol harm no other client.
func TestRootGarbageOnSockets(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	noise := rand.NewChaCha8([32]byte{1})
	t.Run("noded.sock", func(t *testing.T) {
		for i := range 20 {
			c, err := net.Dial("unix", n.socket())
			must(t, err)
			b := make([]byte, 1<<(i%15))
			_, _ = noise.Read(b) // never fails
			if i%2 == 0 {
				b = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), b...)
			}
			_, _ = c.Write(b) // noded may close first
			must(t, c.Close())
		}
		n.serves(t)
	})
	t.Run("the step's socket", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sleep", "1000"}})
		step := n.running(t)
		dir, err := os.Open(n.path("run", "steps"))
		must(t, err)
		defer dir.Close()
		name := fmt.Sprintf("/proc/self/fd/%d/%s.sock", dir.Fd(), step.id())
		for i, packet := range [][]byte{
			{}, []byte("x"), []byte("{}"), []byte(`{"type":"hello","version":99}`), []byte(`{"type":"hello","version":1,"role":"noded"}`),
			[]byte(`{"memfd":12345}`), []byte(`{"memfd":-1}`), []byte(`{"type":"attach_done"}`), []byte(`{"type":"result"}`),
			bytes.Repeat([]byte("{"), 60000), []byte(`{"type":"hello","version":1,"role":"launch"}`),
		} {
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
			if err != nil {
				t.Fatalf("packet %d: stepd does not answer any more: %v", i, err)
			}
			// Descriptors that were not asked for.
			_, _, _ = c.WriteMsgUnix(packet, unix.UnixRights(0, 1, 2), nil) // stepd may close first
			must(t, c.Close())
		}
		if steps := n.ps(t); len(steps) != 1 || steps[0].State != "RUNNING" {
			t.Errorf("the step has suffered: %+v", steps)
		}
		if r := n.ctl(t, "cancel", step.id()); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		if r := p.wait(t); r.code != 143 {
			t.Errorf("run: %v", r)
		}
	})
	t.Run("connections that say nothing", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sleep", "1000"}})
		step := n.running(t)
		for range 20 {
			c, err := net.Dial("unix", n.socket())
			must(t, err)
			defer c.Close()
		}
		if r := n.ctl(t, "cancel", step.id()); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		p.wait(t)
		n.checkClean(t)
	})
}
