// Package extern is what a job's extern step does for processes that no step of the job has
// started: it takes sessions of sshd into the job, which pam_slurm_adopt names to it. Begin with
// New.
package extern

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/proctrack"
)

// Config says where the step is. Log is required.
type Config struct {
	// Cgroups are the step's; the zero value is a step without any, which adopts nothing.
	Cgroups proctrack.StepCgroups
	// Display is the job's display and Authority the file of its key; 0 and "" are none.
	Display   int32
	Authority string
	// Log takes one line. Any goroutine calls it.
	Log func(line string)
}

// Step is an extern step. Its methods may be called by several goroutines.
type Step struct{ cfg Config }

// New makes the extern step of a job on this node.
func New(cfg Config) *Step { return &Step{cfg: cfg} }

// Adopt moves a process among the step's: it is counted there, and ends with the job. Its
// children that exist already stay where they are. The caller has made sure that root asks. An
// error says that the process is in the step in part, or not at all.
func (s *Step) Adopt(pid int) error {
	if pid <= 1 || pid == os.Getpid() {
		return fmt.Errorf("cannot adopt process %d: it is none of a session", pid)
	}
	if s.cfg.Cgroups.Tasks == "" {
		return fmt.Errorf("cannot adopt process %d: the step has no cgroups on this machine, by which a session is held", pid)
	}
	// The number may be another process's once this one was reaped.
	pidfd, err := linux.PidfdOpen(pid)
	if err != nil {
		return fmt.Errorf("cannot adopt process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	if err := proctrack.Adopt(s.cfg.Cgroups, pid); err != nil {
		return err
	}
	if over, err := linux.PidfdExited(pidfd); err != nil || over {
		return fmt.Errorf("cannot adopt process %d: it has ended meanwhile", pid)
	}
	s.cfg.Log(fmt.Sprintf("process %d is adopted", pid))
	return nil
}

// Display is the number of the job's display, and the file of its key: 0 without one.
func (s *Step) Display() (number int32, authority string) { return s.cfg.Display, s.cfg.Authority }
