// Package report is the verbs of stepctl that ask noded once and print the answer for people
// or as JSON (ps, show, stat, explain, events, timeline, node, plugins), and those that ask it
// to act on steps (signal, cancel, suspend, resume, adopt). Each verb is a function that makes
// its command; steps.go has most of them.
package report

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/internal/printable"
	"stepd/srunopt"
	"stepd/step"
)

// PSCommand is the verb ps.
func PSCommand(d *client.Dialer) *cobra.Command {
	var all, asJSON bool
	c := &cobra.Command{
		Use: "ps", Short: "list the steps of this node", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			recs, err := client.Ask(d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) {
				return listed(noded.List(ctx, all))
			})
			switch {
			case err != nil:
				return err
			case asJSON:
				return client.PrintJSON("steps", recs)
			}
			return table(recs)
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "ended steps as well")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

// listed are the records of a listing; none are an empty list.
func listed(seq iter.Seq2[*step.Record, error]) ([]*step.Record, error) {
	recs := []*step.Record{}
	for rec, err := range seq {
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

func table(recs []*step.Record) error {
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tNAME\tUSER\tSTATE\tTASKS\tTIME\tCOMMAND")
	for _, rec := range recs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", rec.ID.Name(), printable.Line(rec.Name, 20), rec.User, client.StateWord(rec), rec.NTasks,
			elapsed(rec), printable.Line(strings.Join(rec.Command, " "), 40))
	}
	return w.Flush()
}

// elapsed is how long the step has run, or ran, without what it stood still: "2:03".
func elapsed(rec *step.Record) string { return ElapsedAt(rec, time.Now()) }

// ElapsedAt is how long the step has run, or ran, at a time; "-" of one that has not begun.
func ElapsedAt(rec *step.Record, now time.Time) string {
	ran, ok := rec.Ran(now)
	if !ok {
		return "-"
	}
	s := int(ran.Seconds())
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
			for _, rec := range recs {
				err = errors.Join(err, showStep(rec))
			}
			return err
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

// printSteps prints the document of one step, or of a job's steps.
func printSteps(recs []*step.Record, ref api.StepRef) error {
	if ref.StepID != nil && len(recs) == 1 {
		return client.PrintJSON("step", recs[0])
	}
	return client.PrintJSON("steps", append([]*step.Record{}, recs...)) // none are an empty list
}

func showStep(rec *step.Record) error {
	fmt.Printf("step %s  %s\n", rec.ID.Name(), client.StateWord(rec))
	if rec.Suspended != nil && rec.SuspendedBy != nil {
		fmt.Printf("  suspended  since %s by uid %d\n", rec.Suspended.Format(time.RFC3339), *rec.SuspendedBy)
	}
	field := func(name, text string, room int) {
		if text != "" {
			fmt.Printf("  %-8s %s\n", name, printable.Line(text, room))
		}
	}
	field("reason", rec.Reason, 400)
	fmt.Printf("  name     %s\n  user     %s (uid %d)\n  node     %s, cpus %s\n", printable.Line(rec.Name, 80), rec.User, rec.UID, rec.Node, rec.CPUs)
	if rec.MemoryMB > 0 {
		field("memory", srunopt.FormatMB(rec.MemoryMB), 0)
	}
	field("gres", srunopt.FormatAllocs(rec.Gres), 400)
	field("command", strings.Join(rec.Command, " "), 400)
	if rec.ExitCode != nil {
		field("exit", strconv.Itoa(*rec.ExitCode), 0)
	}
	if rec.Usage != nil {
		field("used", usedWords(&rec.Usage.Used), 0)
	}
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "  RANK\tPID\tSTATE\tEXIT\tCPU\tMAXRSS")
	for _, t := range rec.Tasks {
		exit := "-"
		if t.Status != nil {
			exit = t.Status.Describe()
		}
		memory := "-"
		if t.MaxRSSBytes != nil {
			memory = fmt.Sprintf("%.1fM", float64(*t.MaxRSSBytes)/(1<<20))
		}
		fmt.Fprintf(w, "  %d\t%s\t%s\t%s\t%s\t%s\n", t.Rank, Number(t.PID), t.State, exit, Seconds(t.CPUSeconds), memory)
	}
	return w.Flush()
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
