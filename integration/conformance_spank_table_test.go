package integration

import (
	"fmt"
	"slices"
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

// variant is one way in which the callback of a row fails.
type variant struct {
	flag   string
	rc     int
	strict bool
}

func (r ruling) name(v variant) string {
	return fmt.Sprintf("%s=%d, %s, %s%s", r.callback, v.rc, v.flag, r.command, map[bool]string{true: ", strict"}[v.strict])
}

// failure is the case of a row: the callback fails in the row's context alone.
func (r ruling) failure(v variant) failure {
	ctx := map[string]int{"local": 1, "remote": 2, "allocator": 3}[r.context]
	return failure{
		command: r.command, tasks: 1,
		stack: fmt.Sprintf("%s PLUGINS/probe.so tag=A lite fail=%s=%d@%d\n", v.flag, r.callback, v.rc, ctx),
	}
}

// expect is what the table says of a variant: an optional plugin's failure
// changes nothing, and of a required one's only a negative code is fatal. With
// SpankStrict=yes no fatal one ends with 0, and the job has failed.
func (r ruling) expect(v variant) (code string, drains, fails bool) {
	switch {
	case v.flag == "optional" || v.rc > 0:
		return "0", false, false
	case v.strict && r.code == "0":
		return "1", r.drains, true
	}
	return r.code, r.drains, r.fails
}

// TestRootConformanceFailureTable runs the failure table of spank(8) row by row, for
// required and optional plugins and for negative and positive codes, and its
// required and negative half under SpankStrict=yes.
func TestRootConformanceFailureTable(t *testing.T) {
	t.Parallel()
	rows := readSpankTable(t)
	if len(rows) != 25 {
		t.Fatalf("%d rows in the failure table, want 25", len(rows))
	}
	r := newReport(t, "spank_table")
	for conf, variants := range map[string][]variant{
		"":                  {{"required", -1, false}, {"required", 1, false}, {"optional", -1, false}, {"optional", 1, false}},
		"SpankStrict=yes\n": {{"required", -1, true}, {"optional", -1, true}},
	} {
		cases := map[string]failure{}
		for _, row := range rows {
			for _, v := range variants {
				cases[row.name(v)] = row.failure(v)
			}
		}
		outcomes := newStand(t, conf).run(t, cases)
		for _, row := range rows {
			for _, v := range variants {
				if o := outcomes[row.name(v)]; o != nil {
					row.compare(r, v, o)
				}
			}
		}
	}
	r.end(6 * 25 * 4)
}

// compare compares a variant's outcome with the table.
func (r ruling) compare(to *report, v variant, o *outcome) {
	to.t.Helper()
	name := r.name(v)
	code, drains, fails := r.expect(v)
	yesNo := map[bool]string{true: "yes", false: "no"}
	to.fact(name, name, "exit code", code, o.code)
	to.fact(name, name, "drains node", yesNo[drains], yesNo[strings.HasPrefix(o.node, "drained")])
	to.fact(name, name, "fails job", yesNo[fails], yesNo[o.job != "completed"])
	said := slices.ContainsFunc(slices.Concat(o.says, o.output), func(line string) bool {
		return strings.Contains(line, "probe.so") && strings.Contains(line, fmt.Sprintf("failed with rc=%d", v.rc))
	})
	to.fact(name, name, "names plugin and code", yesNo[v.flag == "required"], yesNo[said])
}
