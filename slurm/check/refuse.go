package check

import (
	"syscall"

	"stepd/slurm/wire"
)

// Errors that srun prints (slurm_errno.h).
const (
	// errNotSupported is printed as "Requested operation not supported on this system".
	errNotSupported = syscall.Errno(2036)
	// errContainer is printed as "Container runtime not configured or invalid".
	errContainer = syscall.Errno(4031)
)

// Refusal is why a step does not run. srun prints what the number stands for, and the text is
// in slurmd's log.
type Refusal struct {
	Code syscall.Errno
	Text string
}

func (r *Refusal) Error() string { return r.Text }

// Unwrap is the number.
func (r *Refusal) Unwrap() error { return r.Code }

// Refuse returns a *Refusal for a step that would run otherwise than was asked for: with what
// is missing, its result would be wrong. It returns nil for all others, of which what is
// missing shows.
func Refuse(s *wire.Stream) error {
	unsupported := func(text string) error { return &Refusal{errNotSupported, "cannot run the step: " + text} }
	if b := s.Batch; b != nil {
		if b.Cred.SELinux != "" {
			return unsupported("a context of SELinux (--context) needs Slurm's own step daemon")
		}
		return nil
	}
	l := s.Launch
	switch {
	case l == nil, l.Step.Step == wire.StepExtern:
		return nil
	case l.Cred.SELinux != "":
		return unsupported("a context of SELinux (--context) needs Slurm's own step daemon")
	case l.TLSCert != "":
		return unsupported("srun is to be sent encrypted messages (TLSType in slurm.conf), and this step daemon has no TLS")
	}
	return nil
}

// NoContainer is the refusal of a step with a container (--container), for a cause.
func NoContainer(cause error) error {
	return &Refusal{errContainer, "cannot run the step: --container: " + cause.Error()}
}

// debugError is srun's level of the step daemon's lines on stderr without --slurmd-debug.
const debugError = 2

// Ignored lists what a step asks for that has no effect here, as lines for slurmd's log: the
// step's result is no other for it.
func Ignored(s *wire.Stream) (lines []string) {
	l := s.Launch
	if l == nil {
		return nil
	}
	given := func(value uint32) bool { return value != 0 && value != wire.NoVal }
	if given(l.CPUFreqMin) || given(l.CPUFreqMax) || given(l.CPUFreqGov) {
		lines = append(lines, "--cpu-freq: CPU frequencies are left as they are")
	}
	if l.GresFreq != "" {
		lines = append(lines, "--gpu-freq: the GPUs' frequencies are left as they are")
	}
	if l.Debug > debugError {
		lines = append(lines, "--slurmd-debug: the step daemon prints no lines of its own; stepctl events has what the step did")
	}
	return lines
}
