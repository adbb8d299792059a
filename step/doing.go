package step

import (
	"fmt"
	"strings"
	"time"
)

// Doing is what a process of a step did when it was looked at, for clients that
// ask why a step does not go on. What is not known is empty.
type Doing struct {
	PID int `json:"pid"`
	// State is proc_pid_stat(5)'s letter: "S"; Command the process's name
	// (/proc/PID/comm), the user's word; Wchan the kernel function that it sleeps in.
	State   string `json:"state,omitempty"`
	Command string `json:"command,omitempty"`
	Wchan   string `json:"wchan,omitempty"`
	// Stage is the stage of the launch of a task that has not exec'd.
	Stage string `json:"stage,omitempty"`
	// Hook is the SPANK hook that it is in, of the plugin Plugin, for HookTime.
	Plugin   string        `json:"plugin,omitempty"`
	Hook     string        `json:"hook,omitempty"`
	HookTime time.Duration `json:"hook_ns,omitempty"`
}

// StateWords is the letter in words: "stopped", "" for one that is not known.
func (d *Doing) StateWords() string {
	switch d.State {
	case "R":
		return "runs"
	case "S":
		return "sleeps"
	case "D":
		return "in uninterruptible sleep"
	case "T":
		return "stopped by a signal"
	case "t":
		return "stopped by its tracer"
	case "Z", "X":
		return "ended"
	case "I":
		return "idle"
	}
	return ""
}

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
