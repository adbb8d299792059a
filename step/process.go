package step

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// SafePath is the PATH of the programs that our programs start for themselves: never a user's.
const SafePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Survivor is a process that SIGKILL has not ended, as /proc shows it, for an
// administrator who looks for the cause.
type Survivor struct {
	PID int `json:"pid"`
	// Start is its start time in clock ticks since boot, 0 where not known: with
	// PID and the boot id it names one process for ever.
	Start uint64 `json:"start,omitempty"`
	// Comm is under the user's control.
	Comm string `json:"comm"`
	// State is proc_pid_stat(5)'s letter: "D"; "" for one that has just ended.
	State string `json:"state"`
	// Grade is the reason why it does not end.
	Grade SurvivorGrade `json:"grade"`
	// Wchan is the kernel function in which it sleeps, Stack the top of its kernel
	// stack, the innermost function first; empty where not known.
	Wchan string   `json:"wchan,omitempty"`
	Stack []string `json:"stack,omitempty"`
	// Syscall is the system call that it is in, "" where not known.
	Syscall string `json:"syscall,omitempty"`
	// Holder is the process that has to act: the tracer, or the parent of a zombie.
	Holder     int    `json:"holder,omitempty"`
	HolderComm string `json:"holder_comm,omitempty"`
	// Freezer is the frozen cgroup that it is in (v1), absolute.
	Freezer string `json:"freezer,omitempty"`
	// Files are its open files, the file that it waits for first.
	Files []HeldFile `json:"files,omitempty"`
	// Mounts are mount points of the kind of file system in which it waits, where none of
	// Files lies on such a file system.
	Mounts []HeldFile `json:"mounts,omitempty"`
}

// HeldFile is a file that a survivor holds, and the mount that it lies on.
type HeldFile struct {
	// What is "fd 3", "cwd", "root" or "exe"; "" of a mount.
	What   string `json:"what,omitempty"`
	Path   string `json:"path"`
	Mount  string `json:"mount,omitempty"`
	FSType string `json:"fs_type,omitempty"`
	// Waits: its system call is about this one.
	Waits bool `json:"waits,omitempty"`
}

// SurvivorGrade is why a process does not end.
type SurvivorGrade string

const (
	GradeDisk     SurvivorGrade = "uninterruptible" // D: it waits in the kernel
	GradeFrozen   SurvivorGrade = "frozen"          // a v1 freezer keeps SIGKILL from it
	GradeTraced   SurvivorGrade = "traced"          // its tracer has stopped it
	GradeZombie   SurvivorGrade = "zombie"          // ended, and not reaped
	GradeCore     SurvivorGrade = "core"            // it writes a core dump
	GradeStopped  SurvivorGrade = "stopped"         // T
	GradeRunning  SurvivorGrade = "dying"           // R or S: on its way
	GradeVanished SurvivorGrade = "gone"            // it ended meanwhile
)

// String is the survivor in one phrase: names in it are quoted, since users
// choose them.
func (s Survivor) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pid %d %q (", s.PID, s.Comm)
	if s.State != "" {
		fmt.Fprintf(&b, "state %s: ", s.State)
	}
	b.WriteString(s.reason())
	if s.Wchan != "" {
		fmt.Fprintf(&b, " in %s", s.Wchan)
	}
	b.WriteString(s.waitsFor())
	b.WriteByte(')')
	return b.String()
}

func (s Survivor) reason() string {
	holder := ""
	if s.Holder != 0 {
		holder = fmt.Sprintf(" pid %d %q", s.Holder, s.HolderComm)
	}
	switch s.Grade {
	case GradeDisk:
		return "uninterruptible sleep"
	case GradeFrozen:
		return fmt.Sprintf("frozen by %q", s.Freezer)
	case GradeTraced:
		return "stopped by its tracer" + holder
	case GradeZombie:
		return "ended, and not yet reaped by" + holder
	case GradeCore:
		return "writing a core dump"
	case GradeStopped:
		return "stopped"
	case GradeVanished:
		return "has just ended"
	}
	return "still ending"
}

// waitsFor names the file or the mount that the process waits for, as far as it is
// known.
func (s Survivor) waitsFor() string {
	if s.Grade != GradeDisk {
		return ""
	}
	for _, f := range s.Files {
		if !f.Waits {
			continue
		}
		call := "system call"
		if s.Syscall != "" {
			call = s.Syscall
		}
		return fmt.Sprintf(", %s of %s %q on %s", call, f.What, f.Path, f.mount())
	}
	if len(s.Mounts) > 0 {
		return ", perhaps for " + s.Mounts[0].mount()
	}
	if len(s.Files) > 0 {
		return fmt.Sprintf(", holds %s %q on %s", s.Files[0].What, s.Files[0].Path, s.Files[0].mount())
	}
	return ""
}

func (f HeldFile) mount() string {
	if f.Mount == "" {
		return "a mount that is not known"
	}
	return fmt.Sprintf("%s mount %q", f.FSType, f.Mount)
}

// Doing is the activity of a step's process at one moment, for clients that ask why a
// step makes no progress. A field is empty where its fact is not known.
type Doing struct {
	PID int `json:"pid"`
	// State is proc_pid_stat(5)'s letter: "S". Command is the process's name
	// (/proc/PID/comm), which the user chooses. Wchan is the kernel function in which the
	// process sleeps.
	State   string `json:"state,omitempty"`
	Command string `json:"command,omitempty"`
	Wchan   string `json:"wchan,omitempty"`
	// Stage is the stage of the launch of a task that has not exec'd.
	Stage string `json:"stage,omitempty"`
	// Hook is the SPANK hook of Plugin that the process has been running for HookTime.
	Plugin   string        `json:"plugin,omitempty"`
	Hook     string        `json:"hook,omitempty"`
	HookTime time.Duration `json:"hook_ns,omitempty"`
}

var stateWords = map[string]string{
	"R": "runs", "S": "sleeps", "D": "in uninterruptible sleep", "T": "stopped by a signal", "t": "stopped by its tracer",
	"Z": "ended", "X": "ended", "I": "idle",
}

// StateWords is the letter in words: "stopped", "" for one that is not known.
func (d *Doing) StateWords() string { return stateWords[d.State] }

// String is the process in one phrase; its name is quoted, since users choose it.
func (d *Doing) String() string {
	var words []string
	if d.Command != "" {
		words = append(words, fmt.Sprintf("%q", d.Command))
	}
	if state := d.StateWords(); state != "" {
		if d.Wchan != "" && (d.State == "S" || d.State == "D") {
			state += " in " + d.Wchan
		}
		words = append(words, state)
	}
	if d.Hook != "" {
		words = append(words, fmt.Sprintf("in %s of plugin %q for %v", d.Hook, d.Plugin, d.HookTime.Round(time.Millisecond)))
	} else if d.Stage != "" {
		words = append(words, "at its stage "+d.Stage)
	}
	return fmt.Sprintf("pid %d: %s", d.PID, strings.Join(words, ", "))
}

// MPIProgress is the point that a rank has reached in its MPI program.
type MPIProgress struct {
	// Phase is "started", "connected", "initialized" or "finalized".
	Phase string `json:"phase"`
	// Protocol is "PMI-1", "PMI-2" or "PMIx 4.2".
	Protocol string `json:"protocol,omitempty"`
	// Fences counts the fences that the rank has completed.
	Fences int `json:"fences"`
	// Waiting is the event that the rank waits for now, "" for none: "fence 3", "key \"a\" of
	// node". WaitsFor are the ranks that it waits for, as a list ("3,7"), where known.
	Waiting  string `json:"waiting,omitempty"`
	WaitsFor string `json:"waits_for,omitempty"`
}

// The phases of MPIProgress, in their order. A task without a known progress has sent
// nothing to its MPI server.
const (
	PhaseStarted     = "started"
	PhaseConnected   = "connected"
	PhaseInitialized = "initialized"
	PhaseFinalized   = "finalized"
)

// Depth orders progress: a rank of a lower depth is behind the others. nil is 0.
func (p *MPIProgress) Depth() int {
	if p == nil {
		return 0
	}
	phase := 1 + slices.Index([]string{PhaseStarted, PhaseConnected, PhaseInitialized, PhaseFinalized}, p.Phase)
	return phase<<32 + p.Fences
}

// Waits reports whether the rank waits for something.
func (p *MPIProgress) Waits() bool { return p != nil && p.Waiting != "" }

// Finalized reports whether the rank has left MPI.
func (p *MPIProgress) Finalized() bool { return p != nil && p.Phase == PhaseFinalized }

// String is the progress of one rank in words: "has called init (PMI-1), has come
// through 2 fences, waits in fence 3".
func (p *MPIProgress) String() string { return p.Words(1) }

// Words is the progress of so many ranks in words: "have called init ...".
func (p *MPIProgress) Words(ranks int) string {
	has, is, waits := "has", "is", "waits"
	if ranks > 1 {
		has, is, waits = "have", "are", "wait"
	}
	if p == nil {
		return has + " not called init"
	}
	var words []string
	switch p.Phase {
	case PhaseStarted:
		words = append(words, has+" not called init")
	case PhaseConnected:
		words = append(words, is+" connected and "+has+" not finished init")
	case PhaseInitialized:
		words = append(words, has+" called init")
	case PhaseFinalized:
		words = append(words, has+" called finalize")
	default:
		words = append(words, p.Phase)
	}
	if p.Protocol != "" {
		words[0] += " (" + p.Protocol + ")"
	}
	switch {
	case p.Fences == 1:
		words = append(words, has+" come through 1 fence")
	case p.Fences > 1:
		words = append(words, fmt.Sprintf("%s come through %d fences", has, p.Fences))
	}
	if p.Waiting != "" {
		words = append(words, waits+" "+p.where())
	}
	return strings.Join(words, ", ")
}

// where is Waiting with its preposition.
func (p *MPIProgress) where() string {
	if strings.HasPrefix(p.Waiting, "fence ") || strings.HasPrefix(p.Waiting, "ring ") {
		return "in " + p.Waiting
	}
	return "for " + p.Waiting
}

// ProgressGroup are ranks with the same progress.
type ProgressGroup struct {
	Ranks []int
	MPI   *MPIProgress // nil: unknown
}

// GroupProgress groups tasks by their progress, the groups that are behind first.
func GroupProgress(tasks []Task) []ProgressGroup {
	var groups []ProgressGroup
	at := map[MPIProgress]int{}
	for i := range tasks {
		var key MPIProgress // of none: no progress has an empty phase
		if tasks[i].MPI != nil {
			key = *tasks[i].MPI
		}
		place, known := at[key]
		if !known {
			place = len(groups)
			at[key] = place
			groups = append(groups, ProgressGroup{MPI: tasks[i].MPI})
		}
		groups[place].Ranks = append(groups[place].Ranks, tasks[i].Rank)
	}
	slices.SortStableFunc(groups, func(a, b ProgressGroup) int { return cmp.Compare(a.MPI.Depth(), b.MPI.Depth()) })
	return groups
}

// KeyValue is one pair; either may be any bytes.
type KeyValue struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}
