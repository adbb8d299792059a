package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/node"
	"stepd/step"
)

// log is a step's event log as stepd writes it.
const log = `{"time":"2026-11-22T10:00:00Z","event":"request","job_id":1,"step_id":0}
{"time":"2026-11-22T10:00:00.001Z","event":"stage_start","phase":"init"}
{"time":"2026-11-22T10:00:00.003Z","event":"stage_end","phase":"init","dur_us":2000}
{"time":"2026-11-22T10:00:00.0034Z","event":"hooks","names":["/lib/a.so","slurm_spank_init","slurm_spank_task_init","b.so"],"calls":[0,1,-1,0,1000000,0,0,2,0,5,2000000,0,3,2,0,5,3000000,-1,3,2,1,5,-1,0]}
{"time":"2026-11-22T10:00:00.004Z","event":"task_exec","rank":0,"pid":12}
{"time":"2026-11-22T10:00:00.020Z","event":"task_exec","rank":1,"pid":13}
{"time":"2026-11-22T10:00:09Z","event":"kill","signal":15}
{"time":"2026-11-22T10:00:09Z","event":"kill","text":"stepd (pid 3) was killed"}
not JSON at all
{"time":"2026-11-22T10:00:09Z","event":"stage_end","phase":`

func opener(text string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

type figures node.Figures

func (f figures) Figures() node.Figures { return node.Figures(f) }

// site serves the page of m and returns what a GET answers.
func site(t testing.TB, m *Metrics, ready Ready) func(path string) (int, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := m.Serve(l, ready, func(err error) { t.Error(err) })
	t.Cleanup(s.Close)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	return func(path string) (int, string) {
		r, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
}

func always(context.Context) []string { return nil }

func TestCounts(t *testing.T) {
	m := New()
	m.Watch(figures{State: "DRAINED", Steps: map[step.State]int{step.Running: 3}, CPUs: 4, FreeCPUs: 1, Gres: []api.NodeGres{{Name: "gpu", Type: "a", Count: 2, Used: 1}}})
	out := int64(77)
	m.StepEnded(&step.Record{State: step.Failed, StdoutBytes: &out, OOM: make([]step.OOMKill, 2), PluginCrash: &step.PluginCrash{Path: "/lib/b.so"}}, opener(log))
	m.StepEnded(&step.Record{State: step.Completed}, func() (io.ReadCloser, error) { return nil, errors.New("gone") })
	m.Request("run", "ok", 3*time.Millisecond)
	m.Leak(node.LeakFile)
	m.Adopted(5, 250*time.Millisecond)
	_, text := site(t, m, always)("/metrics")
	for _, line := range []string{
		`stepd_steps_ended_total{state="FAILED"} 1`, `stepd_steps_ended_total{state="COMPLETED"} 1`, `stepd_steps_ended_total{state="TIMEOUT"} 0`,
		`stepd_launch_seconds_count 1`, `stepd_launch_seconds_sum 0.02`,
		`stepd_launch_phase_seconds_count{phase="init"} 1`, `stepd_launch_phase_seconds_sum{phase="init"} 0.002`,
		`stepd_hook_calls_total{hook="init",plugin="a.so"} 1`, `stepd_hook_calls_total{hook="task_init",plugin="b.so"} 2`,
		`stepd_hook_seconds_total{hook="task_init",plugin="b.so"} 0.003`, `stepd_hook_failures_total{hook="task_init",plugin="b.so"} 2`,
		`stepd_plugin_crashes_total{plugin="b.so"} 1`, `stepd_oom_kills_total 2`, `stepd_stream_bytes_total{stream="stdout"} 77`,
		`stepd_kills_total{signal="SIGTERM"} 1`, `stepd_kills_total{signal="SIGKILL"} 1`, `stepd_event_logs_unread_total 1`,
		`stepd_requests_total{code="ok",verb="run"} 1`, `stepd_leaks_found_total{kind="file"} 1`, `stepd_leaks_found_total{kind="step"} 0`,
		`stepd_adopted_steps_total 5`, `stepd_adoption_seconds 0.25`,
		`stepd_node_state{state="DRAINED"} 1`, `stepd_node_state{state="IDLE"} 0`, `stepd_steps{state="RUNNING"} 3`, `stepd_steps{state="PENDING"} 0`,
		`stepd_cpus 4`, `stepd_cpus_free 1`, `stepd_gres{name="gpu",type="a"} 2`, `stepd_gres_used{name="gpu",type="a"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the page lacks %s", line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestLabelsAreBounded: whatever the logs say, a page has so many lines.
func TestLabelsAreBounded(t *testing.T) {
	m := New()
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, `{"time":"2026-11-22T10:00:00Z","event":"stage_end","phase":"p%d","dur_us":1}`+"\n", i)
		fmt.Fprintf(&b, `{"time":"2026-11-22T10:00:00Z","event":"hooks","names":["p%d.so","h%d"],"calls":[0,1,-1,0,1,0]}`+"\n", i, i)
		fmt.Fprintf(&b, `{"time":"2026-11-22T10:00:00Z","event":"kill","signal":%d}`+"\n", i)
	}
	m.StepEnded(&step.Record{State: step.Completed}, opener(b.String()))
	_, text := site(t, m, always)("/metrics")
	if n := strings.Count(text, "stepd_launch_phase_seconds_count{"); n != phasesMax+1 {
		t.Errorf("%d phases", n)
	}
	if n := strings.Count(text, "stepd_hook_calls_total{"); n != pluginsMax+1 {
		t.Errorf("%d plugins with hooks", n)
	}
	if n := strings.Count(text, "stepd_kills_total{"); n > 40 {
		t.Errorf("%d signals", n)
	}
	if !strings.Contains(text, fmt.Sprintf(`stepd_hook_calls_total{hook="other",plugin="other"} %d`, 1000-pluginsMax)) {
		t.Error("what is beyond is not counted as other")
	}
}

func TestHealth(t *testing.T) {
	var why []string
	get := site(t, New(), func(context.Context) []string { return why })
	if code, text := get("/livez"); code != 200 || text != "ok\n" {
		t.Errorf("livez: %d %q", code, text)
	}
	if code, text := get("/readyz"); code != 200 || text != "ok\n" {
		t.Errorf("readyz: %d %q", code, text)
	}
	why = []string{"noded is starting", "the node is drained: disk"}
	if code, text := get("/readyz"); code != 503 || text != "noded is starting\nthe node is drained: disk\n" {
		t.Errorf("readyz: %d %q", code, text)
	}
	if code, _ := get("/debug/pprof/"); code != 404 {
		t.Errorf("another page: %d", code)
	}
}

// silent serves a page to which as many clients as may be, and more, are connected and say nothing.
func silent(t *testing.T) (s *Server, clients []net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = New().Serve(l, always, func(err error) { t.Error(err) })
	t.Cleanup(s.Close)
	for range connsMax + 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	return s, clients
}

// TestSilentClientsEnd: a connection that says nothing, or half a request, is closed after two seconds,
// and a client that comes behind as many as may be is served then.
func TestSilentClientsEnd(t *testing.T) {
	began := time.Now()
	_, clients := silent(t)
	if _, err := io.WriteString(clients[1], "GET /livez HTTP/1.1\r\nHost:"); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 10 * time.Second}
	r, err := client.Get("http://" + clients[0].RemoteAddr().String() + "/livez")
	served := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "ok\n" {
		t.Errorf("behind silent clients: %q, %v", b, err)
	}
	const silence, tolerated = 2 * time.Second, 2 * time.Second
	if served < silence || served > silence+tolerated {
		t.Errorf("the client was served after %v: want %v to %v", served, silence, silence+tolerated)
	}
	for i, c := range clients {
		end := began.Add(silence + tolerated)
		if i >= connsMax { // it was taken when one of the others had ended
			end = end.Add(silence)
		}
		_ = c.SetReadDeadline(end)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("silent client %d is connected after %v", i, time.Since(began))
		}
	}
}

// TestSilentClients: connections that say nothing do not hold up Close.
func TestSilentClients(t *testing.T) {
	s, _ := silent(t)
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(readMax - time.Second):
		t.Fatal("the page does not end with silent clients")
	}
}

// TestDocumentation: docs/seeing.md has each metric, and no other.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "seeing.md"))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, match := range regexp.MustCompile("(?m)^\\| `(stepd_\\w+)`").FindAllStringSubmatch(string(text), -1) {
		told = append(told, match[1])
	}
	m := New()
	m.Watch(figures{Gres: []api.NodeGres{{}}})
	out := int64(1)
	m.StepEnded(&step.Record{State: step.Failed, StdoutBytes: &out, PluginCrash: &step.PluginCrash{}}, opener(log))
	m.Request("run", "ok", 0)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "stepd_") {
			have = append(have, f.GetName())
		}
	}
	for _, name := range have {
		if !slices.Contains(told, name) {
			t.Errorf("docs/seeing.md lacks %s", name)
		}
	}
	for _, name := range told {
		if !slices.Contains(have, name) {
			t.Errorf("docs/seeing.md tells of %s, and there is none", name)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(log))
	m := New()
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = m.read(strings.NewReader(string(b))) // a line that is too long
		if len(m.phase.known) > phasesMax || len(m.plugin.known) > pluginsMax {
			t.Fatalf("%d phases, %d plugins", len(m.phase.known), len(m.plugin.known))
		}
	})
}
