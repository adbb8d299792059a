package step

import (
	"fmt"
	"strings"
	"time"
)

// OOMKill is one process of a step that the kernel killed because memory had run out. A
// field is nil or empty where its fact is not known.
type OOMKill struct {
	Time time.Time `json:"time"`
	Rank *int      `json:"rank"` // nil: a process of no known task
	PID  int       `json:"pid,omitempty"`
	// Command is the process's name (/proc/PID/comm), which the user chooses.
	Command string `json:"command,omitempty"`
	// Level is the limit that was reached: "task", "step", "job", "parent"
	// (a cgroup above the job), "machine"; "" is not known.
	Level string `json:"level,omitempty"`
	// LimitBytes is the level's limit, PeakBytes its peak of memory, and SwapBytes its
	// swap.
	LimitBytes *uint64 `json:"limit_bytes"`
	PeakBytes  *uint64 `json:"peak_bytes"`
	SwapBytes  *uint64 `json:"swap_bytes"`
}

// String is the line for the user: the task, the event, its cause, and the remedy.
func (k OOMKill) String() string {
	var b strings.Builder
	if k.Rank != nil {
		fmt.Fprintf(&b, "task %d: ", *k.Rank)
	}
	b.WriteString("Out Of Memory: the kernel killed ")
	switch {
	case k.PID == 0:
		b.WriteString("a process")
	case k.Command == "":
		fmt.Fprintf(&b, "process %d", k.PID)
	default:
		fmt.Fprintf(&b, "process %d (%q)", k.PID, k.Command)
	}
	switch k.Level {
	case "":
	case "machine":
		b.WriteString(": the machine has no memory left")
	case "parent":
		b.WriteString(": the limit of a cgroup above the job is reached")
	default:
		fmt.Fprintf(&b, ": the memory limit of the %s is reached", k.Level)
	}
	var facts []string
	for _, f := range []struct {
		name  string
		bytes *uint64
	}{{"limit", k.LimitBytes}, {"peak", k.PeakBytes}, {"swap", k.SwapBytes}} {
		if f.bytes != nil {
			facts = append(facts, f.name+" "+mebibytes(*f.bytes))
		}
	}
	if len(facts) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(facts, ", "))
	}
	if k.Level == "task" || k.Level == "step" || k.Level == "job" {
		b.WriteString("; --mem or --mem-per-cpu asks for more")
	}
	return b.String()
}

// mebibytes writes a size as Slurm's options take it.
func mebibytes(n uint64) string {
	if n != 0 && n < 1<<20 {
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprintf("%.4gM", float64(n)/(1<<20))
}
