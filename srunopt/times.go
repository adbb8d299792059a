package srunopt

import (
	"fmt"
	"strconv"
	"strings"

	"stepd/step"
)

const (
	// timeLimitMax is the longest time limit, in seconds: a year, as Slurm's.
	timeLimitMax = 365 * 24 * 3600
	// warnBeforeMax is the most seconds between the warning and the end, as in Slurm.
	warnBeforeMax = 65535
	// warnBefore is when the warning comes where its time is not told, as in Slurm.
	warnBefore = 60
)

// ParseTime reads a time limit in the forms of srun(1): minutes,
// minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
// days-hours:minutes:seconds. It returns seconds; 0 is no limit, for which
// "infinite", "unlimited", "-1" and "0" are written, too.
func ParseTime(text string) (seconds int, err error) {
	switch strings.ToLower(text) {
	case "infinite", "unlimited", "-1":
		return 0, nil
	}
	wrong := fmt.Errorf("write MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS")
	days, clock, dayed := strings.Cut(text, "-")
	if !dayed {
		days, clock = "0", text
	}
	parts := append([]string{days}, strings.Split(clock, ":")...)
	numbers := make([]int64, len(parts))
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 31)
		if err != nil {
			return 0, wrong
		}
		numbers[i] = int64(n)
	}
	d, n := numbers[0], numbers[1:]
	if len(n) > 3 {
		return 0, wrong
	}
	units := [][]int64{{60}, {60, 1}, {3600, 60, 1}}[len(n)-1] // of minutes, m:s and h:m:s
	if dayed {
		units = []int64{3600, 60, 1}
	}
	total := d * 24 * 3600
	for i := range n {
		total += n[i] * units[i]
	}
	if total > timeLimitMax {
		return 0, fmt.Errorf("%d s is more than %d days", total, timeLimitMax/(24*3600))
	}
	return int(total), nil
}

// ParseWarning reads --signal: [{R|B}:]SIGNAL[@SECONDS]. R: is for reservations,
// of which there are none here. signal reads a signal's name or number.
func ParseWarning(text string, signal func(string) (int, error)) (*step.Warning, error) {
	w := &step.Warning{BeforeS: warnBefore}
	rest := text
	if flags, after, ok := strings.Cut(rest, ":"); ok {
		for _, c := range strings.ToUpper(flags) {
			switch c {
			case 'B':
				w.Batch = true
			case 'R':
			default:
				return nil, fmt.Errorf("%q: write B: or R: before the signal", flags)
			}
		}
		rest = after
	}
	name, before, timed := strings.Cut(rest, "@")
	if timed {
		n, err := strconv.ParseUint(before, 10, 32)
		if err != nil || n > warnBeforeMax {
			return nil, fmt.Errorf("%q: want 0 to %d seconds before the end", before, warnBeforeMax)
		}
		w.BeforeS = int(n)
	}
	var err error
	if w.Signal, err = signal(name); err != nil {
		return nil, err
	}
	return w, nil
}

// LimitPrefix begins the variables by which resource limits travel to the tasks.
const LimitPrefix = "SLURM_RLIMIT_"

// ResourceLimits are the limits that Slurm propagates, without RLIMIT_.
func ResourceLimits() []string {
	return []string{"AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "RSS", "STACK"}
}

// Earlier is the time limit that comes first; 0 is none.
func Earlier(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// ParseAcctgFreq reads srun's --acctg-freq: a number of seconds, or a list of
// TYPE=SECONDS of which "task" counts; energy, filesystem and network sample
// nothing here. nil is that the tasks' frequency is not told.
func ParseAcctgFreq(s string) (*int, error) {
	const want = "want SECONDS or task=SECONDS"
	if len(s) > NameMax {
		return nil, fmt.Errorf("%d bytes: %s", len(s), want)
	}
	var task *int
	for item := range strings.SplitSeq(s, ",") {
		kind, value, named := strings.Cut(item, "=")
		if !named {
			kind, value = "task", item
		}
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n > acctgFreqMax {
			return nil, fmt.Errorf("%q is no number of seconds up to %d: %s", value, acctgFreqMax, want)
		}
		switch strings.ToLower(kind) {
		case "task":
			task = new(int(n))
		case "energy", "filesystem", "network":
		default:
			return nil, fmt.Errorf("%q is none of task, energy, filesystem and network: %s", kind, want)
		}
	}
	return task, nil
}
