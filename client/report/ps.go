package report

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/terminal"
	"stepd/internal/printable"
	"stepd/step"
)

// PSCommand is the verb ps.
func PSCommand(d *client.Dialer) *cobra.Command {
	var all, asJSON bool
	c := &cobra.Command{
		Use: "ps [JOB[.STEP]...]", Short: "list the steps of this node, or these",
		RunE: func(_ *cobra.Command, args []string) error {
			if asJSON {
				return client.PrintList(os.Stdout, "steps", listing(d, args, all, (*api.Client).List))
			}
			node, err := nodeOf(d)
			if err != nil {
				return err
			}
			l, err := list(node, listing(d, args, all, (*api.Client).Overview), args, time.Now(), uint32(os.Getuid()))
			if err != nil {
				return err
			}
			columns, _ := terminal.ScreenSize(os.Stdout)
			return l.write(os.Stdout, columns)
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "ended steps as well")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

// nodeOf is the node document.
func nodeOf(d *client.Dialer) (*api.Node, error) {
	doc, err := client.Ask(d, func(ctx context.Context, noded *api.Client) (json.RawMessage, error) { return noded.Node(ctx) })
	if err != nil {
		return nil, err
	}
	return parseNode(doc)
}

// listing yields the steps that args name, running or ended, or all that run, and those that have
// ended where all is true. An error is the last pair.
func listing(d *client.Dialer, args []string, all bool, list func(*api.Client, context.Context, bool) iter.Seq2[*step.Record, error]) iter.Seq2[*step.Record, error] {
	if len(args) == 0 {
		return client.Stream(d, func(ctx context.Context, noded *api.Client) iter.Seq2[*step.Record, error] {
			return list(noded, ctx, all)
		})
	}
	return func(yield func(*step.Record, error) bool) {
		for _, a := range args {
			ref, err := client.ParseRef(a)
			var recs []*step.Record
			if err == nil {
				recs, err = client.Ask(d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) { return noded.Show(ctx, ref) })
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, rec := range recs {
				if !yield(rec, nil) {
					return
				}
			}
		}
	}
}

// psList is the table of ps.
type psList struct {
	rows  []psRow
	table table
	hints []string // what to do now, where something is wrong
}

// psRow is a line, at the place of its number.
type psRow struct {
	id    step.ID
	first bool // the job's own line
	cells []string
}

// list are the lines of recs, of the jobs of the node that args, or none, name, and of what waits, and
// what caller may do about what is wrong.
func list(node *api.Node, recs iter.Seq2[*step.Record, error], args []string, now time.Time, caller uint32) (*psList, error) {
	l := &psList{}
	seen, prologs := make(map[uint32]bool), make(map[uint32]bool)
	var failed *step.Record // the last one that did
	for i := range node.Jobs {
		prologs[node.Jobs[i].ID] = node.Jobs[i].Doing == "prolog"
	}
	for rec, err := range recs {
		if err != nil {
			return nil, err
		}
		seen[rec.ID.Job] = seen[rec.ID.Job] || !rec.State.Final()
		if rec.State.Final() && rec.State != step.Completed && rec.State != step.Cancelled && (caller == 0 || rec.UID == caller) && (failed == nil || later(rec.Ended, failed.Ended)) {
			failed = rec
		}
		what := doing(rec, now)
		if rec.State == step.Starting && prologs[rec.ID.Job] {
			what = "(prolog)"
		}
		l.rows = append(l.rows, psRow{id: rec.ID, cells: []string{
			rec.ID.Name(), rec.Name, rec.User, client.StateWord(rec), strconv.Itoa(rec.NTasks), ElapsedAt(rec, now), what,
		}})
	}
	for i := range node.Jobs {
		j := &node.Jobs[i]
		named := len(args) == 0 || slices.Contains(args, strconv.FormatUint(uint64(j.ID), 10))
		if j.Origin != step.OriginAlloc && !seen[j.ID] && len(j.Steps) > 0 {
			j.State = string(step.Completing) // noded was asked for the node first: its steps have ended since
		}
		if named && (j.Origin == step.OriginAlloc || !seen[j.ID]) {
			l.rows = append(l.rows, psRow{id: step.ID{Job: j.ID}, first: true, cells: jobCells(j, now)})
		}
	}
	slices.SortStableFunc(l.rows, func(a, b psRow) int {
		return cmp.Or(cmp.Compare(a.id.Job, b.id.Job), -compareBools(a.first, b.first), cmp.Compare(a.id.Step, b.id.Step))
	})
	if len(args) == 0 {
		for i := range node.Waiting {
			w := &node.Waiting[i]
			l.rows = append(l.rows, psRow{cells: []string{"-", w.Name, w.User, "WAITING", strconv.Itoa(w.NTasks), clock(now.Sub(w.Since)), "(" + w.For + ")"}})
		}
	}
	if failed != nil {
		l.hints = append(l.hints, "stepctl explain "+failed.ID.Name()+" says why the last one failed, and what to do")
	}
	if len(args) == 0 && (node.State == "DRAINING" || node.State == "DRAINED") {
		l.hints = append(l.hints, fmt.Sprintf("node %s is %s and takes no more jobs: stepctl node status says why", node.Name, node.State))
	}
	return l, nil
}

// later reports whether a is known, and not before b.
func later(a, b *time.Time) bool { return a != nil && (b == nil || !a.Before(*b)) }

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// doing is the command of a step that runs or has done its work, and the reason of one that waits or
// has not.
func doing(rec *step.Record, now time.Time) string {
	switch {
	case rec.Suspended != nil && !rec.State.Final():
		return "(since " + clockAt(*rec.Suspended, now) + ", " + suspender(rec) + ")"
	case rec.State == step.Pending && rec.Reason == "":
		return "(its client has not launched it yet)"
	case rec.State == step.Running, rec.State == step.Completed, rec.Reason == "":
		return strings.Join(rec.Command, " ")
	}
	return "(" + rec.Reason + ")"
}

// clockAt is the local time of t to the minute, with its date where that is not now's.
func clockAt(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Year() != now.Year() || t.YearDay() != now.YearDay() {
		return t.Format("2006-01-02T15:04")
	}
	return t.Format("15:04")
}

// suspender is who has suspended a step.
func suspender(rec *step.Record) string {
	switch by := rec.SuspendedBy; {
	case by == nil:
		return "by a signal"
	case *by == 0:
		return "by root"
	case *by == rec.UID:
		return "by its user"
	default:
		return fmt.Sprintf("by uid %d", *by)
	}
}

// jobCells is the line of a job.
func jobCells(j *api.NodeJob, now time.Time) []string {
	state, since := cmp.Or(j.State, string(step.Running)), "-"
	if j.Suspended != nil {
		state = "SUSPENDED"
	}
	if j.Started != nil {
		since = clock(now.Sub(*j.Started))
	}
	tasks := "-"
	if j.NTasks > 0 {
		tasks = strconv.Itoa(j.NTasks)
	}
	return []string{strconv.FormatUint(uint64(j.ID), 10), j.Name, j.User, state, tasks, since, "(" + holding(j) + ")"}
}

// holding is what a job does beside its steps.
func holding(j *api.NodeJob) string {
	what := "no step"
	switch {
	case j.Doing != "":
		what = j.Doing
	case j.Origin == step.OriginAlloc:
		what = "allocation"
	case j.State == string(step.Completing):
		what = "it ends"
	}
	return fmt.Sprintf("%s, CPUs %s", what, j.CPUs)
}

// write prints the table in lines of at most columns, 0 of any length.
func (l *psList) write(w io.Writer, columns int) error {
	const command = "COMMAND (REASON)"
	l.table = table{columns: []column{
		{head: "STEP"}, {head: "NAME", least: 8, spare: 3}, {head: "USER", least: 8, spare: 1}, {head: "STATE"},
		{head: "TASKS", right: true, spare: 4}, {head: "TIME", right: true}, {head: command, least: 16, spare: 2},
	}, whole: func(cell string) bool { return strings.HasPrefix(cell, "(") }}
	for _, r := range l.rows {
		cells := slices.Clone(r.cells)
		if columns > 0 { // what no screen bounds is whole
			cells[1] = printable.Line(cells[1], max(16, columns/5))
			cells[6] = printable.Line(cells[6], 400)
		}
		l.table.add(cells...)
	}
	text, left := l.table.text(columns)
	if i := slices.Index(left, command); i >= 0 {
		left[i] = "COMMAND" // reasons have lines of their own
	}
	text += leftOut(left, columns)
	for _, hint := range l.hints {
		if columns > 0 { // the rows alone are for programs
			text += printable.Wrap("("+printable.Line(hint, 400)+")", "  ", "  ", columns) + "\n"
		}
	}
	_, err := io.WriteString(w, text)
	return err
}
