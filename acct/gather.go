package acct

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// Config is a Gatherer's input.
type Config struct {
	Acct      step.Accounting
	Proctrack step.Proctrack
	Confine   step.Confinement
	// Ranks are the ranks of this node's tasks, by local id.
	Ranks []int
	// Whole has the first task count for all that is in the step: of the extern step, whose
	// processes are none of that task's.
	Whole bool
	// MemoryBytes is the step's limit for OverMemoryKill, 0 without one.
	MemoryBytes uint64
	// PIDs lists the processes of the tasks; the SPANK host may be among them.
	PIDs func() ([]int, error)
	// OverMemory is called, once, by the sampler where the step's memory is over
	// the limit: why names both.
	OverMemory func(why string)
	// Log takes what could not be read, once for each kind of it.
	Log func(text string)
}

// Gatherer accounts for one step. Its methods may be called by any goroutine,
// Begin and Finish once each, by the one that runs the step.
type Gatherer struct {
	cfg   Config
	place place

	stop    context.CancelFunc
	sampler sync.WaitGroup

	pass pass // the next sample's
	mu   sync.Mutex

	began    bool           // guarded by mu
	finished bool           // guarded by mu
	tasks    []account      // guarded by mu
	stray    account        // guarded by mu: of processes of no task
	ids      map[int]int    // guarded by mu: pid of a task that has not ended, to its local id
	procs    map[int]owner  // guarded by mu: who was seen in the last samples
	now      living         // guarded by mu: all together
	host     hostTime       // guarded by mu
	last     *cgroupFigures // guarded by mu: of the step's cgroups
	samples  int            // guarded by mu
	cost     time.Duration  // guarded by mu: of all samples
	said     map[string]bool
	over     bool // guarded by mu: OverMemory was called
}

// account is what one task has used, or the processes that are no task's.
type account struct {
	// ended: the kernel has reported end, of the task's process and of the children
	// that it had waited for.
	ended bool
	end   figures
	pid   int // of the task, 0 before Begin
	// orphans are the sum of the descendants that stepd has reaped.
	orphans figures
	// sampled is the largest sum, in one sample, of what lived, of the orphans and
	// of the end.
	sampled figures
	now     living
	// dirty: the kernel has reported an end since the sample under way began, which
	// therefore may have counted the same.
	dirty  bool
	cgroup *cgroupFigures // the task's own, at its end
}

// living is what runs.
type living struct {
	known     bool // a sample was taken
	processes int
	rss       int64
	rssKnown  bool
}

// hostTime is what the SPANK host has used in the tasks' cgroup: it is no task's.
type hostTime struct {
	pid    int
	inside bool // it is still in there
	us     int64
	known  bool
}

// The values of step.Accounting.Gather.
const (
	gatherNone   = "none"
	gatherLinux  = "linux"
	gatherCgroup = "cgroup"
)

// New makes the Gatherer of a step. Nothing is read before Begin.
func New(cfg Config) *Gatherer {
	cfg.Acct.Gather = cmp.Or(cfg.Acct.Gather, gatherNone)
	g := &Gatherer{
		cfg: cfg, place: placeOf(cfg.Proctrack, cfg.Confine), stop: func() {},
		ids: make(map[int]int), procs: make(map[int]owner), said: make(map[string]bool),
		pass: pass{turn: make(chan struct{}, 1)},
	}
	g.tasks = make([]account, len(cfg.Ranks))
	for id := range g.tasks {
		g.tasks[id].orphans.zero()
	}
	g.stray.ended = true
	g.stray.end.zero()
	g.stray.orphans.zero()
	return g
}

// Begin is called when every task is tracked: tasks are their processes, by local id.
// host is the SPANK host; inside says that it lives among the tasks.
func (g *Gatherer) Begin(host int, inside bool, tasks []int) {
	g.mu.Lock()
	g.began = true
	g.host = hostTime{pid: host, inside: inside, known: true}
	for id, pid := range tasks {
		g.ids[pid] = id
		g.tasks[id].pid = pid
	}
	g.mu.Unlock()
	if g.cfg.Acct.FrequencyS <= 0 || g.cfg.Acct.Gather == gatherNone {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	g.sampler.Go(func() { g.run(ctx) })
}

// HostMoved says that the host has left the tasks' cgroup.
func (g *Gatherer) HostMoved() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.readHostTime()
	g.host.inside = false
}

// readHostTime keeps the host's CPU time while it is in the tasks' cgroup.
func (g *Gatherer) readHostTime() {
	if g.host.inside {
		g.host.us, g.host.known = cpuClock(g.host.pid)
	}
}

// TaskEnded takes what the kernel reported at a task's end.
func (g *Gatherer) TaskEnded(e launch.TaskEnd) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.LocalID < 0 || e.LocalID >= len(g.tasks) || g.tasks[e.LocalID].ended {
		return
	}
	t := &g.tasks[e.LocalID]
	t.end, t.ended, t.dirty = ofUsage(e.Usage), true, true
	if g.ids[t.pid] == e.LocalID { // else it is a later task's: numbers are used again
		delete(g.ids, t.pid)
	}
}

// OrphanEnded takes what the kernel reported about a process of the step
// that is no task: stepd has reaped it, since its parent had not.
func (g *Gatherer) OrphanEnded(pid int, u *launch.Usage) {
	f := ofUsage(u)
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.accountOf(g.taskOf(pid))
	a.orphans.add(&f)
	a.dirty = true
	delete(g.procs, pid)
}

// taskOf is the local id, -1 for a process that no sample has seen below a task.
func (g *Gatherer) taskOf(pid int) int {
	if o, ok := g.procs[pid]; ok {
		return o.task
	}
	return g.noTask()
}

// noTask is the local id of what is no task's: -1.
func (g *Gatherer) noTask() int {
	if g.cfg.Whole {
		return 0
	}
	return -1
}

func (g *Gatherer) accountOf(id int) *account {
	if id < 0 {
		return &g.stray
	}
	return &g.tasks[id]
}

// Finish reads the cgroups for the last time, when no process of the tasks is
// left and before anything is removed, and ends the sampler.
func (g *Gatherer) Finish() {
	g.stop()
	late := !g.samplerEnds()
	g.mu.Lock()
	defer g.mu.Unlock()
	if late {
		g.complain(fmt.Errorf("a sample has not come back after %v: what has changed since the one before is not known", patience))
	}
	if !g.began || g.finished {
		return
	}
	g.finished = true
	g.now = living{}
	for id := range g.tasks {
		g.tasks[id].now = living{}
	}
	g.readCgroups(true)
}

// samplerEnds waits for the sampler's end, and reports whether it came: the step's
// end is not to wait for a read of /proc that hangs.
func (g *Gatherer) samplerEnds() bool {
	ended := make(chan struct{})
	go func() { // ends with the sampler, or with stepd
		g.sampler.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(patience):
		return false
	}
}

// readCgroups reads the step's cgroups and, at its end, the cgroup of each task that has
// one.
func (g *Gatherer) readCgroups(tasks bool) {
	if g.cfg.Acct.Gather != gatherCgroup || g.place.empty() {
		return
	}
	r, err := openReader()
	if err != nil {
		g.complain(err)
		return
	}
	defer r.close()
	f, err := r.readPlace(g.place)
	g.complain(err)
	g.takeHostOff(&f)
	g.last = &f
	if !tasks || !g.cfg.Confine.PerTask {
		return
	}
	for id, rank := range g.cfg.Ranks {
		f, err := r.readPlace(g.place.below(launch.TaskName(rank)))
		g.complain(err)
		g.tasks[id].cgroup = &f
	}
}

// takeHostOff takes the host out of the figures of a cgroup that it has lived in:
// its time is known, its memory cannot be separated.
func (g *Gatherer) takeHostOff(f *cgroupFigures) {
	g.readHostTime()
	if !g.host.inside && g.host.us == 0 && g.host.known {
		return // it never was in there
	}
	f.peak, f.cpu.user, f.cpu.system = nil, nil, nil
	if f.cpu.total == nil || !g.host.known {
		f.cpu.total = nil
		return
	}
	f.cpu.total = new(max(0, *f.cpu.total-g.host.us))
}

// complain logs an error, once.
func (g *Gatherer) complain(err error) {
	if err == nil || g.cfg.Log == nil || g.said[err.Error()] || len(g.said) >= complaintsMax {
		return
	}
	g.said[err.Error()] = true
	g.cfg.Log(fmt.Sprintf("accounting: %v", err))
}

// complaintsMax bounds the complaints about one step.
const complaintsMax = 8

// Fill writes what is known into a record: so far, or the final figures after
// Finish. Before Begin it writes nothing.
func (g *Gatherer) Fill(rec *step.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.began {
		return
	}
	total := g.stray.figures()
	var largest figures
	for id := range g.tasks {
		f := g.tasks[id].figures()
		total.add(&f)
		largest.raise(&f, maxRSS, maxVM)
		if id < len(rec.Tasks) {
			g.fillTask(&rec.Tasks[id], &g.tasks[id], &f)
		}
	}
	total.known &^= 1<<maxRSS | 1<<maxVM
	total.raise(&largest, maxRSS, maxVM)
	rec.Usage = g.usage(&total)
}

// told is what the kernel has reported, which is not all before the task's end.
func (a *account) told() figures {
	f := a.orphans
	if a.ended {
		f.add(&a.end)
	}
	return f
}

// figures are the best that is known.
func (a *account) figures() (f figures) {
	if a.ended {
		f = a.told()
	}
	f.atLeast(&a.sampled)
	if a.cgroup != nil {
		f.atLeast(new(ofCgroup(a.cgroup)))
	}
	return f
}

func (g *Gatherer) fillTask(t *step.Task, a *account, f *figures) {
	u := f.used()
	if a.cgroup != nil {
		c := a.cgroup.used()
		u.PeakMemoryBytes = c.PeakMemoryBytes
		u.CPUStallUS, u.MemoryStallUS, u.IOStallUS = c.CPUStallUS, c.MemoryStallUS, c.IOStallUS
	}
	a.now.fill(&u)
	if u == (step.Used{}) {
		return
	}
	t.Usage, t.MaxRSSBytes, t.CPUSeconds = &u, u.MaxRSSBytes, u.CPUSeconds
}

func (l living) fill(u *step.Used) {
	if !l.known {
		return
	}
	u.Processes = new(l.processes)
	if l.rssKnown {
		u.RSSBytes = new(l.rss)
	}
}

// usage makes the step's document.
func (g *Gatherer) usage(total *figures) *step.StepUsage {
	u := &step.StepUsage{
		Gather: g.cfg.Acct.Gather, Time: time.Now(), Final: g.finished,
		FrequencyS: g.cfg.Acct.FrequencyS, Samples: g.samples, SamplingUS: g.cost.Microseconds(),
		Sources: make(map[string]string),
	}
	var c figures
	if g.last != nil {
		c = ofCgroup(g.last)
	}
	total.atLeast(&c)
	u.Used = total.used()
	if g.last != nil {
		cg := g.last.used()
		u.PeakMemoryBytes, u.Pressure = cg.PeakMemoryBytes, g.last.pressure
		u.CPUStallUS, u.MemoryStallUS, u.IOStallUS = cg.CPUStallUS, cg.MemoryStallUS, cg.IOStallUS
		g.last.sources(u)
	}
	g.sourcesOf(u, total, &c)
	g.now.fill(&u.Used)
	return u
}

// sourcesOf names the source of each figure that the step's cgroup does not
// have, or has smaller.
func (g *Gatherer) sourcesOf(u *step.StepUsage, total, cgroup *figures) {
	ofCPU := "wait4"
	if !g.finished {
		ofCPU = "/proc/PID/stat"
	}
	for _, s := range []struct {
		n           figure
		name, other string
	}{{cpu, "cpu_seconds", ofCPU}, {readDisk, "disk_read_bytes", "/proc/PID/io"}, {writtenDisk, "disk_written_bytes", "/proc/PID/io"}} {
		if total.knows(s.n) && !(cgroup.knows(s.n) && cgroup.of[s.n] >= total.of[s.n]) {
			u.Sources[s.name] = s.other
		}
	}
}
