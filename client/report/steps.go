// Package report is the verbs of stepctl that ask noded once and print the answer for people
// or as JSON (ps, show, stat, explain, events, timeline, node, plugins), and those that ask it
// to act on steps (signal, cancel, suspend, resume, adopt). Each verb is a function that makes
// its command; steps.go has most of them.
package report

import (
	"context"
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
	"stepd/client/options"
	"stepd/client/terminal"
	"stepd/internal/printable"
	"stepd/step"
)

func PSCommand(d *client.Dialer) *cobra.Command {
	var all, asJSON bool
	c := &cobra.Command{
		Use: "ps", Short: "list the steps of this node", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return d.Call(func(ctx context.Context, noded *api.Client) error {
				recs, err := listed(noded.List(ctx, all))
				if err != nil {
					return err
				}
				if asJSON {
					return client.PrintJSON("steps", recs)
				}
				return table(recs)
			})
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

func ShowCommand(d *client.Dialer) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show JOB[.STEP]", Short: "show one step, running or ended", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := client.ParseRef(args[0])
			if err != nil {
				return err
			}
			return d.Call(func(ctx context.Context, noded *api.Client) error {
				recs, err := noded.Show(ctx, ref)
				if err != nil {
					return err
				}
				if asJSON {
					return printSteps(recs, ref)
				}
				for _, rec := range recs {
					if err := showStep(rec); err != nil {
						return err
					}
				}
				return nil
			})
		},
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
	if rec.Reason != "" {
		fmt.Printf("  reason   %s\n", printable.Line(rec.Reason, 400))
	}
	fmt.Printf("  name     %s\n  user     %s (uid %d)\n  node     %s, cpus %s\n", printable.Line(rec.Name, 80), rec.User, rec.UID, rec.Node, rec.CPUs)
	if rec.MemoryMB > 0 {
		fmt.Printf("  memory   %s\n", step.FormatMB(rec.MemoryMB))
	}
	if len(rec.Gres) > 0 {
		fmt.Printf("  gres     %s\n", printable.Line(step.FormatAllocs(rec.Gres), 400))
	}
	if len(rec.Command) > 0 {
		fmt.Printf("  command  %s\n", printable.Line(strings.Join(rec.Command, " "), 400))
	}
	if rec.ExitCode != nil {
		fmt.Printf("  exit     %d\n", *rec.ExitCode)
	}
	if rec.Usage != nil {
		fmt.Printf("  used     %s\n", usedWords(&rec.Usage.Used))
	}
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "  RANK\tPID\tSTATE\tEXIT\tCPU\tMAXRSS")
	for _, t := range rec.Tasks {
		exit := "-"
		if t.Status != nil {
			exit = t.Status.Describe()
		}
		fmt.Fprintf(w, "  %d\t%s\t%s\t%s\t%s\t%s\n", t.Rank, Number(t.PID), t.State, exit, Seconds(t.CPUSeconds), megabytes(t.MaxRSSBytes))
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

func Number(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

func Seconds(s *float64) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.2fs", *s)
}

func megabytes(b *int64) string {
	if b == nil {
		return "-"
	}
	return fmt.Sprintf("%.1fM", float64(*b)/(1<<20))
}

func SignalCommand(d *client.Dialer) *cobra.Command {
	name, scope := "TERM", step.ScopeTasks
	c := &cobra.Command{
		Use: "signal [-s SIG] JOB[.STEP]", Short: "send a signal to the tasks", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := client.ParseRef(args[0])
			if err != nil {
				return err
			}
			sig, err := options.ParseSignal(name)
			if err != nil {
				return err
			}
			return d.Call(func(ctx context.Context, noded *api.Client) error {
				err := noded.Signal(ctx, &api.SignalRequest{StepRef: ref, Signal: sig, Scope: scope})
				return err
			})
		},
	}
	c.Flags().StringVarP(&name, "signal", "s", name, "signal by name or number")
	c.Flags().StringVar(&scope, "scope", scope, "leader: the first task's process; tasks: each task's process; cgroup: every process of the step")
	return c
}

// eachRef calls do for every JOB[.STEP] of args; one that fails does not keep
// the others from being asked.
func eachRef(d *client.Dialer, args []string, do func(context.Context, *api.Client, api.StepRef) error) error {
	failed := false
	for _, a := range args {
		ref, err := client.ParseRef(a)
		if err == nil {
			err = d.Call(func(ctx context.Context, noded *api.Client) error { return do(ctx, noded, ref) })
		}
		if err != nil {
			terminal.Say("error: %s", err)
			failed = true
		}
	}
	if failed {
		return terminal.ExitError(1)
	}
	return nil
}

func SuspendCommand(d *client.Dialer) *cobra.Command {
	return &cobra.Command{
		Use: "suspend JOB[.STEP]...", Short: "stop the tasks of steps, or of jobs, which then take no further steps", Args: cobra.MinimumNArgs(1),
		Long: `Stop the tasks of a step, or of all steps of a job: SIGTSTP, two seconds for
programs that want to prepare, then the freezer, which they cannot see or undo.
A suspended job takes no further steps. The command returns when all stand still.
The state stays RUNNING, and "suspended" in --json tells since when; the time does
not count as run. What root has suspended, only root resumes. cancel ends a
suspended step by SIGKILL at once; other signals are refused.`,
		RunE: func(_ *cobra.Command, args []string) error {
			return eachRef(d, args, func(ctx context.Context, noded *api.Client, ref api.StepRef) error {
				err := noded.Suspend(ctx, ref)
				return err
			})
		},
	}
}

func ResumeCommand(d *client.Dialer) *cobra.Command {
	return &cobra.Command{
		Use: "resume JOB[.STEP]...", Short: "let suspended steps or jobs go on", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return eachRef(d, args, func(ctx context.Context, noded *api.Client, ref api.StepRef) error {
				err := noded.Unsuspend(ctx, ref)
				return err
			})
		},
	}
}

func CancelCommand(d *client.Dialer) *cobra.Command {
	return &cobra.Command{
		Use: "cancel JOB[.STEP]...", Short: "end steps", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return eachRef(d, args, func(ctx context.Context, noded *api.Client, ref api.StepRef) error {
				return noded.Cancel(ctx, &api.CancelRequest{StepRef: ref})
			})
		},
	}
}
