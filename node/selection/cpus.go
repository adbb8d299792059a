package selection

import (
	"fmt"
	"slices"
)

// cpuPool shares the node's CPUs among jobs. It is not safe for concurrent
// use: the caller's lock guards it.
type cpuPool struct {
	cpus []int
	uses map[int]int // CPU -> jobs that have it
	// cores are the CPUs' cores in their order; nil where they are not known.
	cores []Core
}

func newCPUPool(cpus []int, cores ...Core) *cpuPool {
	return &cpuPool{cpus: slices.Clone(cpus), uses: make(map[int]int), cores: cores}
}

// free counts the CPUs that no job has.
func (p *cpuPool) free() int {
	n := 0
	for _, c := range p.cpus {
		if p.uses[c] == 0 {
			n++
		}
	}
	return n
}

// take gives the lowest want free CPUs, or an error that says how many there
// are. With overcommit it never fails: CPUs are shared, the least used first,
// and no CPU is given twice to one taker.
func (p *cpuPool) take(want int, overcommit bool) ([]int, error) {
	if !overcommit {
		if want > len(p.cpus) {
			return nil, fmt.Errorf("%s on this node, which has %s; --overcommit shares CPUs among tasks", Needs(want), CountCPUs(len(p.cpus)))
		}
		if free := p.free(); want > free {
			return nil, fmt.Errorf("%s on this node: of its %s %d are free; --overcommit shares them with other steps", Needs(want), CountCPUs(len(p.cpus)), free)
		}
	}
	got := p.pick(want)
	p.hold(got)
	return got, nil
}

// pick is the lowest want of the least used CPUs, or all. Nothing else is kept for them:
// a job has them as long as it runs.
func (p *cpuPool) pick(want int) []int {
	got := make([]int, 0, min(want, len(p.cpus)))
	for _, c := range p.cpus {
		if len(got) < cap(got) && p.uses[c] == 0 {
			got = append(got, c)
		}
	}
	if len(got) < cap(got) {
		order := slices.Clone(p.cpus)
		slices.SortStableFunc(order, func(a, b int) int { return p.uses[a] - p.uses[b] })
		got = append(got[:0], order[:cap(got)]...)
	}
	slices.Sort(got)
	return got
}

// hold counts one more user of each CPU, free ones or not: after a restart
// noded takes back what its steps have. CPUs that the node no longer has are
// left out of the count by free.
func (p *cpuPool) hold(cpus []int) {
	for _, c := range cpus {
		p.uses[c]++
	}
}

// release undoes take or hold.
func (p *cpuPool) release(cpus []int) {
	for _, c := range cpus {
		if p.uses[c]--; p.uses[c] <= 0 {
			delete(p.uses, c)
		}
	}
}

func Needs(n int) string {
	return "the step does not fit: it needs " + CountCPUs(n)
}

func CountCPUs(n int) string {
	if n == 1 {
		return "1 CPU"
	}
	return fmt.Sprintf("%d CPUs", n)
}
