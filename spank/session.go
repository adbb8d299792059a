package spank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// SessionConfig is what Open needs.
type SessionConfig struct {
	// Program is the path of the spankhost binary.
	Program string
	// Context is any but ContextRemote, which is package task's.
	Context Context
	Stack   Stack
	// AllowReleases lists further releases to accept ("20.11", "any").
	AllowReleases []string
	// Daemon is the environment of the daemon that the host belongs to, with which it is
	// executed; nil on a user's side: nothing that a user sets reaches ld.so there. Env is set
	// over it for the plugins.
	Daemon, Env []string
	// JobControl is the job control environment: NAME=VALUE, without a prefix.
	JobControl [][]byte
	NodeName   string
	// User is the user that it is about: the caller in local and allocator context, the
	// job's user in job_script. Job has the job's own fields of a step, in job_script alone;
	// JobState is RUNNING, and in the epilog how it has ended.
	User     step.User
	Job      *step.Spec
	JobState step.State
	// Files are the plugins' stdin, stdout and stderr; nil is /dev/null. In
	// job_script context they are /dev/null always.
	Files [3]*os.File
	// HookTimeout bounds each hook; 0 is no bound.
	HookTimeout time.Duration
	// StopTimeout bounds how long the host may stand still, stopped by a signal, while a call
	// of a method waits for it; 0 is no bound.
	StopTimeout time.Duration
	// Log hears what plugins and the host say, one record at a time, from any
	// goroutine until Close; with nil the records are dropped.
	Log func(launch.HostRecord)
}

// Session is a spankhost in a context in which nothing is forked. Its methods
// are called by one goroutine, in the order of host/protocol.h, and each
// returns a *launch.HookError where a plugin failed (RC is set) or took the host
// down (Cause says how, Exit with which status). After the latter all methods but Close fail.
type Session struct {
	host   *Host
	cfg    SessionConfig
	stop   func() bool   // ends the watch of Open's ctx
	done   chan struct{} // closed when the host has ended and was reaped
	status step.ExitStatus
	asked  bool // it was asked to end

	mu     sync.Mutex
	cause  string // guarded by mu: why we killed it
	closed bool   // guarded by mu
}

// Open starts the host and loads the stack. It returns lines for the user about
// plugins that are left out, and an error where a required one is among them.
// The end of ctx ends the host.
func Open(ctx context.Context, cfg SessionConfig) (*Session, []string, error) {
	if cfg.Context == ContextRemote {
		return nil, nil, errors.New("internal error: a session in remote context")
	}
	if cfg.Log == nil {
		cfg.Log = func(launch.HostRecord) {}
	}
	s := &Session{cfg: cfg, done: make(chan struct{})}
	if err := s.start(); err != nil {
		return nil, nil, err
	}
	s.stop = context.AfterFunc(ctx, func() { s.Kill(fmt.Sprintf("was ended: %v", context.Cause(ctx))) })
	problems, err := s.load()
	if err != nil {
		err = s.explain(err)
		return nil, problems, errors.Join(err, s.Close())
	}
	return s, problems, nil
}

// start runs the host from a thread that then waits for its end: it must live
// as long as the host (prctl(2), PR_SET_PDEATHSIG).
func (s *Session) start() error {
	started := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine, after the host.
		runtime.LockOSThread()
		h, err := Start(StartConfig{
			Program: s.cfg.Program, Title: fmt.Sprintf("spankhost: [%s]", s.cfg.Context), Env: s.cfg.Daemon, CgroupFD: -1, Files: s.cfg.Files, KeepDir: true,
			OwnGroup: s.cfg.Context == ContextSlurmd || s.cfg.Context == ContextJobScript,
		})
		s.host = h
		started <- err
		if err == nil {
			s.reap(h.PID())
			close(s.done)
		}
	}()
	return <-started
}

func (s *Session) reap(pid int) {
	var ws unix.WaitStatus
	if _, err := linux.Uninterrupted(func() (int, error) { return unix.Wait4(pid, &ws, 0, nil) }); err == nil {
		s.status = step.ExitStatus(ws)
	}
}

// load is SETUP and LOAD.
func (s *Session) load() ([]string, error) {
	h := s.host
	// A client prints records of the level of information to its user.
	h.quiet = s.cfg.Context == ContextLocal || s.cfg.Context == ContextAllocator
	problems, err := h.prepare(s.cfg.Stack, s.cfg.AllowReleases, s.cfg.Log)
	if err != nil {
		return problems, err
	}
	blob, err := s.blob()
	if err != nil {
		return problems, err
	}
	if err := h.sendSetup(blob, nil, nil, launch.Namespaces{}); err != nil {
		return problems, err
	}
	var left []string
	err = s.watched(func() (err error) { left, err = h.LoadStack(); return err })
	return append(problems, left...), err
}

func (s *Session) blob() ([]byte, error) {
	w := &writer{}
	w.tlvU32(tagContext, uint32(s.cfg.Context))
	w.tlvU32(tagUID, s.cfg.User.UID)
	w.tlvU32(tagGID, s.cfg.User.GID)
	w.tlvStr(tagUser, s.cfg.User.Name)
	if job := s.cfg.Job; job != nil {
		w.tlvU32(tagJobID, job.ID.Job)
		w.tlvStr(tagCwd, job.Cwd)
		putJob(w, job)
		putEnd(w, s.cfg.JobState)
	}
	w.tlvStr(tagNodeName, s.cfg.NodeName)
	w.tlvStrs(tagHostEnv, s.cfg.Env)
	for _, e := range s.cfg.JobControl {
		w.tlvStr(tagJobControl, string(e))
	}
	if s.cfg.Context == ContextJobScript {
		if err := putScriptOptions(w, s.cfg.JobControl); err != nil {
			return nil, err
		}
	}
	putStack(w, s.cfg.Stack.Plugins)
	if len(w.B) > configMax {
		return nil, fmt.Errorf("cannot tell spankhost the environment: %d bytes, and %d is the limit", len(w.B), configMax)
	}
	return w.B, nil
}

// watched makes one call to the host, bounds its hooks and its standing still, and explains its end.
func (s *Session) watched(call func() error) error {
	if s.cfg.HookTimeout > 0 || s.cfg.StopTimeout > 0 {
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { s.bound(done) })
		defer wg.Wait()
		defer close(done)
	}
	err := call()
	s.host.drainLog() // what the plugins have said comes before what the caller says of it
	return s.explain(err)
}

// bound kills the host when a hook overruns its time, or when the host is stopped for too long. A
// hook begins without a system call: the board has the time.
func (s *Session) bound(done <-chan struct{}) {
	var hook <-chan time.Time
	if s.cfg.HookTimeout > 0 {
		hook = time.After(s.cfg.HookTimeout)
	}
	stops := linux.NewStopWatch(s.cfg.StopTimeout, func() bool { return s.cfg.StopTimeout > 0 && linux.ChildStopped(s.host.PID()) })
	defer stops.End()
	look := func() {
		if stops.Look() {
			s.host.tell(launch.HostRecord{Level: launch.LogError, LocalID: -1, Text: fmt.Sprintf(
				"%s is stopped: it is killed, unless it goes on within %v (UnkillableStepTimeout)", s.hostName(), s.cfg.StopTimeout)})
		}
	}
	look()
	for {
		select {
		case <-done:
			return
		case <-stops.MayBe:
			look()
		case <-stops.Late:
			if stops.Over() {
				s.Kill(fmt.Sprintf("was stopped, and did not go on within %v (UnkillableStepTimeout in slurm.conf)", s.cfg.StopTimeout))
				return
			}
		case <-hook:
			left := s.cfg.HookTimeout
			if w := s.host.Where(-1); w.InHook() {
				left -= linux.Uptime() - time.Duration(w.SinceNS)
			}
			if left <= 0 {
				s.Kill(fmt.Sprintf("did not return within %v (HookTimeout in stepd.conf)", s.cfg.HookTimeout))
				return
			}
			hook = time.After(left)
		}
	}
}

// Kill ends the host, hook or not; cause is the reported reason of its end. Any
// goroutine may call it.
func (s *Session) Kill(cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.cause = cmp.Or(s.cause, cause)
	s.host.Kill()
}

// dyingTime is how long a host may take from the end of its channel to its own.
const dyingTime = 2 * time.Second

// explain turns the end of the channel into what happened to the host.
func (s *Session) explain(err error) error {
	if !errors.Is(err, launch.ErrHostGone) {
		return err
	}
	select {
	case <-s.done:
	case <-time.After(dyingTime):
		s.Kill("closed its control channel")
		<-s.done
	}
	cause, exit := s.ending()
	if hook, ok := s.host.Crash(-1, cause); ok {
		if hook.Cause == cause { // else the host has given up by itself
			hook.Exit = exit
		}
		return hook
	}
	return fmt.Errorf("%s: %s", s.hostName(), cause)
}

// hostName names the host's process in errors and the log.
func (s *Session) hostName() string {
	return fmt.Sprintf("spankhost (%s context, pid %d)", s.cfg.Context, s.host.PID())
}

// ending words the host's end; exit is its status where it has ended itself by exit(3).
// It is called when done is closed.
func (s *Session) ending() (cause string, exit *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != "" {
		return s.cause, nil
	}
	exit, _ = s.status.CodeAndSignal()
	return launch.HookEnd(s.status), exit
}

// Done is closed when the host has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Ending says how the host has ended, as an error that names the plugin where
// one was at work; nil while it lives.
func (s *Session) Ending() error {
	select {
	case <-s.done:
		return s.explain(launch.ErrHostGone)
	default:
		return nil
	}
}

// Doing reports in which hook of which plugin the host is, and since when. It may be
// called beside the other methods.
func (s *Session) Doing() (plugin, hook string, since time.Duration, in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", "", 0, false
	}
	w := s.host.Where(-1)
	if !w.InHook() {
		return "", "", 0, false
	}
	return s.host.PluginName(w.Plugin), w.Hook, linux.Uptime() - time.Duration(w.SinceNS), true
}

// Close lets the host end as its context does, with fini() of the plugins where it owes that,
// and waits for it and for its last words. What goes wrong there is told to the log.
func (s *Session) Close() error {
	if !s.asked && s.Ending() == nil {
		err := s.exit()
		if hook, ok := errors.AsType[*launch.HookError](err); err != nil && (!ok || hook.RC == nil) {
			s.host.tell(launch.HostRecord{Level: launch.LogError, LocalID: -1, Text: err.Error()})
		}
	}
	s.stop()
	s.host.Kill()
	<-s.done
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.host.Close()
	return nil
}

// exit asks the host to end and waits until it has. A code that slurm_spank_exit returns is
// the error of a host that has ended well all the same.
func (s *Session) exit(fds ...int) error {
	s.asked = true
	return s.watched(func() error {
		err := s.host.do(cmdExit, nil, fds, nil)
		hook, returned := errors.AsType[*launch.HookError](err)
		gone := errors.Is(err, launch.ErrHostGone)
		if err != nil && !gone && (!returned || hook.RC == nil) {
			return err
		}
		if w := s.host.Where(-1); gone && w.InHook() && w.Plugin >= 0 {
			return err // else a plugin has closed its channel, and it may have done all
		}
		<-s.done // what destructors and atexit handlers do is bounded as hooks are
		if s.status != 0 {
			return launch.ErrHostGone
		}
		if gone {
			return nil
		}
		return err
	})
}

// Hooks lists the hooks that the plugins have which were loaded, each once. It is valid
// after Open.
func (s *Session) Hooks() []string {
	hooks := []string{}
	for i, l := range s.host.loaded {
		if !s.host.keep[i] {
			continue
		}
		for _, h := range l.Hooks {
			if !slices.Contains(hooks, h) {
				hooks = append(hooks, h)
			}
		}
	}
	slices.Sort(hooks)
	return hooks
}

// Whole reports whether every plugin of the stack was loaded: an optional one that
// was not may be there the next time. It is valid after Open.
func (s *Session) Whole() bool { return !slices.Contains(s.host.keep, false) }

// Context says in which program a plugin is loaded, by the numbers of spank.h.
type Context uint32

const (
	ContextLocal     Context = 1 // stepctl run
	ContextRemote    Context = 2 // stepd
	ContextAllocator Context = 3 // stepctl alloc, stepctl batch
	ContextSlurmd    Context = 4 // noded
	ContextJobScript Context = 5 // prolog and epilog
)

// String is the context's name in spank(8).
func (c Context) String() string {
	names := [...]string{"", "local", "remote", "allocator", "slurmd", "job_script"}
	if c < 1 || int(c) >= len(names) {
		return fmt.Sprintf("context %d", uint32(c))
	}
	return names[c]
}
