// Package extern is what a job's extern step does for the job: it takes sessions of sshd into it,
// which pam_slurm_adopt names to it, and has the job's display. Begin with Start.
package extern

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/proctrack"
	"stepd/slurm/x11"
)

// Config says where the step is, and what its job is to have. Job, Notes and the logs are required.
type Config struct {
	Job uint32
	// Cgroups are the step's; the zero value is a step without any, which adopts nothing.
	Cgroups proctrack.StepCgroups
	// Sign is the directory that Sign returns, "" for none.
	Sign string
	// Display is nil for a job without a display here. Its Note and Log are the step's to set.
	Display *x11.Config
	// Notes is the directory of root's for what a later step must know of a killed daemon's step.
	Notes string
	// Log takes one line, and Error one about what has failed. Any goroutine calls them.
	Log, Error func(line string)
}

// Step is an extern step. Its methods may be called by several goroutines.
type Step struct {
	cfg Config
	x11 *x11.Forward // nil without a display
}

// Start makes the extern step of a job on this node. What cannot be made the job goes without, and
// the log says why: without the sign a session may be another job's of the user, and slurmd gives
// DISPLAY a value that says that there is none.
func Start(cfg Config) *Step {
	s := &Step{cfg: cfg}
	if cfg.Sign != "" {
		if err := PutSign(cfg.Sign); err != nil {
			cfg.Error(err.Error())
		}
	}
	if cfg.Display == nil {
		return s
	}
	err := os.MkdirAll(cfg.Notes, 0o755) // a step without cgroups is the first to have a file there
	if err == nil {
		cfg.Display.Note, cfg.Display.Log = note(cfg.Notes, cfg.Job), cfg.Error
		s.x11, err = x11.Start(*cfg.Display)
	}
	if err != nil {
		cfg.Error(fmt.Sprintf("the job has no display: %v", err))
		return s
	}
	number, _ := s.x11.Display()
	cfg.Log(fmt.Sprintf("the job has display %d", number))
	return s
}

// Sign is the directory that a dead step's orphan is to remove, "" for none.
func (s *Step) Sign() string { return s.cfg.Sign }

// Close takes back what Start has made, before the job's mount namespace is closed.
func (s *Step) Close() error {
	var errs []error
	if s.x11 != nil {
		errs = append(errs, s.x11.Close())
	}
	if s.cfg.Sign != "" {
		errs = append(errs, TakeSign(s.cfg.Sign))
	}
	return errors.Join(errs...)
}

// note is the file of a job's display.
func note(notes string, job uint32) string { return filepath.Join(notes, fmt.Sprintf("x11-%d", job)) }

// Remove removes what the killed daemon of a job's extern step has left of the job's display.
func Remove(notes string, job uint32) error { return x11.Remove(note(notes, job)) }

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
func (s *Step) Display() (number int32, authority string) {
	if s.x11 == nil {
		return 0, ""
	}
	return s.x11.Display()
}
