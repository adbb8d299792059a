package report

import (
	"context"
	"fmt"
	"io"
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
	"stepd/step"
)

// StatCommand is the verb stat.
func StatCommand(d *client.Dialer) *cobra.Command {
	var asJSON bool
	var watch int
	c := &cobra.Command{
		Use: "stat JOB[.STEP]", Short: "what the tasks use, or have used", Args: cobra.ExactArgs(1),
		Long: `What the tasks of a step use now, or have used: CPU time, memory, bytes.

CPU is user and system time. MAXRSS is the largest resident memory, RSS the present, PEAK the
kernel's peak of the cgroup, with page cache. READ and WRITTEN passed through
read(2) and write(2), DISKREAD and DISKWRITTEN through storage. K, M, G and T are
powers of 1024. "-" is unknown: docs/accounting.md says which figures exist where.`,
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
