package integration

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ruling is a row of the failure table of spank(8): what the failure of a
// required plugin's callback does to a command. Where it and a measurement
// differ, the table wins.
type ruling struct {
	command, callback, context, code string
	drains, fails                    bool
}

type spankTable []ruling

func readSpankTable(t testing.TB) spankTable {
	t.Helper()
	var rows spankTable
	for _, cells := range readTSV(t, traceFile("spank_table"))[1:] {
		rows = append(rows, ruling{
			command: cells[0], callback: cells[1], context: cells[2], code: cells[3],
			drains: cells[4] == "yes", fails: cells[5] == "yes",
		})
	}
	return rows
}

// overrule replaces what was measured by what the table says.
func (rows spankTable) overrule(name string, o *outcome) {
	for _, r := range rows {
		if name != r.callback+"=-1, required, "+r.command {
			continue
		}
		o.code = r.code
		if state, _, _ := strings.Cut(o.node, ": "); (state == "drained") != r.drains {
			o.node = map[bool]string{true: "drained", false: "idle"}[r.drains]
		}
		switch {
		case r.fails && o.job == "completed":
			o.job = "failed"
		case !r.fails && o.job == "failed":
			o.job = "completed"
		}
	}
}

// ending is what a command and its step end with.
type ending struct {
	code, record string // the step's state, "none": there is no step
	drains       bool
	ran          string
}

// returned is a row of testdata/returns.tsv: a command, a hook in a context, and what a code
// other than 0 of a required plugin does there. The table in docs/spank.md says the same.
type returned struct {
	command, callback, context string
	plain, strict              ending
}

func readReturns(t testing.TB) []returned {
	t.Helper()
	var rows []returned
	for _, c := range readTSV(t, "testdata/returns.tsv")[1:] {
		drains := c[5] == "yes"
		rows = append(rows, returned{c[0], c[1], c[2], ending{c[3], c[4], drains, c[6]}, ending{c[7], c[8], drains, c[6]}})
	}
	return rows
}

// well is what a command ends with where nothing has failed.
func well(command string) ending {
	return ending{"0", "COMPLETED", false, map[string]string{"srun": "task", "salloc+srun": "salloccmd,task", "sbatch": "batch"}[command]}
}

// TestReturnsAgreeWithSpank compares testdata/returns.tsv with the failure table of spank(8).
func TestReturnsAgreeWithSpank(t *testing.T) {
	t.Parallel()
	rows := readReturns(t)
	r := newReport(t, "spank_table")
	for _, want := range readSpankTable(t) {
		at := slices.IndexFunc(rows, func(row returned) bool {
			return row.command == want.command && row.callback == want.callback && row.context == want.context
		})
		if at < 0 {
			t.Fatalf("returns.tsv has no row for %s of %s, %s context", want.callback, want.command, want.context)
		}
		name, got := want.command+" "+want.callback, rows[at].plain
		r.fact(name, name, "exit code", want.code, got.code)
		r.fact(name, name, "drains node", yesNo(want.drains), yesNo(got.drains))
		r.fact(name, name, "fails job", yesNo(want.fails), yesNo(got.record != "COMPLETED"))
	}
	r.end(3 * 25)
}

// TestReturnsAreDocumented compares testdata/returns.tsv with the table in docs/spank.md.
func TestReturnsAreDocumented(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(readFile(t, "../docs/spank.md"), "| hook (context) |")
	table, _, _ = strings.Cut(table, "\n\n")
	cells := map[string]string{} // by command, hook and context
	for _, line := range strings.Split(table, "\n")[2:] {
		columns := strings.Split(strings.Trim(line, "| "), " |")
		hooks, context, _ := strings.Cut(strings.TrimSuffix(columns[0], ")"), " (")
		for i, command := range []string{"srun", "salloc+srun", "sbatch"} {
			for hook := range strings.SplitSeq(hooks, ", ") {
				if i+1 < len(columns) && strings.TrimSpace(columns[i+1]) != "" {
					cells[command+" "+hook+" "+context] = strings.ReplaceAll(strings.TrimSpace(columns[i+1]), "**", "")
				}
			}
		}
	}
	for _, r := range readReturns(t) {
		key, want := r.command+" "+r.callback+" "+r.context, r.plain.code+" "+r.plain.record
		if r.plain.record == "none" {
			want = r.plain.code + ", no step"
		}
		if r.plain.drains {
			want += ", drained"
		}
		if cells[key] != want {
			t.Errorf("docs/spank.md: %s: %q, want %q", key, cells[key], want)
		}
		delete(cells, key)
	}
	if len(cells) > 0 {
		t.Errorf("docs/spank.md has what returns.tsv has not: %v", cells)
	}
}

func yesNo(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }

// variant is one way in which the hook of a row fails.
type variant struct {
	flag   string
	rc     int
	strict bool
}

func (r returned) name(v variant) string {
	return fmt.Sprintf("%s=%d, %s, %s, %s%s", r.callback, v.rc, v.flag, r.command, r.context, map[bool]string{true: ", strict"}[v.strict])
}

// failure is the case of a row: the hook fails in the row's context alone.
func (r returned) failure(v variant) failure {
	ctx := map[string]int{"local": 1, "remote": 2, "allocator": 3, "job_script": 5}[r.context]
	return failure{
		command: r.command, tasks: 2,
		stack: fmt.Sprintf("%s PLUGINS/probe.so tag=A lite fail=%s=%d@%d\n", v.flag, r.callback, v.rc, ctx),
	}
}

// variants are the failures of a row: every code has the same result, and is tried with run.
func (r returned) variants(strict bool) []variant {
	all := []variant{{"required", -1, strict}, {"required", 3000, strict}, {"optional", -1, strict}}
	if !strict {
		all = append(all, variant{"optional", 1, false})
	}
	if r.command == "srun" {
		all = append(all, variant{"required", 1, strict}, variant{"required", math.MinInt32, strict}, variant{"optional", math.MinInt32, strict})
	}
	return all
}

// TestRootConformanceFailureTable runs testdata/returns.tsv row by row, with codes below and
// above 0, of required and of optional plugins, with and without SpankStrict=yes. The step's
// record says what the command's code says, and an optional plugin costs a warning.
func TestRootConformanceFailureTable(t *testing.T) {
	t.Parallel()
	rows := readReturns(t)
	for conf, strict := range map[string]bool{"": false, "SpankStrict=yes\n": true} {
		cases, checks := map[string]failure{}, map[string]func(*testing.T, *outcome){}
		for _, row := range rows {
			for _, v := range row.variants(strict) {
				name := row.name(v)
				cases[name] = row.failure(v)
				checks[name] = func(t *testing.T, o *outcome) { row.check(t, v, o) }
			}
		}
		outcomes := newStand(t, conf).run(t, cases)
		for name, check := range checks {
			if o := outcomes[name]; o != nil { // else the case has failed
				t.Run(name, func(t *testing.T) { check(t, o) })
			}
		}
	}
}

// check compares a variant's outcome with the row.
func (r returned) check(t *testing.T, v variant, o *outcome) {
	want := r.plain
	switch {
	case v.flag == "optional":
		want = well(r.command)
	case v.strict:
		want = r.strict
	}
	got := ending{o.code, "none", strings.HasPrefix(o.node, "drained"), o.ran}
	if o.record != nil {
		got.record = o.record.State
	}
	if got != want {
		t.Errorf("exit code, record, drains, ran: %v, want %v; it says %q, %q", got, want, o.says, o.output)
	}
	// An alloc has no record: its steps have theirs, of their own ends.
	if o.record != nil && o.record.ExitCode != nil && !(r.command == "salloc+srun" && r.context == "allocator") {
		if code := strconv.Itoa(*o.record.ExitCode); code != o.code || (code == "0") != (got.record == "COMPLETED") {
			t.Errorf("exit code %s, and the record is %s with %s", o.code, got.record, code)
		}
	}
	if got.record == "COMPLETED" && o.ran == "no" && !strings.Contains(o.record.Reason, "probe.so") {
		t.Errorf("the reason of a step that did not run does not name the plugin: %q", o.record.Reason)
	}
	r.checkWords(t, v, o)
}

// checkWords looks for the line that names plugin, hook and code.
func (r returned) checkWords(t *testing.T, v variant, o *outcome) {
	line := fmt.Sprintf("spank: %s plugin probe.so: %s() failed with rc=%d", v.flag, r.callback, v.rc)
	told := 0
	for _, said := range slices.Concat(o.says, o.output) {
		if strings.Contains(said, line) {
			told++
		}
	}
	logged := strings.Count(o.log, line)
	remote := r.context == "remote"
	switch {
	case v.flag == "required": // the user, or where the user has no part in it, the node
		if told == 0 && logged == 0 {
			t.Errorf("no %q: %q, %q, %s", line, o.says, o.output, o.log)
		}
	case told != 1 && r.context != "job_script":
		t.Errorf("the user is warned %d times: %q, %q", told, o.says, o.output)
	case logged != 1 && (remote || r.context == "job_script"):
		t.Errorf("noded's log has it %d times: %s", logged, o.log)
	}
}
