package report

import (
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
		},
		Usage: &step.StepUsage{
			Gather: "cgroup", FrequencyS: 30, Samples: 2, Used: step.Used{CPUSeconds: sec(4.5), MaxRSSBytes: num(64 << 20), PeakMemoryBytes: num(100 << 20)},
			Pressure: &step.Pressure{CPU: &step.Stalls{Some: step.Stall{TotalUS: 1500000, Avg10: 12.5}}},
		},
	}
	var out strings.Builder
	if err := writeStat(&out, rec); err != nil {
		t.Fatal(err)
	}
	const want = `step 12.0  COMPLETED  1:05  jobacct_gather/cgroup, every 30 s, 2 samples
       RANK   PID    CPU  RSS  MAXRSS    PEAK  MAXVMSIZE  READ  WRITTEN  DISKREAD  DISKWRITTEN  MAJFLT
          0  4711  1.00s    -   64.0M       -          -  1.0M        -         -            -       -
          1     -  3.00s    -   32.0M       -          -     -        -         -            -       -
          2     -      -    -       -       -          -     -        -         -            -       -
    average        2.00s    -   48.0M       -          -  1.0M        -         -            -       -
       step        4.50s    -   64.0M  100.0M          -     -        -         -            -       -
  waited for CPU 1.50s (12.5% of the last 10 s)
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	rec.Usage = nil
	out.Reset()
	if err := writeStat(&out, rec); err != nil || !strings.Contains(out.String(), "nothing is known") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
