package spank

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"stepd/step/launch"
)

// StartConfig is what Start needs to run the host.
type StartConfig struct {
	// Program is the path of the spankhost binary.
	Program string
	// Title is its argv[0]: "spankhost: [12.0]".
	Title string
	// Env is what it is executed with, and so what ld.so acts on. What only plugins are to see
	// is set later, by SETUP.
	Env []string
	// CgroupFD is the directory in which the host is born, -1 for none.
	CgroupFD int
	// Files are its stdin, stdout and stderr; nil is /dev/null.
	Files [3]*os.File
	// OwnGroup makes it leader of a process group: what a plugin sends to its
	// own group must not hit the process that started the host. Not for one that is to
	// read from a user's terminal.
	OwnGroup bool
	// KeepDir lets it begin in the caller's directory instead of "/".
	KeepDir bool
}

// Host is one running spankhost. Its methods are called by one goroutine, in
// the order of host/protocol.h; Where, PID and Kill by any.
type Host struct {
	pid    int
	pidfd  int
	killed sync.Once // by Kill

	control *net.UnixConn
	log     *net.UnixConn

	board   *board
	told    int // entries of the board's journal that were reported
	stack   []Plugin
	loaded  []Loaded // by index in the stack
	names   []string // base names, for messages
	keep    []bool   // what Init hands to the hooks
	allow   []string // further releases, from the Spec
	ranks   []int    // of the tasks by local id; the host's protocol counts by local id
	nfds    int      // descriptors in the host's table
	logDone chan struct{}
	logMu   sync.Mutex              // held while a record is read and passed on
	logBuf  []byte                  // guarded by logMu
	sinkMu  sync.Mutex              // held while sink is called
	sink    func(launch.HostRecord) // hears the log
	threads atomic.Pointer[threads] // the last that a plugin left running
	left    []string                // guarded by logMu: what left threads running in a step
	crashes crashPlaces             // guarded by logMu
	quiet   bool                    // what plugins lack is not for the user

	buf, oob []byte // of recv, made once: a step has a reply for each task
}

// Start runs the host program. It must be called on a thread that lives as
// long as the process: the host's parent-death signal fires when the thread
// ends that forked it (prctl(2), PR_SET_PDEATHSIG). The caller reaps PID.
func Start(cfg StartConfig) (*Host, error) {
	control, childControl, err := seqpacketPair("spank-control")
	if err != nil {
		return nil, err
	}
	defer childControl.Close()
	log, childLog, err := seqpacketPair("spank-log")
	if err != nil {
		control.Close()
		return nil, err
	}
	defer childLog.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %q: %w", "/dev/null", err)
	}
	defer null.Close()
	h := &Host{control: control, log: log, pidfd: -1, logDone: make(chan struct{})}
	attr := &syscall.ProcAttr{
		Dir:   "/",
		Env:   cfg.Env,
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), hostFDControl: childControl.Fd(), hostFDLog: childLog.Fd()},
		Sys:   &syscall.SysProcAttr{PidFD: &h.pidfd, Setpgid: cfg.OwnGroup},
	}
	for i, f := range cfg.Files {
		if f != nil {
			attr.Files[i] = f.Fd()
		}
	}
	if cfg.KeepDir {
		attr.Dir = ""
	}
	if cfg.CgroupFD >= 0 {
		attr.Sys.UseCgroupFD = true
		attr.Sys.CgroupFD = cfg.CgroupFD
	}
	h.pid, err = syscall.ForkExec(cfg.Program, []string{cfg.Title}, attr)
	if err != nil {
		control.Close()
		log.Close()
		return nil, fmt.Errorf("cannot start %q: %w", cfg.Program, err)
	}
	return h, nil
}

// PID is the host's process id.
func (h *Host) PID() int { return h.pid }

// Kill ends the host at once, wherever it is. It is idempotent. A call that waits for the host's
// answer ends as well: with what the host has said, or after dyingTime where it does not die,
// since it sleeps in the kernel.
func (h *Host) Kill() {
	if h.pidfd >= 0 {
		unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0)
	}
	h.killed.Do(func() { _ = h.control.SetReadDeadline(time.Now().Add(dyingTime)) }) // it may be closed
}

// Close reads what the log channel has and releases what Host holds in this process. It
// does not end the host: all processes of the step are dead by now, but those that cannot be
// killed and helpers in ExitGrace, which may hold the channel.
func (h *Host) Close() {
	h.control.Close()
	if h.pidfd >= 0 {
		unix.Close(h.pidfd)
		h.pidfd = -1
	}
	if h.board != nil {
		h.drainLog()
		h.log.SetReadDeadline(time.Now())
		<-h.logDone // the last records are passed on, and none needs the board any more
		if len(h.left) > 0 {
			h.tell(launch.HostRecord{Level: launch.LogInfo, LocalID: -1, Text: strings.Join(h.left, "; ")})
		}
		h.board.close()
		h.board = nil
	}
	h.log.Close()
}

// Where says where the host (local id -1) or a task was last.
func (h *Host) Where(id int) launch.HostPlace {
	if h.board == nil {
		return launch.HostPlace{Plugin: -1, Stage: stageName(1)}
	}
	w, _ := h.board.where(id)
	return w
}

// Hooks returns the hooks that ended since the last call; with last set, also
// hooks that never ended.
func (h *Host) Hooks(last bool) []launch.HookTime {
	if h.board == nil {
		return nil
	}
	var hooks []launch.HookTime
	hooks, h.told = h.board.journal(h.told, last)
	return hooks
}

// PluginName is the base name of a plugin of the stack, for messages.
func (h *Host) PluginName(i int) string {
	if i < 0 || i >= len(h.names) {
		return "unknown plugin"
	}
	return h.names[i]
}

// Required reports whether plugstack.conf says so of a plugin.
func (h *Host) Required(i int) bool { return i >= 0 && i < len(h.stack) && h.stack[i].Required }

// Crash describes the end of the host (local id -1) or of a task inside a hook as
// a HookError; ok is false where it was not in a hook.
func (h *Host) Crash(id int, cause string) (err *launch.HookError, ok bool) {
	if h.board == nil {
		return nil, false
	}
	w, fault := h.board.where(id)
	crashed := isCrash(cause)
	if crashed && (id < 0 || w.InHook()) {
		// Its last records say where it was, and may name the threads of a plugin.
		h.drainLog()
		h.logMu.Lock()
		cause = h.crashes.after(id, cause)
		h.logMu.Unlock()
	}
	if t := h.threads.Load(); crashed && id < 0 && t != nil {
		if w.InHook() {
			cause += fmt.Sprintf(", in that hook or in %s that %s has left running in %s", t, h.PluginName(t.plugin), t.hook)
		} else {
			// Nothing of the host itself was at fault, as far as we know.
			w.Plugin, w.Hook = t.plugin, t.hook
			cause += fmt.Sprintf(" later, with %s of it running", t)
		}
	}
	if !w.InHook() {
		return nil, false
	}
	if what := h.fault(w.Plugin, fault); what != "" {
		cause = what
	}
	e := &launch.HookError{Plugin: h.PluginName(w.Plugin), Hook: w.Hook, Required: h.Required(w.Plugin), Cause: cause}
	if w.Plugin < 0 {
		e.Plugin, e.Required = h.suspects(w.Hook)
	}
	if w.Plugin >= 0 && w.Plugin < len(h.stack) {
		e.Path = h.stack[w.Plugin].Path
	}
	if id < 0 {
		id = h.board.taskOf(w)
	}
	if id >= 0 {
		e.Rank = h.rankOf(id)
	}
	return e, true
}

// rankOf is the rank of the task with a local id, for messages; nil where there is
// no such task.
func (h *Host) rankOf(id int) *int {
	if id < 0 || id >= len(h.ranks) {
		return nil
	}
	return new(h.ranks[id])
}

// isCrash reports whether a process has ended itself by a signal: SIGKILL
// comes from outside.
func isCrash(cause string) bool {
	return strings.HasPrefix(cause, "killed by SIG") && cause != "killed by SIGKILL" && cause != "killed by SIGTERM"
}

// suspects names the plugins that have a hook, where the host did not know
// whose did it, and whether a required one is among them.
func (h *Host) suspects(hook string) (names string, required bool) {
	var found []string
	for i, l := range h.loaded {
		has := h.keep[i] && slices.Contains(l.Hooks, hook)
		if hook == launch.HookClose {
			has = l.Error == "" // what is left of one that was refused, too
		}
		if !has {
			continue
		}
		required = required || h.stack[i].Required
		if !slices.Contains(found, h.names[i]) {
			found = append(found, h.names[i])
		}
	}
	if len(found) == 0 {
		return h.PluginName(-1), required
	}
	return strings.Join(found, " or "), required
}

// seqpacketPair returns our end for the runtime's poller, and the child's as a
// plain blocking file: the host knows no O_NONBLOCK.
func seqpacketPair(name string) (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make socket pair %q: %w", name, err)
	}
	// NewFile before FileConn: FileConn duplicates, and the original goes.
	ours := os.NewFile(uintptr(fds[0]), name)
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("cannot use socket pair %q: %w", name, err)
	}
	return c.(*net.UnixConn), os.NewFile(uintptr(fds[1]), name), nil
}

// board is the memory that stepd shares with the host and, until they exec,
// with the tasks: where each of them is, and a journal of the hooks. A plugin
// may have written anything into it, so every number is checked when read.
type board struct {
	file    *os.File
	mem     []byte
	nslots  int
	entries int
}

// maxBoardEntries bounds the journal at 4 MiB; beyond it hooks are not timed.
const maxBoardEntries = 1 << 17

// newBoard sizes the journal for every hook of every plugin: ten in the
// host, four for each task.
func newBoard(ntasks, nplugins int) (*board, error) {
	entries := min(nplugins*(10+4*ntasks), maxBoardEntries)
	size := boardHeader + (ntasks+1)*boardSlotSize + entries*boardEntrySize
	fd, err := unix.MemfdCreate("spank-board", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("cannot create memfd %q: %w", "spank-board", err)
	}
	f := os.NewFile(uintptr(fd), "spank-board")
	if err := f.Truncate(int64(size)); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot size memfd %q to %d bytes: %w", "spank-board", size, err)
	}
	// A plugin that shrinks the file would make our reads fault.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot seal memfd %q: %w", "spank-board", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot map memfd %q: %w", "spank-board", err)
	}
	b := &board{file: f, mem: mem, nslots: ntasks + 1, entries: entries}
	b.word(0).Store(boardMagic)
	b.word(4).Store(hostProtocolVersion)
	b.word(8).Store(uint32(b.nslots))
	b.word(12).Store(uint32(entries))
	for i := range b.nslots {
		at := boardHeader + i*boardSlotSize
		b.word(at + 8).Store(noPlugin)
		b.word(at + 12).Store(noHook)
	}
	return b, nil
}

func (b *board) close() {
	b.file.Close()
	unix.Munmap(b.mem)
	b.mem = nil
}

// word is the 32-bit number at offset at, which is a multiple of 4 by construction.
func (b *board) word(at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b.mem[at]))
}

// long is the 64-bit number at offset at, which is a multiple of 8 by construction.
func (b *board) long(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.mem[at]))
}

// where reads slot 0 (local id -1) or the slot of a task. fault is why its
// process has ended itself there, 0 if it has not.
func (b *board) where(id int) (w launch.HostPlace, fault int) {
	i := id + 1
	if i < 0 || i >= b.nslots || b.mem == nil {
		return launch.HostPlace{Plugin: -1, Stage: stageName(0)}, 0
	}
	at := boardHeader + i*boardSlotSize
	stage := b.word(at).Load()
	w = launch.HostPlace{
		Stage:   stageName(stage),
		AtExec:  stage == stageExec,
		Errno:   int(int32(b.word(at + 4).Load())),
		Plugin:  -1,
		SinceNS: b.long(at + 16).Load(),
	}
	if h := b.word(at + 12).Load(); h != noHook {
		w.Hook = hookName(h)
		if p := b.word(at + 8).Load(); p != noPlugin && p <= 1<<16 {
			w.Plugin = int(p)
		}
	}
	if w.Errno < 0 {
		w.Errno, fault = 0, -w.Errno
	}
	return w, fault
}

// taskOf is the task for which the host was in a hook, -1 for none. The slot
// does not say: it is in the journal, as the last call that has no end.
func (b *board) taskOf(w launch.HostPlace) int {
	base := boardHeader + b.nslots*boardSlotSize
	for i := min(int(b.word(16).Load()), b.entries) - 1; i >= 0; i-- {
		at := base + i*boardEntrySize
		pluginHook := b.word(at + 20).Load()
		if int(int16(pluginHook)) != w.Plugin || hookName(pluginHook>>16) != w.Hook || b.long(at+8).Load() != 0 {
			continue
		}
		if r := b.word(at + 16).Load(); r != noRank && int64(r) < int64(b.nslots-1) {
			return int(r)
		}
		return -1
	}
	return -1
}

// journal copies the hooks from entry number from on. It stops at the first
// that still runs, so that the next call reports it whole; with last set,
// calls that never ended are reported too.
func (b *board) journal(from int, last bool) (hooks []launch.HookTime, next int) {
	if b.mem == nil {
		return nil, from
	}
	n := min(int(b.word(16).Load()), b.entries)
	base := boardHeader + b.nslots*boardSlotSize
	for ; from < n; from++ {
		at := base + from*boardEntrySize
		if b.word(at+28).Load() != 1 {
			if last {
				continue // its process died between taking and writing it
			}
			break
		}
		pluginHook := b.word(at + 20).Load()
		h := launch.HookTime{
			StartNS: b.long(at).Load(),
			EndNS:   b.long(at + 8).Load(),
			LocalID: -1,
			Plugin:  int(pluginHook & 0xffff),
			Hook:    hookName(pluginHook >> 16),
			RC:      int(int32(b.word(at + 24).Load())),
		}
		if r := b.word(at + 16).Load(); r != noRank && int64(r) < int64(b.nslots-1) {
			h.LocalID = int(r)
		}
		if h.EndNS == 0 && !last {
			break
		}
		hooks = append(hooks, h)
	}
	return hooks, from
}
