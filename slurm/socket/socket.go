// Package socket is the unix socket of one step by which slurmd, scontrol, sstat, scancel and
// pam_slurm_adopt reach its step daemon. slurmd finds the steps of its node by the names of
// these sockets in its spool, and takes a step for ended when its socket is gone.
//
// It speaks Slurm's protocol, checks who may ask for what, and says the lines that users know
// from a cancelled step. It does nothing to processes: that is the Handler's. Begin with
// Listen.
package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/slurm/wire"
	"stepd/step"
)

// Config says which step the socket is of. All fields but Het are required.
type Config struct {
	// Release is slurmd's: the numbers on the socket differ by release.
	Release wire.Release
	// Spool is slurmd's spool, Node its name in slurm.conf: both are in the socket's name.
	Spool, Node string
	ID          step.ID
	// Name is how messages write the step: "12.0", "12.batch", "12.0+1".
	Name string
	// Het is the number of the component in a heterogeneous step, else nil.
	Het *uint32
	// SLUID is the step's number over all clusters, since 24.11.
	SLUID uint64
	// Owner is the uid of the tasks, SlurmUser slurmctld's.
	Owner, SlurmUser uint32
	// NodeID is the place of this node among the step's.
	NodeID uint32
	// Announces is true of the one node of a step whose users read why a step is cancelled:
	// see Announces.
	Announces bool
	// JobMemoryMB and StepMemoryMB are their limits, 0 for none.
	JobMemoryMB, StepMemoryMB uint64
	// Namespace is the job's mount namespace, nil where it has the node's. It may be closed while
	// the Server serves.
	Namespace *os.File
	// Names are the user's, for nss_slurm.
	Names Names
	// Extern is nil but for the extern step.
	Extern Extern
	// Running is closed when the tasks run, or will not: a signal that comes before waits for it.
	Running <-chan struct{}
	// Log takes one line of slurmd's log, without its end. Any goroutine calls it.
	Log func(line string)
}

// State is where a step is, as slurmd knows it.
type State int

// The states. slurmd waits for the end of a step that is in any but NotRunning.
const (
	NotRunning State = iota
	Starting
	Running
	Ending
)

// number is the state's on the socket: 23.11 has put one before Ending.
func (s State) number(v wire.Release) int32 {
	if s == Ending && v >= wire.V2311 {
		return int32(s) + 1
	}
	return int32(s)
}

// Task is a task of the step on this node.
type Task struct {
	// LocalID counts on this node, Rank in the step.
	LocalID, Rank uint32
	PID           int
	// Program is the first word of its command.
	Program string
	// Status is how it has ended, nil while it runs.
	Status *step.ExitStatus
}

// Scope is which processes a signal goes to.
type Scope int

// The scopes.
const (
	All    Scope = iota // every process of the step
	Leader              // a batch job's script alone
	Group               // the process group of a batch job's script
)

// Handler is what a step does for the socket's clients, whose rights have been checked. Its
// methods are called from several goroutines, as soon as Listen is called and until Close
// returns. An error that is or wraps a syscall.Errno reaches the client with this number,
// Slurm's own numbers among them; another one as EINVAL.
type Handler interface {
	// State is where the step is.
	State() State
	// Signal sends a signal, 1 to 64, to processes of the step, which is Running. It does not
	// wait. SIGTERM and SIGKILL also come while the step is Starting, and end it then. Tasks
	// that have not ended when one of these two comes are killed by command: their status
	// says nothing of the step. A step that is suspended takes SIGKILL alone, and answers
	// ErrSuspended to others.
	Signal(sig unix.Signal, to Scope) error
	// Cancel is SIGCONT and SIGTERM to all processes, after KillWait SIGKILL. It does not wait.
	Cancel()
	// Abort is SIGKILL to all processes: of a batch job that slurmctld starts anew, whose end
	// is not reported, or of a step that waits for no other node. It does not wait.
	Abort()
	// Terminate is SIGKILL to all processes at once, again each time, until none is left: the
	// node is drained where they do not end in UnkillableStepTimeout. It does not wait.
	Terminate()
	// Suspend and Resume act for the user by. Suspend returns when the processes stand still.
	// They return ErrSuspended and ErrNotSuspended where there is nothing to do.
	Suspend(by uint32) error
	Resume(by uint32) error
	// Attach connects the streams of the step, which is Running, to a client. The error wraps the
	// connection's.
	Attach(to Attachment) error
	// Tasks are this node's, in the order of their LocalID.
	Tasks() []Task
	// PIDs are all processes of the step, the daemons' own left out.
	PIDs() []int
	// Usage is what the tasks have used, packed, and how many they are; nil where the site
	// does without (jobacct_gather/none).
	Usage() (packed []byte, tasks int)
	// Late says that slurmd ends a step whose tasks have ended: the job is over.
	Late()
	// Ended takes the step's end on other nodes, which this one reports with its own.
	Ended(end NodesEnd) error
	// Reopen opens the log anew.
	Reopen() error
	// Say writes a line to the step's standard error, as an error of the step daemon.
	Say(line string)
}

// Extern is what the extern step does besides. Its methods are called as a Handler's.
type Extern interface {
	// Adopt takes a process that no step has started into the step. It returns when that is done.
	Adopt(pid int) error
	// Display is the number of the display that the job's programs have, 0 without one, and the
	// file of its cookie.
	Display() (number int32, authority string)
}

// Errors of a Handler that Slurm has a number for (slurm_errno.h).
const (
	ErrNotRunning   = unix.Errno(4027)
	ErrSuspended    = unix.Errno(4028)
	ErrNotSuspended = unix.Errno(4029)
	errNotSupported = unix.Errno(2036)
)

// Server serves one step's socket.
type Server struct {
	conf     Config
	handler  Handler
	listener *net.UnixListener
	path     string
	made     os.FileInfo   // the socket's file
	patience time.Duration // requestMax; tests shorten it
	closing  chan struct{}
	wg       sync.WaitGroup

	mu        sync.Mutex
	open      map[*net.UnixConn]uint32 // guarded by mu: connections, and their users
	byUser    map[uint32]int           // guarded by mu: connections of each user
	noted     map[string]bool          // guarded by mu: lines that the log has
	announced bool                     // guarded by mu: the user has read that the step is cancelled
}

// pathMax is the longest name of a socket that a client can write into its address: sun_path
// of unix(7), less the NUL at its end.
const pathMax = 107

// Path is the name of the step's socket.
func (c Config) Path() string {
	name := c.Node + "_" + c.ID.Key()
	if c.Het != nil {
		name += "." + strconv.FormatUint(uint64(*c.Het), 10)
	}
	return filepath.Join(c.Spool, name)
}

// Listen makes the socket and serves it: slurmd counts the step as begun when it returns. A
// file that an earlier daemon of the step has left is replaced.
func Listen(c Config, h Handler) (*Server, error) {
	path := c.Path()
	if n := len(path); n > pathMax {
		return nil, fmt.Errorf("cannot listen at %q: the name has %d bytes, and Slurm's commands cannot connect to one with more than %d; give slurmd a shorter SlurmdSpoolDir", path, n, pathMax)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot listen at %q: what is left there does not go: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %q: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // Close does it, if the file is still the one
	s := &Server{
		conf: c, handler: h, listener: l, path: path, patience: requestMax, closing: make(chan struct{}),
		open: make(map[*net.UnixConn]uint32), byUser: make(map[uint32]int), noted: make(map[string]bool),
	}
	if s.made, err = os.Lstat(path); err == nil {
		err = os.Chmod(path, 0o777) // who may ask for what is checked by request
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("cannot listen at %q: %w", path, err)
	}
	s.wg.Go(s.accept)
	return s, nil
}

const (
	// usersMax bounds the connections of users to one step, userMax the ones of one of them, and
	// trustedMax the ones of root and SlurmUser: no user keeps slurmd or another user out.
	usersMax   = 128
	userMax    = 16
	trustedMax = 256
	// acceptPause is how long no connection is taken after one failed.
	acceptPause = 100 * time.Millisecond
	// closePatience is how long Close waits for answers that are on their way.
	closePatience = 3 * time.Second
)

// accept takes connections until the listener is closed.
func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// No descriptor is left: one comes free when a client goes, and nothing tells.
			s.note("accept", fmt.Sprintf("cannot take a connection at %q: %v", s.path, err))
			select {
			case <-s.closing:
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		cred, err := linux.PeerCred(c)
		if err != nil {
			c.Close()
			continue
		}
		s.admit(c, cred.Uid)
	}
}

// admit serves a connection, unless its user has too many.
func (s *Server) admit(c *net.UnixConn, uid uint32) {
	s.mu.Lock()
	full, closed := s.full(uid), s.closed()
	if !full && !closed {
		s.open[c] = uid
		s.byUser[uid]++
		s.wg.Go(func() { s.serve(c, uid) })
	}
	s.mu.Unlock()
	if full {
		s.note(fmt.Sprintf("full %d", uid), fmt.Sprintf("user %d has too many connections at %q: further ones are closed", uid, s.path))
	}
	if full || closed {
		c.Close()
	}
}

// full reports whether the user may have no more connections; the caller holds mu.
func (s *Server) full(uid uint32) bool {
	trusted := s.byUser[0]
	if s.conf.SlurmUser != 0 {
		trusted += s.byUser[s.conf.SlurmUser]
	}
	if s.trusts(uid) {
		return trusted >= trustedMax
	}
	return len(s.open)-trusted >= usersMax || s.byUser[uid] >= userMax
}

// closed reports whether Close has been called.
func (s *Server) closed() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// trusts reports whether the user is root or SlurmUser.
func (s *Server) trusts(uid uint32) bool { return uid == 0 || uid == s.conf.SlurmUser }

// owns reports whether the user may act on the step.
func (s *Server) owns(uid uint32) bool { return uid == s.conf.Owner || s.trusts(uid) }

// gone forgets a connection.
func (s *Server) gone(c *net.UnixConn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := s.open[c]
	delete(s.open, c)
	if s.byUser[uid]--; s.byUser[uid] <= 0 {
		delete(s.byUser, uid)
	}
}

// notesMax bounds the lines that clients cause in the log.
const notesMax = 64

// note logs a line once for each key.
func (s *Server) note(key, line string) {
	s.mu.Lock()
	first := !s.noted[key] && len(s.noted) < notesMax
	if first {
		s.noted[key] = true
	}
	s.mu.Unlock()
	if first {
		s.conf.Log(line)
	}
}

// Close removes the socket, by which slurmd learns that the step is over, and ends all
// connections: those that are owed an answer have it, or closePatience.
func (s *Server) Close() {
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.made) {
		if err := os.Remove(s.path); err != nil {
			s.conf.Log(fmt.Sprintf("cannot remove the step's socket: %v", err))
		}
	}
	s.listener.Close()
	s.mu.Lock()
	close(s.closing)
	for c := range s.open {
		c.SetReadDeadline(time.Unix(1, 0)) // the wait for a next request is over
	}
	s.mu.Unlock()
	over := make(chan struct{})
	go func() { defer close(over); s.wg.Wait() }()
	select {
	case <-over:
	case <-time.After(closePatience):
		s.mu.Lock()
		for c := range s.open {
			c.Close()
		}
		s.mu.Unlock()
	}
}
