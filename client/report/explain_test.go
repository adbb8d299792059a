package report

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/explain"
)

// waiting is a source with a node's document alone.
type waiting struct {
	source
	doc string
}

func (w waiting) node() (*api.Node, error) {
	node := new(api.Node)
	return node, json.Unmarshal([]byte(w.doc), node)
}

// TestExplainWaits: a job without a step says so, and what of it waits says for what.
func TestExplainWaits(t *testing.T) {
	const one = `{"user":"al","name":"a\u001b[2J日本","ntasks":4,"job_id":12,"since":"2026-11-22T10:00:00Z","for":"CPUs 0-3: step 12.0 has them until 10:05:00"}`
	others := `{"job_id":null,"for":"x"},{"job_id":13,"for":"x"}`
	const jobs = `"jobs":[{"job_id":12,"doing":"","start_time":"2026-11-22T10:00:00Z"},{"job_id":14,"doing":"prolog","start_time":"2026-11-22T10:00:00Z"},{"job_id":15,"doing":"prolog"}]`
	many := strings.TrimSuffix(strings.Repeat(one+",", waitsMax+2), ",")
	const waits = "  waits: for CPUs 0-3: step 12.0 has them until 10:05:00\n    stepctl ps 12 shows who has them; a?[2J日本, 4 tasks, waits for 1m5s\n"
	const bound = "    PrologEpilogTimeout in slurm.conf bounds it; stepctl cancel 14 ends it\n"
	for _, c := range []struct {
		name, waits string
		job         uint32
		steps       int
		want        string
	}{
		{"no step, nothing waits", others, 12, 0, "job 12  has no step yet\n  stepctl run --jobid 12 COMMAND starts one\n"},
		{"a step, nothing waits", others, 12, 1, ""},
		{"no step, one waits", others + "," + one, 12, 0, "job 12  has no step yet\n" + waits},
		{"many wait", many, 12, 1, strings.Repeat(waits, waitsMax) + "  2 more wait\n"},
		{"its prolog runs", others, 14, 0, "job 14  has no step yet\n  prolog: the job waits for its prolog, which runs for 1m5s\n" + bound},
		{"its prolog runs, of an older noded", others, 15, 0, "job 15  has no step yet\n  prolog: the job waits for its prolog\n" + strings.ReplaceAll(bound, "14", "15")},
	} {
		for _, width := range []int{0, 40, 80, 200} {
			var b strings.Builder
			now := time.Date(2026, 11, 22, 10, 1, 5, 0, time.UTC)
			err := explainWaits(&b, waiting{doc: fmt.Sprintf(`{"waiting":[%s],%s}`, c.waits, jobs)}, c.job, c.steps, width, now)
			fits(t, b.String(), width)
			got, want := b.String(), c.want
			if width == 40 { // the same words, in more lines
				got, want = strings.Join(strings.Fields(got), " "), strings.Join(strings.Fields(want), " ")
			}
			if err != nil || got != want {
				t.Errorf("%s, on %d columns: %v: got\n%s\nwant\n%s", c.name, width, err, got, want)
			}
		}
	}
}

// TestExplainRequests: of a request without a number, who has made it, what for it waits, and what to do
// are a line each.
func TestExplainRequests(t *testing.T) {
	since := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	now := since.Add(65 * time.Second)
	room := api.NodeWaiting{Name: "big\x1b[2J", User: "bob", NTasks: 128, Since: since, For: "room: it needs 128 CPUs on this node: of its 128 CPUs 54 are free; --overcommit shares them with other steps; free at 14:03 at the latest"}
	inJob := api.NodeWaiting{Name: "small", User: "al", NTasks: 1, JobID: new(uint32(12)), Since: since, For: "its turn: 1 request waits before it"}
	for _, c := range []struct {
		waits []api.NodeWaiting
		width int
		want  string
	}{
		{nil, 80, "no request waits: stepctl explain JOB[.STEP] explains a step\n"},
		{[]api.NodeWaiting{room, inJob}, 80, `request big?[2J of bob, 128 tasks: WAITING for 1m5s, without a number yet
  waits: for room: it needs 128 CPUs on this node: of its 128 CPUs 54 are …
    stepctl ps shows who has it; Ctrl-C in its terminal gives up
    … free; --overcommit shares them with other steps; free at 14:03 at the
    latest
request small of al, 1 task: WAITING for 1m5s, without a number yet
  waits: for its turn: 1 request waits before it
    stepctl ps 12 shows who has it; Ctrl-C in its terminal gives up
`},
	} {
		var b strings.Builder
		if err := writeRequests(&b, c.waits, c.width, now); err != nil {
			t.Fatal(err)
		}
		fits(t, b.String(), c.width)
		if got := b.String(); got != c.want {
			t.Errorf("on %d columns: got\n%s\nwant\n%s", c.width, got, c.want)
		}
	}
	for _, width := range []int{0, 40, 200} {
		var b strings.Builder
		if err := writeRequests(&b, []api.NodeWaiting{room, inJob}, width, now); err != nil {
			t.Fatal(err)
		}
		fits(t, b.String(), width)
	}
	var b strings.Builder
	many := make([]api.NodeWaiting, waitsMax+2)
	if err := writeRequests(&b, many, 80, now); err != nil || strings.Count(b.String(), "WAITING") != waitsMax || !strings.HasSuffix(b.String(), "\n  2 more wait\n") {
		t.Errorf("many: %v: %s", err, b.String())
	}
}

// TestExplainJobDocument: the document of a job has what waits of it, as the text has.
func TestExplainJobDocument(t *testing.T) {
	s := waiting{doc: `{"waiting":[{"job_id":13,"for":"x"},{"job_id":12,"name":"a","ntasks":4,"for":"room"}]}`}
	for _, c := range []struct {
		ref  api.StepRef
		want string
	}{
		{api.StepRef{JobID: 12}, `"waits":[{`}, {api.StepRef{JobID: 14}, `"waits":[]`},
	} {
		var b strings.Builder
		if err := explainJob(&b, s, c.ref, []*explain.Explanation{}); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); !strings.HasPrefix(got, `{"schema":1,"explanations":[],`+c.want) || strings.Contains(got, `"x"`) || (c.ref.JobID == 12) != strings.Contains(got, `"for":"room"`) {
			t.Errorf("job %d: got %s", c.ref.JobID, got)
		}
	}
}
