// Package report is the verbs of stepctl that ask noded once and print the answer for people
// or as JSON (ps, show, stat, explain, events, timeline, node, plugins), and those that ask it
// to act on steps (signal, cancel, suspend, resume, adopt). Each verb is a function that makes
// its command; steps.go has most of them.
package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
		Use: "ps [JOB[.STEP]...]", Short: "list the steps of this node, or these",
		RunE: func(_ *cobra.Command, args []string) error {
			list := (*api.Client).Overview // the table shows no task
			if asJSON {
				list = (*api.Client).List
			}
			recs := listing(d, args, all, list)
			if asJSON {
				return client.PrintList(os.Stdout, "steps", recs)
			}
			return table(recs)
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "ended steps as well")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
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

func table(recs iter.Seq2[*step.Record, error]) error {
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tNAME\tUSER\tSTATE\tTASKS\tTIME\tCOMMAND")
	for rec, err := range recs {
		if err != nil {
			return err
		}
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

// StatCommand is the verb stat.
func StatCommand(d *client.Dialer) *cobra.Command {
	var asJSON bool
	var watch int
	c := &cobra.Command{
		Use: "stat JOB[.STEP]", Short: "what the tasks use, or have used", Args: cobra.ExactArgs(1),
		RunE: onRef(func(ref api.StepRef) error {
			if watch < 0 {
				return fmt.Errorf("--watch=%d: want seconds", watch)
			}
			return stat(d, ref, asJSON, time.Duration(watch)*time.Second)
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	c.Flags().IntVarP(&watch, "watch", "w", 0, "again every so many seconds, until the step has ended")
	return c
}

// stat shows it once, or until the end.
func stat(d *client.Dialer, ref api.StepRef, asJSON bool, every time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for {
		recs, err := client.Ask(d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) { return noded.Stat(ctx, ref) })
		if err != nil {
			return err
		}
		over, err := showStats(recs, asJSON, ref)
		if err != nil || over || every == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// showStats reports whether all of the steps have ended.
func showStats(recs []*step.Record, asJSON bool, ref api.StepRef) (over bool, err error) {
	over = !slices.ContainsFunc(recs, func(rec *step.Record) bool { return !rec.State.Final() })
	if asJSON {
		return over, printSteps(recs, ref)
	}
	for _, rec := range recs {
		if err := writeStat(os.Stdout, rec); err != nil {
			return over, err
		}
	}
	return over, nil
}

// writeStat is the table of one step.
func writeStat(out io.Writer, rec *step.Record) error {
	fmt.Fprintf(out, "step %s  %s  %s%s\n", rec.ID.Name(), client.StateWord(rec), elapsed(rec), sampling(rec))
	if rec.Usage == nil {
		_, err := fmt.Fprintln(out, "  nothing is known of what it uses")
		return err
	}
	w := tabwriter.NewWriter(out, 2, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "  RANK\tPID\tCPU\tRSS\tMAXRSS\tPEAK\tMAXVMSIZE\tREAD\tWRITTEN\tDISKREAD\tDISKWRITTEN\tMAJFLT\t")
	var sum average
	for i := range rec.Tasks {
		t := &rec.Tasks[i]
		u := step.Used{CPUSeconds: t.CPUSeconds, MaxRSSBytes: t.MaxRSSBytes}
		if t.Usage != nil {
			u = *t.Usage
		}
		sum.add(&u)
		statLine(w, strconv.Itoa(t.Rank), Number(t.PID), &u)
	}
	statLine(w, "average", "", new(sum.of()))
	statLine(w, "step", "", &rec.Usage.Used)
	if err := w.Flush(); err != nil {
		return err
	}
	return writePressure(out, rec.Usage.Pressure)
}

// sampling says how the figures are come by.
func sampling(rec *step.Record) string {
	u := rec.Usage
	if u == nil {
		return ""
	}
	s := "  jobacct_gather/" + u.Gather
	if u.Sampled() {
		s += fmt.Sprintf(", every %d s", u.FrequencyS)
	}
	return s + fmt.Sprintf(", %d samples", u.Samples)
}

func statLine(w io.Writer, rank, pid string, u *step.Used) {
	faults := "-"
	if u.MajorFaults != nil {
		faults = strconv.FormatInt(*u.MajorFaults, 10)
	}
	fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", rank, pid, Seconds(u.CPUSeconds), strings.Join([]string{
		Size(u.RSSBytes), Size(u.MaxRSSBytes), Size(u.PeakMemoryBytes), Size(u.MaxVMSizeBytes),
		Size(u.ReadBytes), Size(u.WrittenBytes), Size(u.DiskReadBytes), Size(u.DiskWrittenBytes), faults, "",
	}, "\t"))
}

// average is that over the tasks of which a figure is known, as sstat's AveCPU.
type average struct {
	cpu, cpuOf float64
	sizes      [9]struct{ sum, of int64 }
}

// sizesOf are the figures that are averaged beside CPU time.
func sizesOf(u *step.Used) []**int64 {
	return []**int64{
		&u.RSSBytes, &u.MaxRSSBytes, &u.PeakMemoryBytes, &u.MaxVMSizeBytes, &u.ReadBytes, &u.WrittenBytes,
		&u.DiskReadBytes, &u.DiskWrittenBytes, &u.MajorFaults,
	}
}

func (a *average) add(u *step.Used) {
	if u.CPUSeconds != nil {
		a.cpu += *u.CPUSeconds
		a.cpuOf++
	}
	for i, n := range sizesOf(u) {
		if *n != nil {
			a.sizes[i].sum += **n
			a.sizes[i].of++
		}
	}
}

func (a *average) of() (u step.Used) {
	if a.cpuOf > 0 {
		u.CPUSeconds = new(a.cpu / a.cpuOf)
	}
	for i, n := range sizesOf(&u) {
		if a.sizes[i].of > 0 {
			*n = new(a.sizes[i].sum / a.sizes[i].of)
		}
	}
	return u
}

// writePressure tells for how long the step has waited for what was short.
func writePressure(out io.Writer, p *step.Pressure) error {
	if p == nil {
		return nil
	}
	var words []string
	for _, s := range []struct {
		what   string
		stalls *step.Stalls
	}{{"CPU", p.CPU}, {"memory", p.Memory}, {"I/O", p.IO}} {
		if s.stalls != nil {
			words = append(words, fmt.Sprintf("%s %.2fs (%.1f%% of the last 10 s)", s.what, float64(s.stalls.Some.TotalUS)/1e6, s.stalls.Some.Avg10))
		}
	}
	_, err := fmt.Fprintf(out, "  waited for %s\n", strings.Join(words, ", "))
	return err
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
