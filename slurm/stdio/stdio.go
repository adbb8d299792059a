// Package stdio is the step daemon's half of srun's streams: the tasks' output goes to srun in
// frames on one connection, and srun's input comes back on it. Files that tasks have for a
// stream are the tasks' own, but for files whose lines are labelled. Begin with New; the order of calls is Open,
// Attach, Drain, Close.
package stdio

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/slurm/wire"
	"stepd/step"
	"stepd/step/launch"
)

// Config is what the streams of a step on this node need.
type Config struct {
	Release wire.Release   // srun's
	Node    uint32         // this node's place in the step
	Server  netip.AddrPort // where srun waits for the streams
	Key     []byte         // the credential's signature, as slurmd has sent it; it is a secret
	Ranks   []int          // the tasks here, ascending: a task's place is its local id
	UID     uint32         // the step's user, who may open the pipes anew (/dev/stdout)
	// Streams are stdin, stdout and stderr as the plan has them: the streams of Kind
	// step.StreamClient go by here.
	Streams [3]step.Stream
	// Files are the outputs that go by here to labelled files, by stream; they are of Kind
	// step.StreamClient, too. Opener opens them.
	Files  [3]Files
	Opener Opener
	Tasks  int // of the whole step: a label is as wide as its highest rank
	First  int // the label of rank 0
	// Speaker is the name before messages to the user: "slurmstepd-n1".
	Speaker string
	// Lines says that output goes out by whole lines (srun without -u). Without it, it goes as
	// it comes, and stdout is a terminal that changes no byte.
	Lines bool
	// Terminal is rank 0's, on each node of a step that has one; nil is none.
	Terminal *Terminal
	// Log gets what an administrator is to know. It is required.
	Log func(level launch.LogLevel, text string)
}

// Attacher is a step whose tasks have not begun: *task.Step is one.
type Attacher interface {
	// Attach takes over a descriptor for stream fd of a rank, after an error as well.
	Attach(fd, rank, handle int) error
	// AttachDone says that the step has all of them.
	AttachDone()
}

// Streams are the streams of a step on this node. Methods may be called from any goroutine.
type Streams struct {
	cfg      Config
	loop     *loop
	terminal *terminal // nil where no task here has one
	stop     func()    // guarded by loop.mu: ends what Open has begun beside the loop
}

// New makes the streams of a step. It opens nothing.
func New(cfg Config) *Streams {
	s := &Streams{cfg: cfg, loop: &loop{log: cfg.Log, name: cfg.Speaker, patience: srunPatience, endPatience: endPatience, stall: stallMax, linger: endMax, done: make(chan struct{}), all: make(chan struct{})}}
	l := s.loop
	l.in.byID, l.in.ranks = make(map[uint16]*input), make(map[uint16]bool)
	for local, rank := range cfg.Ranks {
		l.in.ranks[uint16(rank)] = true
		for _, k := range []kind{stdout, stderr} {
			if s.has(int(k), rank) {
				h := header{kind: k, rank: uint16(rank), local: uint16(local)}
				o := &output{header: h, task: rank, src: -1, byLines: cfg.Lines, labelled: cfg.Files[k].Path != nil}
				o.terminal = k == stdout && !cfg.Lines && !o.labelled
				l.outs = append(l.outs, o)
				l.there[k] = true
			}
		}
		if s.has(0, rank) {
			l.in.all = append(l.in.all, &input{task: rank, fd: -1})
			l.in.byID[uint16(rank)] = l.in.all[len(l.in.all)-1]
		}
	}
	if s.hasTerminal() {
		s.makeTerminal()
	}
	s.makeVoices()
	l.open = len(l.outs)
	return s
}

// has reports whether stream fd of a task goes by here.
func (s *Streams) has(fd, rank int) bool {
	st := s.cfg.Streams[fd]
	return st.Kind == step.StreamClient && (st.Rank == nil || *st.Rank == rank)
}

// connectTimeout bounds the connection to srun: the tasks wait for it.
const connectTimeout = 10 * time.Second

// Open connects to srun, which waits for every node of the step, also where none of its
// streams goes there. The error wraps the connection's.
func (s *Streams) Open(ctx context.Context) error {
	if err := s.open(); err != nil {
		err = fmt.Errorf("cannot connect the tasks' streams to srun at %v: %w", s.cfg.Server, err)
		if s.terminal != nil {
			s.terminal.resolve(err)
		}
		return err
	}
	if s.terminal != nil && s.cfg.Terminal.Window != "" {
		ctx, cancel := context.WithCancel(ctx)
		s.loop.mu.Lock()
		s.stop = cancel
		s.loop.mu.Unlock()
		go s.followWindow(ctx)
	}
	return nil
}

func (s *Streams) open() error {
	var ends [3]int
	for _, o := range s.loop.outs {
		if !o.labelled {
			ends[o.kind]++
		}
	}
	if s.loop.voices.extra {
		ends[stderr]++
	}
	hello, err := greeting(s.cfg.Release, s.cfg.Node, ends, s.cfg.Key)
	if err != nil {
		return err
	}
	sock, err := greet(s.cfg.Server, hello)
	if err != nil {
		return err
	}
	return s.loop.begin(sock)
}

// Attach makes the tasks' streams, and gives the step their ends: after Open, before the step
// waits for them.
func (s *Streams) Attach(st Attacher) error {
	defer st.AttachDone()
	defer s.loop.allGiven()
	if s.terminal != nil {
		return s.attachTerminal()
	}
	files, err := s.openFiles()
	if err != nil {
		return err
	}
	wide := wideMax
	for at, o := range s.loop.outs {
		make := tasksPipe
		if o.terminal {
			make = tasksTerminal
		}
		if err := s.attach(st, int(o.kind), o.task, &wide, make, func(ours int) error {
			return s.loop.add(news{o: o, file: files[o], fd: ours}, unix.EPOLLIN, wordOutput, at)
		}); err != nil {
			return err
		}
	}
	for at, i := range s.loop.in.all {
		if err := s.attach(st, 0, i.task, &wide, tasksInput, func(ours int) error {
			return s.loop.add(news{i: i, fd: ours}, unix.EPOLLOUT, wordInput, at)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Streams) attach(st Attacher, fd, rank int, wide *int, make func() (ours, tasks int, err error), add func(ours int) error) error {
	ours, tasks, err := make()
	if err != nil {
		return fmt.Errorf("cannot make stream %d of task %d: %w", fd, rank, err)
	}
	if err = unix.SetNonblock(ours, true); err == nil {
		err = unix.Fchown(tasks, int(s.cfg.UID), -1)
	}
	if err != nil {
		unix.Close(ours)
		unix.Close(tasks)
		return fmt.Errorf("cannot make stream %d of task %d: %w", fd, rank, err)
	}
	if *wide--; *wide >= 0 {
		_, _ = unix.FcntlInt(uintptr(ours), unix.F_SETPIPE_SZ, pipeSize) // a terminal has no size
	}
	if err := st.Attach(fd, rank, tasks); err != nil {
		unix.Close(ours)
		return err
	}
	return add(ours)
}

// pipeSize is what the pipes of the first wideMax streams hold; the others hold the kernel's
// 64 KiB.
const pipeSize, wideMax = 256 << 10, 128

// tasksPipe makes a pipe that a task writes to.
func tasksPipe() (ours, tasks int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	return p[0], p[1], nil
}

// tasksInput makes a pipe that a task reads.
func tasksInput() (ours, tasks int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	return p[1], p[0], nil
}

// tasksTerminal makes a terminal that a task writes to, and that passes on what it writes
// unchanged.
func tasksTerminal() (ours, tasks int, err error) {
	ours, tasks, err = linux.OpenTerminal()
	if err != nil {
		return -1, -1, err
	}
	t, err := unix.IoctlGetTermios(tasks, unix.TCGETS)
	if err == nil {
		t.Oflag &^= unix.OPOST
		err = unix.IoctlSetTermios(tasks, unix.TCSETS, t)
	}
	if err != nil {
		unix.Close(ours)
		unix.Close(tasks)
		return -1, -1, fmt.Errorf("set the modes of a terminal: %w", err)
	}
	return ours, tasks, nil
}

// Used reports whether what tasks write comes by here.
func (s *Streams) Used() bool { return len(s.loop.outs) > 0 }

// Fill writes how many bytes the tasks have written so far into the record; nil is of a
// stream that does not come by here.
func (s *Streams) Fill(rec *step.Record) {
	s.loop.mu.Lock()
	passed := s.loop.passed
	s.loop.mu.Unlock()
	for k, to := range map[kind]**int64{stdout: &rec.StdoutBytes, stderr: &rec.StderrBytes} {
		if s.loop.there[k] {
			*to = new(passed[k])
		}
	}
}

// Drain returns when the last byte of the tasks is on its way to srun: no process of the step
// is left. A stream that another process keeps open is closed after limit, and reported. It is
// called once. Say may follow.
func (s *Streams) Drain(limit time.Duration) []launch.Held {
	l := s.loop
	if !l.enter(draining) {
		return nil
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-l.all:
		return nil
	case <-late.C:
	}
	l.enter(closing)
	<-l.all
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(l.held, func(a, b launch.Held) int { return 4*(a.Rank-b.Rank) + a.FD - b.FD })
	return l.held
}

// Close ends the streams: srun gets what is left, and the ends of all streams. It returns when
// srun has closed the connection, or when ctx ends, with its cause.
func (s *Streams) Close(ctx context.Context) error {
	l := s.loop
	l.mu.Lock()
	stop := s.stop
	l.mu.Unlock()
	if stop != nil {
		stop()
	}
	if !l.enter(finishing) {
		return nil
	}
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
	}
	l.enter(stopped)
	<-l.done
	return fmt.Errorf("cannot pass on all output: srun has not closed its streams: %w", context.Cause(ctx))
}
