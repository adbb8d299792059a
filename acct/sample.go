package acct

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"stepd/internal/linux"
)

const (
	// firstSample is when the first one is taken, where the frequency is lower: a
	// step of some seconds is to have one.
	firstSample = time.Second
	// costShare bounds what sampling costs: after one that took t of a processor the next one
	// comes no sooner than costShare times t later. So a step of a thousand tasks
	// that asks for one every second gets fewer. How long it waited for a processor, on a node
	// whose tasks have them all, does not count.
	costShare = 100
	// askPause is the least time between samples on request.
	askPause = 100 * time.Millisecond
	// ticksToUS: the kernel gives times in ticks of 10 ms (USER_HZ is 100).
	ticksToUS = 10_000
)

// pass is one sample under way, or the next one's memory.
type pass struct {
	// turn has a place for who takes the sample. It is no mutex, since a read of
	// /proc may hang: of a process whose memory map another one has locked, which
	// waits for a file system that does not answer.
	turn  chan struct{}
	end   time.Time     // guarded by turn: of the last
	took  time.Duration // of a processor
	procs []seen        // guarded by turn
	at    map[int]int   // guarded by turn: pid to index of procs
}

// patience bounds the wait for a sample under way, for callers that can do without.
const patience = time.Second

// acquire takes the turn, and reports whether it did within limit.
func (p *pass) acquire(limit time.Duration) bool {
	select {
	case p.turn <- struct{}{}:
		return true
	default:
	}
	select {
	case p.turn <- struct{}{}:
		return true
	case <-time.After(limit):
		return false
	}
}

func (p *pass) release() { <-p.turn }

// seen is one living process.
type seen struct {
	pid  int
	stat procStat
	f    figures // with the children that it waited for
	rss  *int64
}

// owner is whose process it is, by the sample that first saw it: a grandchild
// that outlives its parents stays its task's.
type owner struct {
	start int64
	task  int // its local id, -1: of no task
	// sample is the last one that saw it.
	sample int
}

// run is the sampler: one goroutine, until the end of ctx.
func (g *Gatherer) run(ctx context.Context) {
	every := time.Duration(g.cfg.Acct.FrequencyS) * time.Second
	t := time.NewTimer(min(every, firstSample))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		t.Reset(max(every, costShare*g.sample(ctx)))
		g.checkMemory()
	}
}

// Sample takes one sample now, unless none is needed or possible: the last one
// is fresh, or Begin or Finish says that nothing lives. It is called before the tasks are
// killed, and for a client that wants to know what they use.
func (g *Gatherer) Sample() {
	g.sampleIfOlder(askPause)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.began && !g.finished {
		g.readCgroups(false)
	}
}

func (g *Gatherer) sampleIfOlder(age time.Duration) {
	if !g.pass.acquire(patience) {
		return // what the last one has seen is all that is known
	}
	last, took := g.pass.end, g.pass.took
	g.pass.release()
	if time.Since(last) >= max(age, costShare*took) {
		g.sample(context.Background())
	}
}

// sample reads every process of the tasks once and returns what that took of a processor.
func (g *Gatherer) sample(ctx context.Context) (took time.Duration) {
	p := &g.pass
	if !p.acquire(patience) {
		return 0
	}
	defer p.release()
	g.mu.Lock()
	if !g.began || g.finished {
		g.mu.Unlock()
		return 0
	}
	host := g.host.pid
	g.stray.dirty = false
	for id := range g.tasks {
		g.tasks[id].dirty = false
	}
	g.mu.Unlock()

	runtime.LockOSThread() // whose time is read
	defer runtime.UnlockOSThread()
	start := linux.ThreadTime()
	err := g.readAll(ctx, p, host)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil && !g.finished { // who hung until after the end knows nothing of it
		g.merge(p)
	}
	g.complain(err)
	p.end = time.Now()
	p.took = linux.ThreadTime() - start
	g.cost += p.took
	return p.took
}

// readAll fills p with the living processes.
func (g *Gatherer) readAll(ctx context.Context, p *pass, host int) error {
	pids, err := g.cfg.PIDs()
	if err != nil {
		return err
	}
	r, err := openReader()
	if err != nil {
		return err
	}
	defer r.close()
	// Parents come before their children, as far as numbers show: a child that
	// ends meanwhile is then missed, and never counted twice.
	slices.Sort(pids)
	p.procs = p.procs[:0]
	p.at = make(map[int]int, len(pids))
	for _, pid := range pids {
		if pid == host {
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		s, err := g.readProcess(r, pid)
		if absent(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		p.at[pid] = len(p.procs)
		p.procs = append(p.procs, s)
	}
	return nil
}

// readProcess reads one process. The error is absent where it is gone.
func (g *Gatherer) readProcess(r *reader, pid int) (s seen, err error) {
	data, err := r.process(pid, "stat")
	if err != nil {
		return s, err
	}
	if s.stat, err = parseProcStat(data); err != nil {
		return s, err
	}
	s.pid = pid
	u, sys := s.stat.userTicks+s.stat.childUserTicks, s.stat.systemTicks+s.stat.childTicks
	s.f.set(user, u*ticksToUS)
	s.f.set(system, sys*ticksToUS)
	s.f.set(cpu, (u+sys)*ticksToUS)
	s.f.set(minorFaults, s.stat.minor)
	s.f.set(majorFaults, s.stat.major)
	s.f.set(maxVM, s.stat.virtual)
	if s.rss, err = g.readRSS(r, pid, &s.stat); err != nil {
		return s, err
	}
	if data, err = r.process(pid, "io"); err != nil {
		if os.IsPermission(err) {
			return s, nil // a process of another user namespace: its bytes are not known
		}
		return s, err
	}
	b, err := parseProcIO(data)
	s.f.setIO(b)
	return s, err
}

// readRSS is the resident memory as JobAcctGatherParams wants it; nil where the
// kernel does not tell.
func (g *Gatherer) readRSS(r *reader, pid int, st *procStat) (*int64, error) {
	page := int64(os.Getpagesize())
	switch {
	case g.cfg.Acct.UsePss:
		data, err := r.process(pid, "smaps_rollup")
		if err != nil {
			return nil, unlessDenied(err)
		}
		kb, err := parsePss(data)
		if kb != nil {
			*kb <<= 10
		}
		return kb, err
	case g.cfg.Acct.NoShared:
		data, err := r.process(pid, "statm")
		if err != nil {
			return nil, err
		}
		shared, err := parseShared(data)
		return new(max(0, st.resident-shared) * page), err
	}
	return new(st.resident * page), nil
}

// unlessDenied: what may not be read is not known.
func unlessDenied(err error) error {
	if os.IsPermission(err) {
		return nil
	}
	return err
}

// merge adds the processes up by their tasks. An account of which the kernel has
// reported an end meanwhile keeps its figures until the next sample.
func (g *Gatherer) merge(p *pass) {
	g.samples++
	sums := make([]figures, len(g.tasks)+1) // the last belongs to no task
	alive := make([]living, len(sums))
	for i := range sums {
		alive[i] = living{known: true, rssKnown: true}
		sums[i] = g.accountAt(i).told()
	}
	g.now = living{known: true, rssKnown: true}
	for i := range p.procs {
		s := &p.procs[i]
		at := g.ownerOf(p, i)
		if at < 0 {
			at = len(g.tasks)
		}
		g.now.count(s)
		alive[at].count(s)
		vm := plus(sums[at].of[maxVM], s.f.of[maxVM])
		if !p.after(s) {
			sums[at].add(&s.f)
		}
		sums[at].set(maxVM, vm)
	}
	for i := range sums {
		a := g.accountAt(i)
		if a.now = alive[i]; a.dirty || (a.now.processes == 0 && !a.ended) {
			continue // a task without processes has just ended, and will be reported
		}
		if a.now.rssKnown {
			sums[i].set(maxRSS, max(sums[i].of[maxRSS], a.now.rss))
		}
		a.sampled.atLeast(&sums[i])
	}
	maps.DeleteFunc(g.procs, func(_ int, o owner) bool { return o.sample < g.samples-1 })
}

// accountAt is the account of a task, or after the last the account of no task.
func (g *Gatherer) accountAt(i int) *account {
	if i == len(g.tasks) {
		return &g.stray
	}
	return &g.tasks[i]
}

func (l *living) count(s *seen) {
	l.processes++
	if s.rss == nil {
		l.rssKnown = false
		return
	}
	l.rss = plus(l.rss, *s.rss)
}

// after reports whether the parent of s was read after s, and so may have counted
// it as well: process numbers have come round.
func (p *pass) after(s *seen) bool {
	_, ok := p.at[s.stat.parent]
	return ok && s.stat.parent > s.pid
}

// ownerOf finds whose the i-th process is, and keeps it.
func (g *Gatherer) ownerOf(p *pass, i int) int {
	task := g.noTask()
	var path []int
	for range len(p.procs) { // no process is its own ancestor; a bound all the same
		s := &p.procs[i]
		if o, ok := g.procs[s.pid]; ok && o.start == s.stat.start && o.sample == g.samples {
			task = o.task
			break
		}
		path = append(path, i)
		if id, ok := g.ids[s.pid]; ok {
			task = id
			break
		}
		if o, ok := g.procs[s.pid]; ok && o.start == s.stat.start {
			task = o.task
			break
		}
		parent, ok := p.at[s.stat.parent]
		if !ok {
			break
		}
		i = parent
	}
	for _, i := range path {
		s := &p.procs[i]
		g.procs[s.pid] = owner{start: s.stat.start, task: task, sample: g.samples}
	}
	return task
}

// checkMemory ends a step that is over its limit. What is not known is not over.
func (g *Gatherer) checkMemory() {
	g.mu.Lock()
	limit, now := g.cfg.MemoryBytes, g.now
	over := g.cfg.Acct.OverMemoryKill && limit > 0 && !g.over && !g.finished && now.known && uint64(now.rss) > limit
	g.over = g.over || over
	g.mu.Unlock()
	if !over || g.cfg.OverMemory == nil {
		return
	}
	kind := "resident memory"
	switch {
	case g.cfg.Acct.UsePss:
		kind = "proportional memory"
	case g.cfg.Acct.NoShared:
		kind = "resident memory that is not shared"
	}
	who := fmt.Sprintf("its %d processes use", now.processes)
	if now.processes == 1 {
		who = "its one process uses"
	}
	g.cfg.OverMemory(fmt.Sprintf("%s %s of %s; the limit of the step is %s (OverMemoryKill in JobAcctGatherParams)",
		who, megabytes(uint64(now.rss)), kind, megabytes(limit)))
}

func megabytes(b uint64) string { return fmt.Sprintf("%.1f MB", float64(b)/(1<<20)) }
