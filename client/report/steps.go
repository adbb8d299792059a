// Package report is the verbs of stepctl that ask noded once and print the answer for people
// or as JSON (ps, show, stat, explain, events, timeline, node, plugins), and those that ask it
// to act on steps (signal, cancel, suspend, resume, adopt). Each verb is a function that makes
// its command; steps.go has most of them.
package report

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/terminal"
	"stepd/internal/printable"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// elapsed is how long the step has run, or ran, without what it stood still: "2:03".
func elapsed(rec *step.Record) string { return ElapsedAt(rec, time.Now()) }

// ElapsedAt is how long the step has run, or ran, at a time; "-" of one that has not begun.
func ElapsedAt(rec *step.Record, now time.Time) string {
	ran, ok := rec.Ran(now)
	if !ok {
		return "-"
	}
	return clock(ran)
}

// clock is a time as "2:03" or "1:02:03".
func clock(d time.Duration) string {
	s := int(max(d, 0).Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// ShowCommand is the verb show.
func ShowCommand(d *client.Dialer) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show JOB[.STEP]", Short: "show one step, running or ended", Args: cobra.ExactArgs(1),
		RunE: onRef(func(ref api.StepRef) error {
			recs, err := client.Ask(d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) { return noded.Show(ctx, ref) })
			if err == nil && asJSON {
				return printSteps(recs, ref)
			}
			if err != nil {
				return err
			}
			columns, _ := terminal.ScreenSize(os.Stdout)
			if len(recs) == 0 { // of a job that has no step
				return showJob(d, ref.JobID, columns)
			}
			for _, rec := range recs {
				if err := writeStep(os.Stdout, rec, columns, time.Now()); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

// showJob shows a job without steps.
func showJob(d *client.Dialer, job uint32, columns int) error {
	node, err := nodeOf(d)
	if err != nil {
		return err
	}
	for i := range node.Jobs {
		if node.Jobs[i].ID == job {
			return writeJob(os.Stdout, &node.Jobs[i], columns, time.Now())
		}
	}
	return fmt.Errorf("no such job \"%d\"", job) // it has ended meanwhile
}

// printSteps prints the document of one step, or of a job's steps.
func printSteps(recs []*step.Record, ref api.StepRef) error {
	if ref.StepID != nil && len(recs) == 1 {
		return client.PrintJSON("step", recs[0])
	}
	return client.PrintJSON("steps", append([]*step.Record{}, recs...)) // none are an empty list
}

// writeStep prints a step in lines of at most columns, 0 of any length: what it does or how it has
// ended, why, what to do, and the rest.
func writeStep(w io.Writer, rec *step.Record, columns int, now time.Time) error {
	var b strings.Builder
	head := fmt.Sprintf("step %s  %s  %s", rec.ID.Name(), client.StateWord(rec), ElapsedAt(rec, now))
	b.WriteString(fitted(head, columns) + "\n")
	field := fielder(&b, columns)
	writeCause(field, rec, columns)
	field("name", rec.Name, 80)
	field("user", fmt.Sprintf("%s (uid %d)", rec.User, rec.UID), 200)
	field("node", rec.Node+", CPUs "+rec.CPUs, 200)
	if rec.MemoryMB > 0 {
		field("memory", srunopt.FormatMB(rec.MemoryMB), 0)
	}
	field("gres", srunopt.FormatAllocs(rec.Gres), 400)
	field("command", strings.Join(rec.Command, " "), 400)
	when := "submitted " + rec.Submitted.Format(time.RFC3339)
	if rec.Started != nil {
		when = "started " + rec.Started.Format(time.RFC3339)
	}
	if rec.Ended != nil {
		when += ", ended " + rec.Ended.Format(time.RFC3339)
	}
	field("time", when, 0)
	if rec.ExitCode != nil {
		field("exit", strconv.Itoa(*rec.ExitCode), 0)
	}
	if rec.Usage != nil {
		field("used", usedWords(&rec.Usage.Used), 0)
	}
	t := table{left: "  ", columns: []column{
		{head: "RANK", right: true}, {head: "PID", right: true, spare: 3}, {head: "STATE"}, {head: "EXIT", least: 12}, {head: "CPU", right: true, spare: 2}, {head: "MAXRSS", right: true, spare: 1},
	}}
	for i := range rec.Tasks {
		task, exit := &rec.Tasks[i], "-"
		if task.Status != nil {
			exit = task.Status.Describe()
		}
		t.add(strconv.Itoa(task.Rank), Number(task.PID), string(task.State), exit, Seconds(task.CPUSeconds), Size(task.MaxRSSBytes))
	}
	if len(rec.Tasks) > 0 {
		text, left := t.text(columns)
		b.WriteString(text + leftOut(left, columns))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeCause writes why a step stands still or has ended, and what to do, in a line each: the rest of
// a long reason comes after them.
func writeCause(field func(name, text string, room int), rec *step.Record, columns int) {
	if rec.Suspended != nil && !rec.State.Final() {
		field("suspended", "since "+rec.Suspended.Format(time.RFC3339)+" "+suspender(rec), 0)
		field("resume", "stepctl resume "+strconv.FormatUint(uint64(rec.ID.Job), 10), 0)
	}
	reason, _ := launch.CauseFirst(rec.Reason, "")
	reason, rest := printable.First(printable.Line(reason, 400), columns-fieldIndent)
	field("reason", reason, 0)
	if rec.State.Final() && rec.State != step.Completed || rec.NoTaskRan() {
		field("see", "stepctl explain "+rec.ID.Name(), 0)
	}
	field("", rest, 0)
}

// writeJob prints a job that has no step.
func writeJob(w io.Writer, j *api.NodeJob, columns int, now time.Time) error {
	var b strings.Builder
	cells := jobCells(j, now)
	b.WriteString(fitted(fmt.Sprintf("job %s  %s  %s", cells[0], cells[3], cells[5]), columns) + "\n")
	field := fielder(&b, columns)
	ends := j.State == string(step.Completing)
	switch {
	case j.Doing != "":
		field("waits", "for the end of its "+j.Doing, 0)
	case ends:
		field("waits", "for the end of its processes", 0)
	default:
		field("waits", fmt.Sprintf("for a step: stepctl run --jobid=%d COMMAND", j.ID), 0)
	}
	if !ends {
		field("end it", fmt.Sprintf("stepctl cancel %d", j.ID), 0)
	}
	field("name", j.Name, 80)
	field("user", fmt.Sprintf("%s (uid %d)", j.User, j.UID), 200)
	field("CPUs", j.CPUs, 200)
	if j.MemoryMB != nil {
		field("memory", srunopt.FormatMB(*j.MemoryMB), 0)
	}
	field("gres", j.Gres, 400)
	if j.Started != nil {
		field("time", "started "+j.Started.Format(time.RFC3339), 0)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fieldIndent is how many columns the names before a field's text take.
const fieldIndent = 11

// fielder writes named texts, each cut to room characters and wrapped to columns; 0 is without
// bounds. A text that is empty is left out.
func fielder(b *strings.Builder, columns int) func(name, text string, room int) {
	return func(name, text string, room int) {
		if text == "" {
			return
		}
		first := fmt.Sprintf("  %-*s ", fieldIndent-3, name)
		if columns == 0 {
			b.WriteString(first + printable.Line(text, room) + "\n")
			return
		}
		rest := strings.Repeat(" ", len(first))
		b.WriteString(printable.Wrap(printable.Line(text, room), first, rest, columns) + "\n")
	}
}

func fitted(s string, columns int) string {
	if columns == 0 {
		return s
	}
	return printable.Fit(s, columns)
}

// leftOut says which columns a narrow screen has no room for.
func leftOut(heads []string, columns int) string {
	if len(heads) == 0 {
		return ""
	}
	return printable.Wrap("(no room for "+strings.Join(heads, ", ")+")", "  ", "  ", columns) + "\n"
}

// usedWords is what is known of a step's usage, in one line.
func usedWords(u *step.Used) string {
	words := []string{"CPU " + Seconds(u.CPUSeconds)}
	if u.UserSeconds != nil && u.SystemSeconds != nil {
		words[0] += fmt.Sprintf(" (%.2fs user, %.2fs system)", *u.UserSeconds, *u.SystemSeconds)
	}
	for _, f := range []struct {
		what  string
		bytes *int64
	}{
		{"peak memory", u.PeakMemoryBytes}, {"read", u.ReadBytes}, {"written", u.WrittenBytes},
		{"from disk", u.DiskReadBytes}, {"to disk", u.DiskWrittenBytes},
	} {
		if f.bytes != nil {
			words = append(words, f.what+" "+Size(f.bytes))
		}
	}
	return strings.Join(words, ", ")
}

// Number is a number, "-" where it is not known.
func Number(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

// Seconds is a time in seconds, "-" where it is not known.
func Seconds(s *float64) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.2fs", *s)
}

// Size is a number of bytes in powers of 1024: "64.1M".
func Size(b *int64) string {
	if b == nil {
		return "-"
	}
	if *b < 1024 {
		return strconv.FormatInt(*b, 10)
	}
	v, power := float64(*b)/1024, 0
	for ; v >= 1024 && power < 3; power++ {
		v /= 1024
	}
	return fmt.Sprintf("%.1f%c", v, "KMGT"[power])
}
