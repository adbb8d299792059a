package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"stepd/step"
)

func TestSize(t *testing.T) {
	for b, want := range map[int64]string{
		0: "0", 1023: "1023", 1024: "1.0K", 67108864: "64.0M", 5 << 30: "5.0G", 3 << 40: "3.0T", 1 << 60: "1048576.0T",
	} {
		if got := Size(&b); got != want {
			t.Errorf("%d: %q, want %q", b, got, want)
		}
	}
	if got := Size(nil); got != "-" {
		t.Errorf("not known: %q", got)
	}
}

func TestWriteStat(t *testing.T) {
	num := func(n int64) *int64 { return &n }
	sec := func(s float64) *float64 { return &s }
	pid, began, ended := 4711, time.Unix(1000, 0), time.Unix(1065, 0)
	rec := &step.Record{
		ID: step.ID{Job: 12}, State: step.Completed, Started: &began, Ended: &ended,
		Tasks: []step.Task{
			{Rank: 0, PID: &pid, Usage: &step.Used{CPUSeconds: sec(1), MaxRSSBytes: num(64 << 20), ReadBytes: num(1 << 20)}},
			{Rank: 1, Usage: &step.Used{CPUSeconds: sec(3), MaxRSSBytes: num(32 << 20)}},
			{Rank: 2}, // nothing is known of it
			{Rank: 1003, PID: new(4194304), Usage: &step.Used{
				CPUSeconds: sec(123456.78), RSSBytes: num(1023 << 30), MaxRSSBytes: num(1023 << 30), MaxVMSizeBytes: num(1 << 40), ReadBytes: num(1023 << 20),
				WrittenBytes: num(1023 << 20), DiskReadBytes: num(1023 << 20), DiskWrittenBytes: num(1023 << 20), MajorFaults: num(123456),
			}},
		},
		Usage: &step.StepUsage{
			Gather: "cgroup", FrequencyS: 30, Samples: 2, Used: step.Used{CPUSeconds: sec(4.5), MaxRSSBytes: num(64 << 20), PeakMemoryBytes: num(100 << 20)},
			Pressure: &step.Pressure{CPU: &step.Stalls{Some: step.Stall{TotalUS: 1500000, Avg10: 12.5}}},
		},
	}
	for _, columns := range []int{0, 40, 80, 200} {
		var out strings.Builder
		if err := writeStat(&out, rec, columns); err != nil {
			t.Fatal(err)
		}
		fits(t, out.String(), columns)
		isGolden(t, fmt.Sprintf("stat-%d", columns), out.String())
	}
	// What happened, why, and what to do are the first three lines.
	rec.State, rec.Reason = step.Timeout, "the step's time limit of 1m0s is over; task 0: Terminated; tasks 1-2: Killed, and none of them has caught it"
	for _, columns := range []int{0, 40, 80} {
		var out strings.Builder
		if err := writeStat(&out, rec, columns); err != nil {
			t.Fatal(err)
		}
		fits(t, out.String(), columns)
		lines := strings.SplitN(out.String(), "\n", 4)
		if !strings.HasPrefix(lines[0], "step 12.0  TIMEOUT  1:05") || !strings.HasPrefix(lines[1], "  reason   the step's time limit") || lines[2] != "  see      stepctl explain 12.0" {
			t.Errorf("on %d columns it begins with %q", columns, lines[:3])
		}
	}
	rec.Usage = nil
	var out strings.Builder
	if err := writeStat(&out, rec, 0); err != nil || !strings.Contains(out.String(), "nothing is known") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
