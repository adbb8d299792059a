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
