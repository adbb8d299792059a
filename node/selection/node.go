package selection

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"stepd/api"
	"stepd/srunopt"
	"stepd/step"
)

// node is what both plugins have in common: the resources, and which of them jobs have.
type node struct {
	spec []int
	cpus *cpuPool
	mem  memPool
	gres *gresPool
	jobs map[*Job]bool
}

// choose finds the CPUs of a job in a pool, the near ones first, and takes none.
type choose func(p *cpuPool, req *step.Request, near map[int]bool) ([]int, error)

// clone returns the resources without the jobs, on which a choice can be tried.
func (n *node) clone() *node {
	return &node{cpus: n.cpus.clone(), mem: n.mem, gres: n.gres.clone()}
}

// empty returns the resources of which no job has any.
func (n *node) empty() *node {
	e := n.clone()
	e.mem.used = 0
	clear(e.cpus.uses)
	for i := range e.gres.items {
		e.gres.items[i].used = 0
	}
	return e
}

// test finds a share for the request, and takes nothing.
func (n *node) test(req *step.Request, cpus choose) (sh Share, err error) {
	sh.Shared = req.Overcommit
	// The devices first, since the CPUs are to be near them; what is wrong with CPUs is said first.
	gres, gerr := n.gres.pick(req.Gres, n.cpus)
	if sh.CPUs, err = cpus(n.cpus, req, n.gres.near(gres)); err != nil {
		return Share{}, err
	}
	if sh.MB, err = n.mem.forJob(req, n.cpus.counted(req, sh.CPUs)); err == nil {
		err = n.mem.fits(sh.MB)
	}
	if err == nil && gerr != nil {
		err = fmt.Errorf("the step does not fit: %w", gerr)
	}
	if err != nil {
		return Share{}, err
	}
	sh.Gres = gres
	return sh, nil
}

// testAs is Plugin.Test.
func (n *node) testAs(req *step.Request, mode Mode, cpus choose) (Share, error) {
	if mode == TestOnly {
		n = n.empty()
	}
	return n.test(req, cpus)
}

// willRun is Plugin.WillRun.
func (n *node) willRun(req *step.Request, ends func(*Job) *time.Time, cpus choose) (w Wait) {
	if _, w.Err = n.test(req, cpus); w.Err == nil {
		return w
	}
	if _, never := n.empty().test(req, cpus); never != nil {
		return Wait{Err: never, Never: true}
	}
	jobs := slices.SortedFunc(maps.Keys(n.jobs), func(a, b *Job) int {
		return cmp.Or(CompareEnds(ends(a), ends(b)), cmp.Compare(a.ID, b.ID))
	})
	after := n.clone()
	w.Holders = haveToEnd(jobs, after.release, after.hold, func() bool {
		_, err := after.test(req, cpus)
		return err == nil
	})
	if n := len(w.Holders); n > 0 {
		w.At = ends(w.Holders[n-1])
	}
	return w
}

// haveToEnd returns the holders that have to release what they hold before fits is true; holders are
// in the order of their ends. nil is that fits is false also when all have ended.
func haveToEnd[H any](holders []H, release, hold func(H), fits func() bool) (must []H) {
	ended := 0 // of the first holders
	fitsAfter := func(n int) bool {
		for ; ended < n; ended++ {
			release(holders[ended])
		}
		for ; ended > n; ended-- {
			hold(holders[ended-1])
		}
		return fits()
	}
	last := sort.Search(len(holders), func(i int) bool { return fitsAfter(i + 1) })
	if last == len(holders) {
		return nil
	}
	fitsAfter(last + 1)
	for _, h := range holders[:last] {
		if hold(h); !fits() {
			release(h)
			must = append(must, h)
		}
	}
	return append(must, holders[last])
}

// CompareEnds orders times at which something is given back; nil, which is not known, is last.
func CompareEnds(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}

func (n *node) Begin(sh Share) *Job {
	j := n.job(Saved{Share: sh})
	n.jobs[j] = true
	n.hold(j)
	return j
}

func (n *node) JobInit(id uint32, saved Saved) *Job {
	j := n.job(saved)
	j.ID = id
	n.jobs[j] = true
	n.hold(j)
	return j
}

func (n *node) Fini(j *Job) {
	if n.jobs[j] {
		delete(n.jobs, j)
		n.release(j)
	}
}

func (n *node) Suspend(j *Job) {
	if n.jobs[j] && !j.Suspended {
		j.Suspended = true
		n.cpus.release(j.CPUs)
	}
}

func (n *node) Resume(j *Job) error {
	if !n.jobs[j] || !j.Suspended {
		return nil
	}
	var e HeldError
	for o := range n.jobs {
		if both := common(o.CPUs, j.CPUs); !o.Suspended && !o.Shared && !j.Shared && len(both) > 0 {
			e.CPUs, e.Jobs = append(e.CPUs, both...), append(e.Jobs, o.ID)
		}
	}
	if len(e.Jobs) > 0 {
		slices.Sort(e.CPUs)
		slices.Sort(e.Jobs)
		e.CPUs = slices.Compact(e.CPUs)
		return &e
	}
	j.Suspended = false
	n.cpus.hold(j.CPUs)
	return nil
}

// hold counts what the job has, and release undoes it.
func (n *node) hold(j *Job) {
	if !j.Suspended {
		n.cpus.hold(j.CPUs)
	}
	n.mem.hold(j.MB)
	n.gres.hold(j.Gres)
}

func (n *node) release(j *Job) {
	if !j.Suspended {
		n.cpus.release(j.CPUs)
	}
	n.mem.release(j.MB)
	n.gres.release(j.Gres)
}

func (n *node) Confirm(jobs []*Job) (over []Excess) {
	e, sum := n.empty(), uint64(0)
	for _, j := range jobs {
		sum += j.MB
	}
	for _, j := range slices.SortedFunc(slices.Values(jobs), func(a, b *Job) int { return cmp.Compare(a.ID, b.ID) }) {
		var what []string
		if gone := slices.DeleteFunc(slices.Clone(j.CPUs), func(c int) bool { return slices.Contains(n.cpus.cpus, c) }); len(gone) > 0 {
			what = append(what, fmt.Sprintf("CPUs %s (the node has CPUs %s)", step.FormatCPUList(gone), step.FormatCPUList(n.cpus.cpus)))
		}
		if err := e.mem.fits(j.MB); err != nil {
			what = append(what, fmt.Sprintf("%s (the node has %s, its jobs %s)", srunopt.FormatMB(j.MB), srunopt.FormatMB(n.mem.MB), srunopt.FormatMB(sum)))
		}
		e.mem.hold(j.MB)
		if gone := e.gres.missing(j.Gres); gone != nil {
			what = append(what, fmt.Sprintf("%s (the node has %s)", srunopt.FormatAllocs(gone), cmp.Or(strings.Join(e.gres.known(gone[0].Name), ","), "none")))
		}
		if what != nil {
			over = append(over, Excess{j, strings.Join(what, ", ")})
		}
	}
	return over
}

func (n *node) info(plugin string) Info {
	i := Info{FreeCPUs: n.cpus.free(), UsedMB: n.mem.used, Gres: n.gres.doc(), NodeSelect: api.NodeSelect{
		Plugin: plugin, Unit: string(cmp.Or(n.cpus.Unit, UnitCPU)), Cores: len(n.cpus.cores), SpecCPUs: step.FormatCPUList(n.spec),
	}}
	var free []int
	for _, c := range n.cpus.cpus {
		if n.cpus.uses[c] == 0 {
			free = append(free, c)
		}
	}
	i.FreeCPUList = step.FormatCPUList(free)
	for _, c := range n.cpus.cores {
		if n.cpus.used(c) == 0 {
			i.FreeCores++
		}
	}
	return i
}

// common returns what both sorted lists have.
func common(a, b []int) (both []int) {
	for _, x := range a {
		if _, ok := slices.BinarySearch(b, x); ok {
			both = append(both, x)
		}
	}
	return both
}
