package oom

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// Config is a Watch's input. Confine and Tasks are the step's.
type Config struct {
	Confine step.Confinement
	// Tasks is step.Proctrack.Tasks, "" without a cgroup v2.
	Tasks string
	// Ranks are the ranks of this node's tasks by local id, ascending.
	Ranks []int
	// Command is the name of a task without another name: argv[0].
	Command string
	// Killed is called for each kill once, from any goroutine; it must not block.
	Killed func(step.OOMKill)
	// Problem hears why the watch is poorer than it should be.
	Problem func(text string)
}

// Watch watches one step. Make it with New; its methods implement
// task.Plugin.
type Watch struct {
	cfg Config
	// dir is the step's memory cgroup, "" where its memory is not limited.
	dir string
	v1  bool
	// logged are the victims that searchLog has found. Only Run's goroutine uses it.
	logged map[int]loggedKill
	// noLog leaves the kernel's log alone, for tests.
	noLog bool

	stop    context.CancelFunc
	stopped chan struct{}
	start   time.Duration // CLOCK_MONOTONIC at PreSetuid

	mu sync.Mutex
	// log is nil where the kernel's log cannot be read, or was not yet.
	log   *kmsg // guarded by mu
	ended bool  // guarded by mu: log is opened no more
	// pids are the tasks' own processes, to their ranks, until they end: their
	// numbers may be others' then. ranks is the other way round, and stays.
	pids  map[int]int           // guarded by mu
	ranks map[int]int           // guarded by mu
	since map[int]time.Duration // guarded by mu: CLOCK_MONOTONIC when a rank's process was noted
	told  map[int]bool          // guarded by mu: victims by pid
	count map[int]uint64        // guarded by mu: kills told, by rank; noRank for others
}

// loggedKill is a kill in the kernel's log, and when it was.
type loggedKill struct {
	victim
	at time.Duration // CLOCK_MONOTONIC
}

// noRank stands for the processes of no known task.
const noRank = -1

// New makes a watch that watches nothing yet.
func New(cfg Config) *Watch {
	w := &Watch{
		cfg: cfg, pids: make(map[int]int), ranks: make(map[int]int), told: make(map[int]bool),
		count: make(map[int]uint64), since: make(map[int]time.Duration),
	}
	if dir, ok := cfg.Confine.V1["memory"]; ok {
		w.dir, w.v1 = dir, true
	} else if len(cfg.Confine.Memory) > 0 {
		w.dir = cfg.Tasks
	}
	return w
}

// Name is the name in messages.
func (w *Watch) Name() string { return "oom" }

// PreSetuid begins to watch. Nothing that fails here ends the launch: a step
// is worth more than the words about its end.
func (w *Watch) PreSetuid() error {
	w.start = linux.Uptime()
	if w.dir == "" || w.noLog {
		if !w.noLog { // kills are looked for when a task is killed
			time.AfterFunc(openAfter, func() { w.openLog(false) })
		}
		return nil
	}
	log, err := openKmsg(false)
	if err != nil {
		w.cfg.Problem(fmt.Sprintf("out-of-memory kills are told at the end of their task only: %v", err))
		return nil
	}
	w.mu.Lock()
	w.log = log
	w.mu.Unlock()
	poller, err := linux.NewPoller(unix.EPOLLIN|unix.EPOLLET, log.fd)
	if err != nil {
		w.cfg.Problem(err.Error())
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop, w.stopped = stop, make(chan struct{})
	go func() {
		defer close(w.stopped)
		defer poller.Close()
		err := poller.Wait(ctx, func([]int) (bool, error) { return false, w.readLog() })
		if err != nil && !errors.Is(err, context.Canceled) {
			w.cfg.Problem(err.Error())
		}
	}()
	return nil
}

// PreLaunch has nothing to add.
func (w *Watch) PreLaunch(*launch.Launch) error { return nil }

// PreLaunchPriv notes the task's process.
func (w *Watch) PreLaunchPriv(local, pid int) error {
	rank := w.cfg.Ranks[local]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pids[pid], w.ranks[rank], w.since[rank] = rank, pid, linux.Uptime()
	return nil
}

// PostTerm looks what the kernel has done to a task that ended by SIGKILL, or
// to its children.
func (w *Watch) PostTerm(end launch.TaskEnd) {
	sig, signaled := end.Status.Signaled()
	killed := !end.Lost && signaled && sig == syscall.SIGKILL
	rank := w.cfg.Ranks[end.LocalID]
	w.mu.Lock()
	pid, since := w.ranks[rank], w.since[rank]
	w.mu.Unlock()
	// The kernel logs a kill before it sends the signal. What it says of this
	// number from now on is of another process, perhaps of another job.
	defer w.forget(pid)
	if w.dir == "" {
		// Its memory was not limited, so it may have been the machine's.
		if killed {
			w.searchLog(pid, since)
		}
		return
	}
	if err := w.readLog(); err != nil {
		w.cfg.Problem(err.Error())
	}
	if killed && w.cfg.Confine.PerTask {
		// The counter rises before the signal is sent.
		w.tellCounted(rank, step.OOMKill{PID: pid, Command: filepath.Base(w.cfg.Command)}, 1)
	}
}

// forget a task's process that has ended.
func (w *Watch) forget(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pids, pid)
}

// PostStep reports the kills that nothing else has reported, and ends the watch. It
// must come before the step's cgroups are removed.
func (w *Watch) PostStep() error {
	defer w.closeLog()
	if w.dir == "" {
		return nil
	}
	err := w.readLog()
	if w.cfg.Confine.PerTask {
		for _, rank := range w.cfg.Ranks {
			w.tellCounted(rank, step.OOMKill{}, untilNow)
		}
	} else {
		w.tellCounted(noRank, step.OOMKill{}, untilNow)
	}
	if w.stop != nil {
		w.stop()
		<-w.stopped
	}
	return err
}

// openAfter is how long a step without limits runs before its place in the log is kept. Where
// the log is full, opening it takes the kernel 0.1 ms, and reading all of it 10: a step that is
// killed earlier has the latter, one that ends by itself neither.
const openAfter = 30 * time.Millisecond

// openLog opens the log at its end, or at its oldest record, and returns it. It is nil where it
// cannot be opened: then no source says that memory was the cause.
func (w *Watch) openLog(fromStart bool) *kmsg {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.log == nil && !w.ended {
		w.log, _ = openKmsg(fromStart)
	}
	return w.log
}

func (w *Watch) closeLog() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.log != nil {
		w.log.close()
		w.log = nil
	}
}

// untilNow tells as many kills as the counter knows.
const untilNow = ^uint64(0)

// tellCounted tells kills that the counter of a rank's cgroup knows and that
// were not told, at most n.
func (w *Watch) tellCounted(rank int, k step.OOMKill, n uint64) {
	dir := w.dir
	if rank != noRank {
		dir = filepath.Join(dir, launch.TaskName(rank))
	}
	total, err := kills(dir, w.v1)
	if err != nil {
		w.cfg.Problem(err.Error())
	}
	w.mu.Lock()
	told := w.count[rank]
	if rank == noRank {
		for r, c := range w.count {
			if r != noRank {
				told += c // without cgroups of their own, all of them count here
			}
		}
	}
	if k.PID != 0 && w.told[k.PID] {
		n = 0
	}
	if w.cfg.Confine.OOMGroup != step.OOMGroupNone && told > 0 {
		// The kernel counts a victim once more when it kills the group around it.
		n = 0
	}
	var missing uint64
	if total > told {
		missing = min(total-told, n)
	}
	w.count[rank] += missing
	if missing > 0 && k.PID != 0 {
		w.told[k.PID] = true
	}
	w.mu.Unlock()
	for range missing {
		kill := k
		if rank != noRank {
			kill.Rank = &rank
		}
		w.complete(&kill, w.fullLevel())
		w.cfg.Killed(kill)
	}
}

// readLog takes in what the kernel has logged since the last time.
func (w *Watch) readLog() error {
	w.mu.Lock()
	var found []step.OOMKill
	var err error
	if w.log != nil {
		err = w.log.drain(func(r record) {
			if v, ok := parseVictim(r.text); ok {
				if k, ok := w.attribute(v); ok {
					found = append(found, k)
				}
			}
		})
	}
	w.mu.Unlock()
	for _, k := range found {
		w.cfg.Killed(k)
	}
	return err
}

// searchLog looks for a process in the log, from since on: a kill before that was
// of an earlier process with its number. The
// log is read once: each further search reads what has come since, or the ends of
// a thousand tasks would cost a second and more.
func (w *Watch) searchLog(pid int, since time.Duration) {
	log := w.openLog(true)
	if log == nil {
		return
	}
	err := log.drain(func(r record) {
		at := time.Duration(r.micros) * time.Microsecond
		if v, ok := parseVictim(r.text); ok && at >= w.start && len(w.logged) < loggedMax {
			if w.logged == nil {
				w.logged = make(map[int]loggedKill)
			}
			if old, known := w.logged[v.pid]; known && v.task == "" && at-old.at < time.Second {
				return // the second line of a kill, with less in it
			}
			w.logged[v.pid] = loggedKill{v, at}
		}
	})
	if err != nil {
		w.cfg.Problem(err.Error())
	}
	v, ok := w.logged[pid]
	if !ok || v.at < since {
		return
	}
	w.mu.Lock()
	kill, ok := w.attribute(v.victim)
	w.mu.Unlock()
	if ok {
		w.cfg.Killed(kill)
	}
}

// loggedMax bounds the victims, anybody's, that are remembered.
const loggedMax = 4096

// attribute finds whose the victim is; ok is false where it is none of the
// step's, or was told. The caller holds mu.
func (w *Watch) attribute(v victim) (k step.OOMKill, ok bool) {
	rank, ours := w.pids[v.pid]
	if !ours {
		rank, ours = w.rankOf(v.task)
	}
	if !ours || w.told[v.pid] {
		return k, false
	}
	w.told[v.pid] = true
	w.count[rank]++
	k = step.OOMKill{PID: v.pid, Command: v.comm}
	if rank != noRank {
		k.Rank = &rank
	}
	w.complete(&k, w.levelOf(v))
	return k, true
}

// rankOf reads the rank from the path of a cgroup of the step.
func (w *Watch) rankOf(cgroup string) (rank int, ours bool) {
	if w.dir == "" || cgroup == "" {
		return 0, false
	}
	rest, ok := below(cgroup, w.dir)
	if !ok {
		return 0, false
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if rank, ok := launch.TaskRank(name); ok && w.cfg.Confine.PerTask {
		if _, ours := slices.BinarySearch(w.cfg.Ranks, rank); ours {
			return rank, true
		}
	}
	return noRank, true
}

// below reports whether cgroup, a path as the kernel logs it, is the directory
// dir or below it, and what follows. Where dir is mounted the two begin
// differently; what they share begins with the root that noded made.
func below(cgroup, dir string) (rest string, ok bool) {
	i := strings.LastIndex(dir, "/stepd-")
	if i < 0 {
		return "", false
	}
	tail := dir[i:]
	j := strings.LastIndex(cgroup+"/", tail+"/")
	if j < 0 {
		return "", false
	}
	return cgroup[min(j+len(tail), len(cgroup)):], true
}

// levelOf finds the level whose memory had run out.
func (w *Watch) levelOf(v victim) step.MemoryLevel {
	if v.global {
		return step.MemoryLevel{Level: "machine"}
	}
	if v.full == "" {
		return w.fullLevel()
	}
	for _, l := range w.cfg.Confine.Memory {
		rest, ok := below(v.full, l.Dir)
		switch {
		case !ok:
		case rest == "":
			return l
		case l.Dir == w.dir:
			// The tasks' own cgroups are below the step's.
			return step.MemoryLevel{Level: "task", Dir: filepath.Join(l.Dir, rest)}
		}
	}
	return step.MemoryLevel{Level: "parent"}
}

// fullLevel is the innermost level that has been full, for kills of which the
// kernel does not say it. Nothing is invented where none was.
func (w *Watch) fullLevel() step.MemoryLevel {
	for _, l := range w.cfg.Confine.Memory {
		peak, _ := usage(l.Dir, w.v1)
		if peak != nil && l.Bytes != nil && *peak+pageSlack >= *l.Bytes {
			return l
		}
	}
	return step.MemoryLevel{}
}

// pageSlack: a limit is reached when the next batch of pages does not fit.
const pageSlack = 1 << 20

// complete adds what is known of the level.
func (w *Watch) complete(k *step.OOMKill, l step.MemoryLevel) {
	k.Time = time.Now()
	k.Level = l.Level
	if l.Dir == "" {
		return
	}
	k.LimitBytes = l.Bytes
	if k.LimitBytes == nil {
		name := "memory.max"
		if w.v1 {
			name = "memory.limit_in_bytes"
		}
		k.LimitBytes = readNumber(filepath.Join(l.Dir, name))
	}
	k.PeakBytes, k.SwapBytes = usage(l.Dir, w.v1)
}

// kills reads how many processes of the cgroup dir itself were killed:
// "oom_kill" of memory.events.local (cgroup v2) or of memory.oom_control (v1).
// For a cgroup that is gone, and one without the figure (Linux before 4.13),
// they are unknown.
func kills(dir string, v1 bool) (uint64, error) {
	name := "memory.events.local"
	if v1 {
		name = "memory.oom_control"
	}
	word, err := linux.Value(filepath.Join(dir, name), "oom_kill")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("cannot read the memory events: %w", err)
	}
	n, _ := strconv.ParseUint(word, 10, 64) // 0 without the figure
	return n, nil
}

// level reads what of a level was used at most, and is in swap now.
func usage(dir string, v1 bool) (peak, swap *uint64) {
	if v1 {
		peak = readNumber(filepath.Join(dir, "memory.max_usage_in_bytes"))
		word, _ := linux.Value(filepath.Join(dir, "memory.stat"), "total_swap")
		if n, err := strconv.ParseUint(word, 10, 64); err == nil {
			swap = &n
		}
		return peak, swap
	}
	return readNumber(filepath.Join(dir, "memory.peak")), readNumber(filepath.Join(dir, "memory.swap.current"))
}

func readNumber(path string) *uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}
