package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// absent is the value of a field that a record does not have.
const absent = "-"

// asInBase is the cell of a file whose fact is the same as in the base.
const asInBase = "="

// table holds facts: column (actor, callback and task), field, value.
type table struct {
	columns []string                     // in the order of the calls
	fields  map[string]map[string]string // field, column
}

// add makes a column, even where no field is set.
func (f *table) add(column string) {
	if !slices.Contains(f.columns, column) {
		f.columns = append(f.columns, column)
	}
}

func (f *table) set(column, field, value string) {
	if f.fields == nil {
		f.fields = map[string]map[string]string{}
	}
	if f.fields[field] == nil {
		f.fields[field] = map[string]string{}
	}
	f.add(column)
	f.fields[field][column] = value
}

func (f *table) get(column, field string) string {
	if v, ok := f.fields[field][column]; ok {
		return v
	}
	return absent
}

func (f *table) allFields() []string {
	var fields []string
	for field := range f.fields {
		fields = append(fields, field)
	}
	slices.Sort(fields)
	return fields
}

// without is the table less one column.
func (f *table) without(column string) *table {
	out := &table{}
	for field, row := range f.fields {
		for c, value := range row {
			if c != column {
				out.set(c, field, value)
			}
		}
	}
	return out
}

// traceFile is where the facts of a trace are kept: a row is a field, a column
// a callback. The first cell is "field", or "field of BASE and" where a cell "="
// and a missing row say that the fact is the same in the trace BASE.
func traceFile(trace string) string { return filepath.Join("testdata", "traces", trace+".tsv") }

const basePrefix, baseSuffix = "field of ", " and"

// write stores the table, as its differences from base where that is not "".
func (f *table) write(t testing.TB, trace, base string) {
	t.Helper()
	var b strings.Builder
	from := &table{}
	if b.WriteString("field"); base != "" {
		from = readTrace(t, base)
		b.WriteString(strings.TrimPrefix(basePrefix, "field") + base + baseSuffix)
	}
	for _, c := range f.columns {
		b.WriteString("\t" + c)
	}
	fields := append(f.allFields(), from.allFields()...)
	slices.Sort(fields)
	for _, field := range slices.Compact(fields) {
		row, differs := "\n"+field, false
		for _, c := range f.columns {
			cell := f.get(c, field)
			if strings.ContainsAny(cell, "\t\n") || cell == asInBase {
				t.Fatalf("%s: %s: %q does not fit into a cell", c, field, cell)
			}
			if base != "" && cell == from.get(c, field) {
				row += "\t" + asInBase
				continue
			}
			row, differs = row+"\t"+cell, true
		}
		if differs {
			b.WriteString(row)
		}
	}
	must(t, os.MkdirAll(filepath.Dir(traceFile(trace)), 0o755))
	must(t, os.WriteFile(traceFile(trace), []byte(b.String()+"\n"), 0o644))
}

// readTrace reads what write has stored.
func readTrace(t testing.TB, trace string) *table {
	t.Helper()
	rows := readTSV(t, traceFile(trace))
	f, from := &table{columns: rows[0][1:]}, &table{}
	if base, ok := strings.CutPrefix(rows[0][0], basePrefix); ok {
		from = readTrace(t, strings.TrimSuffix(base, baseSuffix))
	}
	told := map[string][]string{}
	for _, row := range rows[1:] {
		told[row[0]] = row[1:]
	}
	fields := from.allFields()
	for field := range told {
		fields = append(fields, field)
	}
	for _, field := range fields {
		for i, c := range f.columns {
			cell := asInBase
			if row := told[field]; row != nil {
				cell = row[i]
			}
			if cell == asInBase {
				cell = from.get(c, field)
			}
			if cell != absent {
				f.set(c, field, cell)
			}
		}
	}
	return f
}

// readTSV reads a file of rows that all have as many cells as the first.
func readTSV(t testing.TB, path string) [][]string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	var rows [][]string
	for i, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		cells := strings.Split(line, "\t")
		if len(rows) > 0 && len(cells) != len(rows[0]) {
			t.Fatalf("%s:%d: %d cells, want %d", path, i+1, len(cells), len(rows[0]))
		}
		rows = append(rows, cells)
	}
	return rows
}
