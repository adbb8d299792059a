package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// jsonLog makes noded's log one of JSON lines.
var jsonLog = []string{"sh", "-c", `exec "$@" --log-format json`, "sh"}

// page asks noded's metrics socket.
func (n *node) page(t testing.TB, path string) (code int, text string) {
	t.Helper()
	client := http.Client{Timeout: callTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.run, "metrics.sock"))
		},
	}}
	r, err := client.Get("http://noded" + path)
	must(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, string(b)
}

// leaveStep leaves a process, a cgroup and a socket of step 1.0, which has ended, where step
// like has its own. The returned channel gets the end of the process.
func (n *node) leaveStep(t testing.TB, like stepDoc) <-chan error {
	t.Helper()
	own := fmt.Sprintf("/job_%d/", like.JobID)
	dir := ""
	for _, d := range n.cgroups() {
		if strings.Contains(d, own) && filepath.Base(d) == fmt.Sprintf("step_%d", like.StepID) {
			dir = strings.Replace(d, own, "/job_1/", 1) // the last one is v2's
		}
	}
	if dir == "" {
		t.Fatalf("step %s has none of %q", like.id(), n.cgroups())
	}
	must(t, os.MkdirAll(dir, 0o755))
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended where the test has gone well
	must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: n.path("run", "steps", "1.0.sock"), Net: "unixpacket"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	return ended
}

// notReady: /readyz names the reason, and /livez says that noded answers.
func (n *node) notReady(t testing.TB, reason string) {
	t.Helper()
	if code, text := n.page(t, "/readyz"); code != 503 || !strings.Contains(text, reason) {
		t.Errorf("readyz: %d %q, want %q", code, text, reason)
	}
	if code, text := n.page(t, "/livez"); code != 200 || text != "ok\n" {
		t.Errorf("livez: %d %q", code, text)
	}
}

// TestRootMetrics: what happens on a node is on its page, its log is JSON to the last
// line, and /readyz says why no step is taken.
func TestRootMetrics(t *testing.T) {
	n := startNode(t, site{Stepd: "MetricsListen=unix\nUserStepsMax=3\n", Before: jsonLog})
	so := buildRude(t, n)
	n.stack(t, fmt.Sprintf("optional %s hook=task_init rc=-1", so))
	if r := n.ctl(t, "run", "-n", "2", "sh", "-c", "echo 12345; echo oops >&2; exit 3"); r.code != 3 {
		t.Errorf("run: %v", r)
	}
	p := n.start(t, call{args: []string{"run", "sleep", "1000"}})
	id := n.running(t).id()
	if _, text := n.page(t, "/metrics"); !strings.Contains(text, "\nstepd_steps{state=\"RUNNING\"} 1\n") || !strings.Contains(text, "\nstepd_cpus 64\n") {
		t.Errorf("of a step that runs:\n%s", ourLines(text))
	}
	must(t, n.ctlError(t, "cancel", id))
	p.wait(t)
	if r := n.ctlRoot(t, "show", "999.0"); r.code != 1 {
		t.Errorf("show: %v", r)
	}
	want := []string{
		`stepd_steps_ended_total{state="FAILED"} 1`, `stepd_steps_ended_total{state="CANCELLED"} 1`, `stepd_launch_seconds_count 2`,
		`stepd_launch_phase_seconds_count{phase="fork"} 2`, `stepd_kills_total{signal="SIGTERM"} 1`,
		`stepd_stream_bytes_total{stream="stdout"} 12`, `stepd_stream_bytes_total{stream="stderr"} `,
		`stepd_hook_calls_total{hook="task_init",plugin="rude.so"} 3`,
		`stepd_requests_total{code="ok",verb="cancel"} 1`, `stepd_requests_total{code="not_found",verb="show"} 1`,
		`stepd_jobs 0`, `stepd_node_state{state="IDLE"} 1`,
	}
	eventually(t, callTimeout, "the figures of what has happened", func() error {
		_, text := n.page(t, "/metrics")
		for _, line := range want {
			if !strings.Contains(text, "\n"+line) {
				return fmt.Errorf("the page lacks %s:\n%s", line, ourLines(text))
			}
		}
		return nil
	})
	if info, err := os.Stat(filepath.Join(n.run, "metrics.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the page's socket: %v, %v", info.Mode(), err)
	}
	for path, want := range map[string]string{"/livez": "ok\n", "/readyz": "ok\n"} {
		if code, text := n.page(t, path); code != 200 || text != want {
			t.Errorf("%s: %d %q", path, code, text)
		}
	}
	must(t, n.ctlErrorRoot(t, "node", "drain", "a disk is dying"))
	if code, text := n.page(t, "/readyz"); code != 503 || text != "the node is drained: a disk is dying\n" {
		t.Errorf("readyz of a drained node: %d %q", code, text)
	}
	must(t, n.ctlErrorRoot(t, "node", "resume"))
	n.checkUserSteps(t)
	n.checkClean(t)
	checkJSONLog(t, n.wholeLog(t))

	p = n.start(t, call{args: []string{"run", "sleep", "1000"}})
	doc := n.running(t)
	id = doc.id()
	left := n.leaveStep(t, doc)
	n.kill9(t)
	n.boot(t)
	if err := <-left; err == nil || err.Error() != "signal: killed" {
		t.Errorf("what was left of an ended step: %v", err)
	}
	eventually(t, callTimeout, "the figures of what was left", func() error {
		_, text := n.page(t, "/metrics")
		for _, line := range []string{`{kind="step"} 1`, `{kind="file"} 1`, `{kind="process"} 0`, `{kind="script"} 0`} {
			if !strings.Contains(text, "\nstepd_leaks_found_total"+line+"\n") {
				return fmt.Errorf("the page lacks %s:\n%s", line, ourLines(text))
			}
		}
		return nil
	})
	if _, text := n.page(t, "/metrics"); !strings.Contains(text, "\nstepd_adopted_steps_total 1\n") || strings.Contains(text, "\nstepd_adoption_seconds 0\n") {
		t.Errorf("after a restart with a step:\n%s", ourLines(text))
	}
	must(t, n.ctlError(t, "cancel", id))
	p.wait(t)
	n.checkClean(t)
	checkJSONLog(t, n.wholeLog(t))
}

// checkUserSteps: one more step than a user may have is refused with the key's name,
// and others' are not.
func (n *node) checkUserSteps(t *testing.T) {
	t.Helper()
	var held []*process
	for range 3 {
		held = append(held, n.start(t, call{args: []string{"run", "sleep", "1000"}}))
	}
	eventually(t, callTimeout, "three steps", func() error {
		if all := n.ps(t); len(all) != 3 {
			return fmt.Errorf("there are %d", len(all))
		}
		return nil
	})
	if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, "uid 7001 has 3 steps on this node already, the limit (UserStepsMax)") {
		t.Errorf("a fourth step: %v", r)
	}
	if r := n.do(t, call{args: []string{"run", "true"}, uid: bob.uid, dir: "/"}); r.code != 0 {
		t.Errorf("another user's: %v", r)
	}
	for _, s := range n.ps(t) {
		if s.UID == alice.uid { // the other one's may be ending
			must(t, n.ctlErrorRoot(t, "cancel", s.id()))
		}
	}
	for _, p := range held {
		p.wait(t)
	}
}

// ctlError is ctl of a command that must succeed.
func (n *node) ctlError(t testing.TB, args ...string) error {
	t.Helper()
	return failed(args, n.ctl(t, args...))
}

func (n *node) ctlErrorRoot(t testing.TB, args ...string) error {
	t.Helper()
	return failed(args, n.ctlRoot(t, args...))
}

func failed(args []string, r result) error {
	if r.code != 0 {
		return fmt.Errorf("stepctl %q: %v", args, r)
	}
	return nil
}

// ourLines are the lines of a page that are not Go's.
func ourLines(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "stepd_") && !strings.Contains(line, "_bucket{") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// checkJSONLog: every line is one document with a time, a level and a message, and
// with no key that docs/seeing.md does not tell.
func checkJSONLog(t *testing.T, log string) {
	t.Helper()
	doc := readFile(t, "../docs/seeing.md")
	_, doc, _ = strings.Cut(doc, "\n## The log\n")
	told := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(doc, -1) {
		told[m[1]] = true
	}
	lines := bufio.NewScanner(strings.NewReader(log))
	count := 0
	for lines.Scan() {
		count++
		var doc map[string]any
		if err := json.Unmarshal(lines.Bytes(), &doc); err != nil {
			t.Errorf("a line that is no JSON: %s", lines.Text())
			continue
		}
		for key := range doc {
			if !told[key] {
				t.Errorf("docs/seeing.md does not tell of key %q: %s", key, lines.Text())
			}
		}
		at, _ := doc["time"].(string)
		if _, err := time.Parse(time.RFC3339Nano, at); err != nil || doc["level"] == nil || doc["msg"] == nil {
			t.Errorf("a line without time, level or msg: %s", lines.Text())
		}
	}
	if count < 10 {
		t.Errorf("the log has %d lines", count)
	}
}
