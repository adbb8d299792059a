package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// The tables of the original's answers: their columns are "callback@context",
// and each shows the first call of a callback in the recording that it was
// made of.

// tableColumn turns a column of a raw table into ours. In a batch job's table
// the remote columns are the script's own step's, except columns for which
// the inner step's call was the first.
func tableColumn(raw string, batch bool) string {
	cb, ctx, _ := strings.Cut(raw, "@")
	actor := actors[int(ctx[0]-'0')]
	if batch && actor == "remote" && cb != "task_exit" && cb != "exit" {
		actor = batchActor
	}
	return actor + ":" + cb
}

// reduceTable names the numbers of a raw table by the recording that it was
// made of.
func reduceTable(t testing.TB, dir, name string, records []record, w *world) *table {
	t.Helper()
	w.learn(records)
	rows := readTSV(t, filepath.Join(dir, name+".tsv"))
	first := map[string]*record{} // it has a column's task
	for i := range records {
		if c := callback(records[i].column()); first[c] == nil {
			first[c] = &records[i]
		}
	}
	out := &table{}
	for _, row := range rows[1:] {
		group, call, _ := strings.Cut(row[0], ".")
		for i, cell := range row[1:] {
			r := first[tableColumn(rows[0][i+1], strings.Contains(name, "sbatch"))]
			rc, value, has := strings.Cut(cell, "=")
			switch {
			case group == "items" && rc == "0" && has:
				if whole := *r.Items[call].V; strings.HasPrefix(whole, value) {
					value = whole // the table has cut it
				}
				value = w.itemValue(call, value)
			case value == "None": // no argument
				has = false
			case has && group == "env":
				variable, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(call, "getenv("), ")"), ",")
				value = w.envValue(r, variable, value)
			}
			if has {
				rc += "=" + value
			}
			out.set(r.column(), row[0], rc)
		}
	}
	return out
}

// tableOf picks the cells of a table from a recording's facts. A raw table has
// no value where a call failed, unless it has cut the value short.
func tableOf(theirs, ours *table) *table {
	out := &table{}
	for field := range theirs.fields {
		for _, c := range theirs.columns {
			value := ours.get(c, field)
			if rc, _, has := strings.Cut(value, "="); has && rc != "0" && rc != "3005" {
				value = rc
			}
			if value != absent {
				out.set(c, field, value)
			}
		}
	}
	return out
}
