package report

import (
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/internal/printable"
	"stepd/step"
)

// fits reports lines that are wider than a screen, or that move its cursor.
func fits(t *testing.T, text string, columns int) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		word := !strings.Contains(strings.TrimSpace(line), " ") // which no line has room for
		if columns > 0 && printable.Width(line) > columns && !word {
			t.Errorf("a line of %d columns on a screen of %d: %q", printable.Width(line), columns, line)
		}
		if strings.ContainsFunc(line, printable.Control) {
			t.Errorf("a line with controls: %q", line)
		}
	}
}

// screenRecords are steps as a node has them, some with names that would move the cursor or take
// two columns a character.
func screenRecords(now time.Time) []*step.Record {
	ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	status := func(code int) *step.ExitStatus { return new(step.ExitStatus(code << 8)) }
	return []*step.Record{
		{ID: step.ID{Job: 12}, Name: "solver", User: "alice", UID: 1000, State: step.Running, NTasks: 64, Started: ago(2*time.Hour + 3*time.Minute), Submitted: *ago(3 * time.Hour), CPUs: "0-63", Node: "n1",
			Command: []string{"./solver", "--mesh=/scratch/alice/a/very/long/path/to/the/mesh/of/the/wing.h5", "--steps=100000"}, MemoryMB: 64000,
			Tasks: []step.Task{{Rank: 0, PID: new(4711), State: step.TaskRunning, CPUSeconds: new(7100.25), MaxRSSBytes: new(int64(64 << 20))}, {Rank: 1, State: step.TaskStarting}}},
		{ID: step.ID{Job: 13, Step: step.BatchStep}, Name: "模拟计算作业\x1b[2J", User: "bob", UID: 1001, State: step.Starting, NTasks: 1, Command: []string{"job.sh"}},
		{ID: step.ID{Job: 24, Step: step.InteractiveStep}, Name: "bash", User: "christopher.longname", UID: 1002, State: step.Running, NTasks: 1, Started: ago(time.Minute), Command: []string{"bash", "-l"}},
		{ID: step.ID{Job: 24, Step: 1}, Name: "preproc", User: "christopher.longname", UID: 1002, Node: "n1", CPUs: "65-68", State: step.Running, Suspended: ago(10 * time.Second), SuspendedBy: new(uint32(0)), NTasks: 4, Started: ago(90 * time.Second), Command: []string{"./preproc"}},
		{ID: step.ID{Job: 25}, Name: "crash", User: "alice", UID: 1000, State: step.Failed, Reason: "task 1: killed by SIGSEGV, core dumped in crash.so+0x1119; the step was ended since --kill-on-bad-exit is set", NTasks: 2, Node: "n1", CPUs: "3-4",
			Submitted: *ago(2 * time.Minute), Started: ago(2 * time.Minute), Ended: ago(time.Minute), ExitCode: new(139), Command: []string{"./crash"},
			Tasks: []step.Task{{Rank: 0, PID: new(5), State: step.TaskExited, Status: status(3)}, {Rank: 1, PID: new(4194303), State: step.TaskExited, Status: new(step.ExitStatus(11 | 0x80))}}},
	}
}

const screenNode = `{"name":"n1","state":"DRAINING","jobs":[
	{"job_id":12,"user":"alice","name":"solver","origin":"run","cpus":"0-63","steps":[0],"state":"RUNNING","ntasks":64},
	{"job_id":13,"user":"bob","name":"x","origin":"batch","cpus":"64","steps":[4294967291],"state":"RUNNING","doing":"prolog","ntasks":1},
	{"job_id":24,"uid":1002,"user":"christopher.longname","name":"interactive","origin":"alloc","cpus":"65-72","memory_mb":700,"gres":"gpu:a100:1","steps":[1],"state":"RUNNING","ntasks":8,"start_time":"2026-11-29T11:30:00Z"},
	{"job_id":26,"uid":1000,"user":"alice","name":"old","origin":"run","cpus":"73","steps":[],"state":"COMPLETING","doing":"epilog","ntasks":1,"start_time":"2026-11-29T11:58:00Z"},
	{"job_id":27,"uid":1000,"user":"alice","name":"last","origin":"run","cpus":"74","steps":[],"state":"COMPLETING","ntasks":1,"start_time":"2026-11-29T11:59:00Z"}],
	"waiting":[{"uid":1001,"user":"bob","name":"big","ntasks":128,"since":"2026-11-29T11:59:00Z","for":"room: it needs 128 CPUs on this node: of its 128 CPUs 54 are free; --overcommit shares them with other steps; free at 14:03 at the latest"},
	{"uid":1001,"user":"bob","name":"big","ntasks":2,"job_id":24,"since":"2026-11-29T11:59:59Z","for":"2 CPUs of job 24"}]}`

// TestMain sets the zone of the goldens' times, before any goroutine reads it: an HTTP server
// that has been closed still does.
func TestMain(m *testing.M) {
	time.Local = time.UTC
	m.Run()
}

// TestScreens: ps and show as people see them, on terminals of three widths and without one.
func TestScreens(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	node := decoded(t, screenNode)
	recs := screenRecords(now)
	each := func(recs []*step.Record) iter.Seq2[*step.Record, error] {
		return func(yield func(*step.Record, error) bool) {
			for _, rec := range recs {
				if !yield(rec, nil) {
					return
				}
			}
		}
	}
	for _, columns := range []int{0, 40, 80, 200} {
		for name, c := range map[string]struct {
			recs []*step.Record
			args []string
		}{
			"ps": {recs, nil}, "ps-job": {recs[2:4], []string{"24"}}, "ps-alloc": {nil, []string{"24"}}, "ps-step": {recs[3:4], []string{"24.1"}},
		} {
			l, err := list(node, each(c.recs), c.args, now, 0)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if err := l.write(&b, columns); err != nil {
				t.Fatal(err)
			}
			fits(t, b.String(), columns)
			if name == "ps" || columns == 80 {
				isGolden(t, fmt.Sprintf("%s-%d", name, columns), b.String())
			}
		}
		var b strings.Builder
		for _, rec := range []*step.Record{recs[0], recs[3], recs[4]} {
			if err := writeStep(&b, rec, columns, now); err != nil {
				t.Fatal(err)
			}
		}
		for _, j := range node.Jobs[2:] {
			if err := writeJob(&b, &j, columns, now); err != nil {
				t.Fatal(err)
			}
		}
		fits(t, b.String(), columns)
		isGolden(t, fmt.Sprintf("show-%d", columns), b.String())
	}
}

// TestPSBetween: a job whose step ends between the two requests of ps does not run without a step.
func TestPSBetween(t *testing.T) {
	node := &api.Node{Jobs: []api.NodeJob{{ID: 1, Origin: step.OriginRun, State: "RUNNING", Steps: []uint32{0}, CPUs: "3"}}}
	l, err := list(node, func(func(*step.Record, error) bool) {}, nil, time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if c := l.rows[0].cells; c[3] != "COMPLETING" || c[6] != "(it ends, CPUs 3)" {
		t.Errorf("%q", c)
	}
}

// TestPSWhole: without a screen ps cuts nothing, and a day that is not today's is in the reason.
func TestPSWhole(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.Local)
	name, command := strings.Repeat("n", 300), strings.Repeat("c", 5000)
	recs := func(yield func(*step.Record, error) bool) {
		_ = yield(&step.Record{ID: step.ID{Job: 1}, Name: name, Command: []string{command}, State: step.Running}, nil) &&
			yield(&step.Record{ID: step.ID{Job: 2}, State: step.Running, Suspended: new(now.Add(-25 * time.Hour))}, nil)
	}
	l, err := list(&api.Node{}, recs, nil, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := l.write(&b, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{name, command + "\n", "(since 2026-11-28T11:00, by a signal)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%.40q is not in ps", want)
		}
	}
}

// TestPSHints: ps says what to do about the last step of the caller's that failed, and about a drained
// node, on a screen alone, and nothing where nothing is wrong.
func TestPSHints(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	ended := func(job uint32, uid uint32, state step.State, after time.Duration) *step.Record {
		return &step.Record{ID: step.ID{Job: job}, UID: uid, State: state, Ended: new(at.Add(after))}
	}
	failed := []*step.Record{ended(1, 7, step.Failed, time.Second), ended(2, 7, step.Timeout, time.Minute), ended(3, 7, step.Cancelled, time.Hour), ended(4, 8, step.NodeFail, time.Hour), ended(5, 7, step.Completed, time.Hour)}
	const drained = "  (node n1 is DRAINED and takes no more jobs: stepctl node status says why)\n"
	for name, c := range map[string]struct {
		recs    []*step.Record
		node    api.Node
		caller  uint32
		columns int
		want    string
	}{
		"a user":           {failed, api.Node{}, 7, 80, "  (stepctl explain 2.0 says why the last one failed, and what to do)\n"},
		"root":             {failed, api.Node{Name: "n1", State: "DRAINED"}, 0, 80, "  (stepctl explain 4.0 says why the last one failed, and what to do)\n" + drained},
		"another user":     {failed, api.Node{Name: "n1", State: "DRAINED"}, 9, 80, drained},
		"no screen":        {failed, api.Node{Name: "n1", State: "DRAINED"}, 0, 0, ""},
		"nothing is wrong": {failed[4:], api.Node{Name: "n1", State: "ALLOCATED"}, 0, 80, ""},
	} {
		l, err := list(&c.node, func(yield func(*step.Record, error) bool) {
			for _, rec := range c.recs {
				if !yield(rec, nil) {
					return
				}
			}
		}, nil, at, c.caller)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := l.write(&b, c.columns); err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(b.String(), "  (")
		if got != strings.TrimPrefix(c.want, "  (") {
			t.Errorf("%s: got %q, want %q", name, b.String(), c.want)
		}
	}
}

func decoded(t *testing.T, doc string) *api.Node {
	t.Helper()
	n, err := parseNode([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
