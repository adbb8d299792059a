package report

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

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
	many := strings.TrimSuffix(strings.Repeat(one+",", waitsMax+2), ",")
	for _, c := range []struct {
		name, waits string
		steps       int
		want        string
	}{
		{"no step, nothing waits", others, 0, "job 12  has no step yet\n  stepctl run --jobid 12 COMMAND starts one\n"},
		{"a step, nothing waits", others, 1, ""},
		{"no step, one waits", others + "," + one, 0, "job 12  has no step yet\n  waits: a?[2J日本, 4 tasks, waits since 2026-11-22T10:00:00Z for CPUs 0-3: step\n  12.0 has them until 10:05:00\n"},
		{"many wait", many, 1, strings.Repeat("  waits: a?[2J日本, 4 tasks, waits since 2026-11-22T10:00:00Z for CPUs 0-3: step\n  12.0 has them until 10:05:00\n", waitsMax) + "  2 more wait\n"},
	} {
		var b strings.Builder
		err := explainWaits(&b, waiting{doc: fmt.Sprintf(`{"waiting":[%s]}`, c.waits)}, 12, c.steps, 80)
		if err != nil || b.String() != c.want {
			t.Errorf("%s: %v: got\n%s\nwant\n%s", c.name, err, b.String(), c.want)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(line) - 1; n > 80 {
				t.Errorf("%s: a line of %d columns: %s", c.name, n, line)
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
