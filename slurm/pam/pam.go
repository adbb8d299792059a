// Package pam has a PAM session opened for a step, as UsePAM asks for: the service is slurm, and
// what its modules do to limits (pam_limits) reaches the tasks. The modules run in a process of
// their own, the C program in folder program: one that hangs or crashes costs the step, and
// neither its daemon nor slurmd. A Session is a plugin of the step (task.Plugin).
package pam

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/srunopt"
	"stepd/step/launch"
)

// What a pamhost inherits and answers, as program/pamhost.h has it.
const (
	fdLife   = 3
	fdAnswer = 4

	limitsOf = 16
	textMax  = 216
)

// patience bounds each, the opening and the close of a session.
const patience = 20 * time.Second

// answer is a pamhost's, of one of the two.
type answer struct {
	Code   int32
	Nice   [2]int32 // before the session, and in it
	_      uint32
	Before [limitsOf]limit
	After  [limitsOf]limit
	Text   [textMax]byte
}

type limit struct{ Soft, Hard uint64 }

// Config is whose session it is. All is required but Env and KeepNice.
type Config struct {
	// Program is the path of pamhost.
	Program string
	// User, GID and Groups are the user's.
	User   string
	GID    uint32
	Groups []uint32
	// Node is the remote host, as the modules see it.
	Node string
	// Env is the step's environment: the limits that the user has chosen there (SLURM_RLIMIT_*)
	// hold within the session's hard ones.
	Env []string
	// KeepNice: the tasks have the user's nice value, and not the session's.
	KeepNice bool
	// Stderr is where modules write; nil is the caller's own.
	Stderr *os.File
}

// Session is a step's session. The methods are task.Plugin's: called in its order, by one
// goroutine.
type Session struct {
	cfg     Config
	wait    time.Duration // patience, but in tests
	life    *os.File      // nil where no session is open
	answer  *os.File
	pidfd   int
	opened  answer
	refused bool
}

// New makes a session that is not open yet.
func New(cfg Config) *Session { return &Session{cfg: cfg, wait: patience} }

// Name is the setting's.
func (s *Session) Name() string { return "UsePAM" }

// PreSetuid opens the session.
func (s *Session) PreSetuid() error {
	err := s.start()
	if err == nil {
		s.opened, err = s.read()
	}
	if err != nil {
		s.end()
		s.refused = true
		return fmt.Errorf("cannot open a PAM session for %q: %w", s.cfg.User, err)
	}
	return nil
}

// Refused reports whether the session could not be opened: not of nil.
func (s *Session) Refused() bool { return s != nil && s.refused }

// start starts the program. It is the daemon's sibling and not its child, as the keeper is, and
// in a session of its own, where no signal for the daemon's group reaches it: should the daemon
// be killed, it closes the session.
func (s *Session) start() error {
	in, life, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make a pipe: %w", err)
	}
	defer in.Close()
	s.life = life
	from, out, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make a pipe: %w", err)
	}
	defer out.Close()
	s.answer = from
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	stderr := uintptr(2)
	if s.cfg.Stderr != nil {
		stderr = s.cfg.Stderr.Fd()
	}
	_, _, err = syscall.StartProcess(s.cfg.Program, []string{"pamhost", s.cfg.User, strconv.FormatUint(uint64(s.cfg.GID), 10), s.cfg.Node}, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), null.Fd(), stderr, fdLife: in.Fd(), fdAnswer: out.Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid: true, Cloneflags: unix.CLONE_PARENT, PidFD: &s.pidfd,
			Credential: &syscall.Credential{Groups: s.cfg.Groups},
		},
	})
	if err != nil {
		return fmt.Errorf("cannot start %q: %w", s.cfg.Program, err)
	}
	return nil
}

// read reads an answer.
func (s *Session) read() (a answer, err error) {
	data := make([]byte, binary.Size(&a))
	if err := s.answer.SetReadDeadline(time.Now().Add(s.wait)); err != nil {
		return a, err
	}
	switch _, err := io.ReadFull(s.answer, data); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return a, fmt.Errorf("a module of pam.d/slurm has not returned within %v", s.wait)
	case err != nil:
		return a, errors.New("pamhost has died: a module of pam.d/slurm has crashed, or it was killed")
	}
	if _, err := binary.Decode(data, binary.NativeEndian, &a); err != nil {
		return a, err
	}
	if a.Code != 0 {
		text, _, _ := bytes.Cut(a.Text[:], []byte{0})
		return a, fmt.Errorf("%s (pam.d/slurm)", bytes.ToValidUTF8(text, []byte{'?'}))
	}
	return a, nil
}

// end ends the program, whatever it does.
func (s *Session) end() {
	if s.pidfd > 0 {
		_ = unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0) // ESRCH: it has ended
		unix.Close(s.pidfd)
	}
	for _, f := range []*os.File{s.life, s.answer} {
		if f != nil {
			f.Close()
		}
	}
	s.pidfd, s.life, s.answer = 0, nil, nil
}

// PreLaunch has the tasks set the session's limits themselves, which is the last that they do:
// the soft ones where the user has chosen none, and hard ones that are lower.
func (s *Session) PreLaunch(l *launch.Launch) error {
	for _, known := range linux.ResourceLimits {
		is := s.opened.After[known.Number]
		if is == s.opened.Before[known.Number] {
			continue
		}
		name, soft := srunopt.LimitPrefix+known.Name+"=", strconv.FormatUint(is.Soft, 10)
		for _, e := range s.cfg.Env {
			if chosen, ok := strings.CutPrefix(e, name); ok {
				soft = chosen
			}
		}
		l.CommonEnv = append(l.CommonEnv, name+soft+":"+strconv.FormatUint(is.Hard, 10))
	}
	return nil
}

// PreLaunchPriv gives a task what it cannot give itself: hard limits that are higher, limits that
// Slurm does not propagate, and the nice value.
func (s *Session) PreLaunchPriv(_, pid int) error {
	for resource, is := range s.opened.After {
		was := s.opened.Before[resource]
		own := slices.ContainsFunc(linux.ResourceLimits, func(known linux.ResourceLimit) bool { return known.Number == resource })
		if is == was || own && is.Hard <= was.Hard {
			continue
		}
		err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: is.Soft, Max: is.Hard}, nil)
		if err != nil && !linux.IsGone(err) {
			return fmt.Errorf("cannot set limit %d of task %d (it takes CAP_SYS_RESOURCE): %w", resource, pid, err)
		}
	}
	if nice := s.opened.Nice; nice[0] != nice[1] && !s.cfg.KeepNice {
		if err := unix.Setpriority(unix.PRIO_PROCESS, pid, int(nice[1])); err != nil && !linux.IsGone(err) {
			return fmt.Errorf("cannot set the nice value of task %d: %w", pid, err)
		}
	}
	return nil
}

// PostTerm does nothing.
func (s *Session) PostTerm(launch.TaskEnd) {}

// PostStep closes the session, if it is open.
func (s *Session) PostStep() error {
	if s.life == nil {
		return nil
	}
	s.life.Close()
	s.life = nil
	_, err := s.read()
	if err == nil { // the modules clean up in pam_end
		ctx, cancel := context.WithTimeout(context.Background(), s.wait)
		err = linux.PidfdWait(ctx, s.pidfd)
		cancel()
	}
	s.end()
	if err != nil {
		return fmt.Errorf("cannot close the PAM session of %q: %w", s.cfg.User, err)
	}
	return nil
}
