package step

import (
	"fmt"
	"strings"
	"syscall"
)

// ExitStatus is a raw wait status as wait4(2) gives it. It stays raw from the
// kernel to the user (ADR 0002): folding a signal into 128+n would make
// "exit 137" and SIGKILL the same. The zero value is a clean exit.
type ExitStatus uint32

// ExitedWith returns the status of a process that called exit(code).
func ExitedWith(code uint8) ExitStatus { return ExitStatus(uint32(code) << 8) }

// SignaledBy returns the status of a process that sig ended.
func SignaledBy(sig syscall.Signal) ExitStatus { return ExitStatus(uint32(sig) & 0x7f) }

// Exited reports the exit code, and whether the process exited by itself.
func (s ExitStatus) Exited() (code int, ok bool) {
	ws := syscall.WaitStatus(s)
	return ws.ExitStatus(), ws.Exited()
}

// Signaled reports the signal that ended the process, and whether one did.
func (s ExitStatus) Signaled() (sig syscall.Signal, ok bool) {
	ws := syscall.WaitStatus(s)
	return ws.Signal(), ws.Signaled()
}

// CoreDumped reports whether the kernel wrote a core file.
func (s ExitStatus) CoreDumped() bool { return syscall.WaitStatus(s).CoreDump() }

// Code is the status as srun exits with it: the exit code, or 128+n for a signal. It is
// for a command's own exit only; records keep the raw status.
func (s ExitStatus) Code() int {
	if sig, ok := s.Signaled(); ok {
		return 128 + int(sig)
	}
	code, _ := s.Exited()
	return code
}

// Describe is srun's wording: "Exited with exit code 3", "Killed",
// "Segmentation fault (core dumped)".
func (s ExitStatus) Describe() string {
	if sig, ok := s.Signaled(); ok {
		text := signalText(sig)
		if s.CoreDumped() {
			text += " (core dumped)"
		}
		return text
	}
	code, _ := s.Exited()
	return fmt.Sprintf("Exited with exit code %d", code)
}

// signalText gives strsignal(3)'s words, which Go's own table lower-cases.
func signalText(sig syscall.Signal) string {
	text := sig.String()
	if text == "" {
		return fmt.Sprintf("Unknown signal %d", int(sig))
	}
	return strings.ToUpper(text[:1]) + text[1:] // "CPU time limit exceeded" begins with a capital already
}

// The receivers of a signal to a step.
const (
	ScopeLeader = "leader" // the process of the step's first task: a batch job's script
	ScopeTasks  = "tasks"  // the process of each task
	ScopeCgroup = "cgroup" // every process of the step
)

// Warning is a signal that announces the time limit to the tasks (--signal).
type Warning struct {
	Signal  int `json:"signal"`
	BeforeS int `json:"before_s"` // seconds before the end
	// Batch sends the signal to a job's batch script, and not to the job's other steps.
	Batch bool `json:"batch,omitempty"`
}
