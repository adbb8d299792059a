package report

import (
	"slices"
	"strings"

	"stepd/internal/printable"
)

// column is one column of a table.
type column struct {
	head  string
	right bool // to the right, as figures are
	// spare is how early the column is left out where the table is too wide: the highest goes
	// first, 0 stays.
	spare int
	// least is what the column may be cut to where the table is too wide; 0 is that it stays whole.
	least int
}

// table are rows of texts below their columns.
type table struct {
	columns []column
	rows    [][]string
	left    string // before each line
	// whole reports which texts of the last column have a line of their own where they would be cut.
	whole func(cell string) bool
}

// add adds a row, of which nothing moves the cursor.
func (t *table) add(cells ...string) {
	for i := range cells {
		cells[i] = printable.Line(cells[i], 0)
	}
	t.rows = append(t.rows, cells)
}

// dropUnknown takes out the columns that may be left out and that have nothing but "-", where the
// table is for a screen.
func (t *table) dropUnknown(columns int) {
	for i := len(t.columns) - 1; columns > 0 && i >= 0; i-- {
		known := func(row []string) bool { return row[i] != "-" && row[i] != "" }
		if t.columns[i].spare == 0 || slices.ContainsFunc(t.rows, known) {
			continue
		}
		t.columns = slices.Delete(t.columns, i, i+1)
		for n, row := range t.rows {
			t.rows[n] = slices.Delete(row, i, i+1)
		}
	}
}

// text is the table in lines of at most room columns, 0 of any length. Columns that are too wide are
// cut, the first ones first; where that is not enough, others are left out, whose heads it returns.
func (t *table) text(room int) (text string, left []string) {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = printable.Width(c.head)
		for _, row := range t.rows {
			widths[i] = max(widths[i], printable.Width(row[i]))
		}
	}
	total := printable.Width(t.left) - len(gap)
	for _, w := range widths {
		total += w + len(gap)
	}
	gap := gap
	if room > 0 && total > room { // one blank is enough
		total -= len(widths) - 1
		gap = " "
	}
	for i := 0; i < len(widths) && room > 0 && total > room; i++ {
		if least := t.columns[i].least; least > 0 && widths[i] > least {
			cut := min(widths[i]-least, total-room)
			widths[i] -= cut
			total -= cut
		}
	}
	out := make(map[int]bool)
	for room > 0 && total > room {
		first := -1
		for i, c := range t.columns {
			if !out[i] && c.spare > 0 && (first < 0 || c.spare > t.columns[first].spare) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		out[first] = true
		total -= widths[first] + len(gap)
	}
	var b strings.Builder
	line := func(cells []string) {
		last, below := len(cells)-1, ""
		if t.whole != nil && t.whole(cells[last]) && (out[last] || printable.Width(cells[last]) > widths[last]) {
			below = printable.Wrap(cells[last], "    ", "    ", room)
			cells = slices.Concat(cells[:last], []string{""})
		}
		words := make([]string, 0, len(cells))
		for i, cell := range cells {
			switch {
			case out[i]:
			case t.columns[i].right:
				words = append(words, strings.Repeat(" ", max(widths[i]-printable.Width(cell), 0))+cell)
			default:
				words = append(words, printable.Pad(cell, widths[i]))
			}
		}
		s := t.left + strings.TrimRight(strings.Join(words, gap), " ")
		if room > 0 {
			s = printable.Fit(s, room)
		}
		b.WriteString(s + "\n")
		if below != "" {
			b.WriteString(below + "\n")
		}
	}
	heads := make([]string, len(t.columns))
	for i, c := range t.columns {
		heads[i] = c.head
		if out[i] {
			left = append(left, c.head)
		}
	}
	line(heads)
	for _, row := range t.rows {
		line(row)
	}
	return b.String(), left
}

// gap is between two columns.
const gap = "  "
