package report

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/terminal"
	"stepd/internal/printable"
	"stepd/step"
)

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
	if len(recs) == 0 {
		return over, fmt.Errorf("job %d has no step", ref.JobID)
	}
	for _, rec := range recs {
		columns, _ := terminal.ScreenSize(os.Stdout)
		if err := writeStat(os.Stdout, rec, columns); err != nil {
			return over, err
		}
	}
	return over, nil
}

// writeStat is the table of one step, in lines of at most columns, 0 of any length.
func writeStat(out io.Writer, rec *step.Record, columns int) error {
	var b strings.Builder
	b.WriteString(fitted(fmt.Sprintf("step %s  %s  %s%s", rec.ID.Name(), client.StateWord(rec), elapsed(rec), sampling(rec)), columns) + "\n")
	writeCause(fielder(&b, columns), rec, columns)
	if rec.Usage == nil {
		_, err := io.WriteString(out, b.String()+"  nothing is known of what it uses\n")
		return err
	}
	t := table{left: "  ", columns: []column{
		{head: "RANK", right: true}, {head: "PID", right: true, spare: 8}, {head: "CPU", right: true}, {head: "RSS", right: true, spare: 1}, {head: "MAXRSS", right: true},
		{head: "PEAK", right: true, spare: 4}, {head: "MAXVM", right: true, spare: 9}, {head: "READ", right: true, spare: 2}, {head: "WRITTEN", right: true, spare: 3},
		{head: "DISKREAD", right: true, spare: 6}, {head: "DISKWRITE", right: true, spare: 5}, {head: "MAJFLT", right: true, spare: 7},
	}}
	var sum average
	for i := range rec.Tasks {
		task := &rec.Tasks[i]
		u := step.Used{CPUSeconds: task.CPUSeconds, MaxRSSBytes: task.MaxRSSBytes}
		if task.Usage != nil {
			u = *task.Usage
		}
		sum.add(&u)
		statLine(&t, strconv.Itoa(task.Rank), Number(task.PID), &u)
	}
	statLine(&t, "average", "", new(sum.of()))
	statLine(&t, "step", "", &rec.Usage.Used)
	t.dropUnknown(columns)
	text, left := t.text(columns)
	if _, err := io.WriteString(out, b.String()+text+leftOut(left, columns)); err != nil {
		return err
	}
	return writePressure(out, rec.Usage.Pressure, columns)
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
	return s + ", " + Plural(u.Samples, "sample")
}

func statLine(t *table, rank, pid string, u *step.Used) {
	faults := "-"
	if u.MajorFaults != nil {
		faults = strconv.FormatInt(*u.MajorFaults, 10)
	}
	t.add(rank, pid, Seconds(u.CPUSeconds), Size(u.RSSBytes), Size(u.MaxRSSBytes), Size(u.PeakMemoryBytes), Size(u.MaxVMSizeBytes),
		Size(u.ReadBytes), Size(u.WrittenBytes), Size(u.DiskReadBytes), Size(u.DiskWrittenBytes), faults)
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
func writePressure(out io.Writer, p *step.Pressure, columns int) error {
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
	if columns == 0 {
		columns = math.MaxInt
	}
	_, err := fmt.Fprintln(out, printable.Wrap("waited for "+strings.Join(words, ", "), "  ", "    ", columns))
	return err
}
