package selection

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"stepd/api"
	"stepd/step"
)

// Gres is one line of the node's generic resources. Devices of one name are
// numbered through all of its lines, in their order.
type Gres struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"`
	// Count is how many there are; with Files it is their number.
	Count uint64 `json:"count"`
	// First is the number of the line's first device. Files are the device nodes,
	// one or more for each device; none where only the count matters.
	First int        `json:"first"`
	Files [][]string `json:"files,omitempty"`
	// Env are the variables that name a task's devices: "CUDA_VISIBLE_DEVICES".
	Env []string `json:"env,omitempty"`
	// NoConsume: a request does not use it up.
	NoConsume bool `json:"no_consume,omitempty"`
	// CPUs are the CPUs of the line's cores (gres.conf, Cores=): a job that gets its devices gets these
	// CPUs first. nil is none in particular.
	CPUs []int `json:"cpus,omitempty"`
}

// HasGres reports whether device i of the gres is among the allocations.
func HasGres(list []step.GresAlloc, name string, i int) bool {
	return slices.ContainsFunc(list, func(a step.GresAlloc) bool { return a.Name == name && slices.Contains(a.Index, i) })
}

// gresPool shares generic resources: the node's among jobs, a job's among its
// steps. It is not safe for concurrent use: the caller's lock guards it.
type gresPool struct{ items []gresItem }

// gresItem is one device, or an amount of what is only counted.
type gresItem struct {
	name, kind string
	index      int // of a device; -1 of an amount
	has, used  uint64
	free       bool  // a request uses nothing up
	cpus       []int // that are near
}

// newGresPool makes the pool of a node.
func newGresPool(all []Gres) *gresPool {
	p := new(gresPool)
	for _, g := range all {
		if len(g.Files) == 0 {
			p.items = append(p.items, gresItem{name: g.Name, kind: g.Type, index: -1, has: g.Count, free: g.NoConsume, cpus: g.CPUs})
			continue
		}
		for i := range g.Files {
			p.items = append(p.items, gresItem{name: g.Name, kind: g.Type, index: g.First + i, has: 1, free: g.NoConsume, cpus: g.CPUs})
		}
	}
	return p
}

// jobGresPool makes the pool of a job.
func jobGresPool(list []step.GresAlloc) *gresPool {
	p := new(gresPool)
	for _, a := range list {
		if a.Index == nil {
			p.items = append(p.items, gresItem{name: a.Name, kind: a.Type, index: -1, has: a.Count})
		}
		for _, i := range a.Index {
			p.items = append(p.items, gresItem{name: a.Name, kind: a.Type, index: i, has: 1})
		}
	}
	return p
}

func (p *gresPool) clone() *gresPool { return &gresPool{items: slices.Clone(p.items)} }

// gresError is a request that cannot be met.
type gresError struct {
	want       step.GresRequest
	has, spare uint64
	known      []string // what there is of the name, or of all where there is none
}

// never reports that it will not be met by waiting.
func (e *gresError) never() bool { return e.want.Count > e.has }

func (e *gresError) Error() string {
	name := e.want.Name
	if e.want.Type != "" {
		name += ":" + e.want.Type
	}
	switch {
	case e.has == 0 && len(e.known) == 0:
		return fmt.Sprintf("it needs %s, and there is no such generic resource", e.want)
	case e.has == 0:
		return fmt.Sprintf("it needs %s, and there is %s only", e.want, strings.Join(e.known, ","))
	case e.never():
		return fmt.Sprintf("it needs %s, and there are %d %s in all", e.want, e.has, name)
	}
	return fmt.Sprintf("it needs %s, and of %d %s %d are free", e.want, e.has, name, e.spare)
}

// take gives what is asked for, the lowest devices first, or a *gresError and
// nothing. share lets others have the same: the least used come first then.
func (p *gresPool) take(want []step.GresRequest, share bool) ([]step.GresAlloc, error) {
	return p.takeBy(want, share, func(*gresItem) int { return 0 })
}

// pick finds what take would give a job, the devices with the lowest free CPU near them first, and
// takes nothing.
func (p *gresPool) pick(want []step.GresRequest, cpus *cpuPool) ([]step.GresAlloc, error) {
	if len(want) == 0 {
		return nil, nil
	}
	got, err := p.takeBy(want, false, func(it *gresItem) int {
		if len(it.cpus) == 0 {
			return 0 // all are near
		}
		for _, cpu := range it.cpus {
			if cpu < len(cpus.uses) && cpus.uses[cpu] == 0 {
				return cpu
			}
		}
		return math.MaxInt
	})
	p.release(got)
	return got, err
}

// near are the CPUs that are near the devices.
func (p *gresPool) near(list []step.GresAlloc) map[int]bool {
	var near map[int]bool
	for i := range p.items {
		if it := &p.items[i]; len(it.cpus) > 0 && it.takenIn(list) > 0 {
			if near == nil {
				near = make(map[int]bool)
			}
			for _, cpu := range it.cpus {
				near[cpu] = true
			}
		}
	}
	return near
}

// takeBy is take that prefers what is less far.
func (p *gresPool) takeBy(want []step.GresRequest, share bool, far func(*gresItem) int) ([]step.GresAlloc, error) {
	var got []step.GresAlloc
	for _, w := range want {
		if w.Count == 0 {
			continue
		}
		list, err := p.takeOne(w, share, far)
		if err != nil {
			p.release(got)
			return nil, err
		}
		got = append(got, list...)
	}
	return got, nil
}

func (p *gresPool) takeOne(w step.GresRequest, share bool, far func(*gresItem) int) ([]step.GresAlloc, error) {
	e := &gresError{want: w}
	var fit []*gresItem
	for i := range p.items {
		it := &p.items[i]
		if it.name == w.Name && (w.Type == "" || it.kind == w.Type) {
			fit = append(fit, it)
			e.has += it.has
			e.spare += it.spare()
		}
	}
	if e.has < w.Count || (e.spare < w.Count && !share) {
		e.known = p.known(w.Name)
		return nil, e
	}
	slices.SortStableFunc(fit, func(a, b *gresItem) int {
		return cmp.Or(cmp.Compare(a.used*b.has, b.used*a.has), cmp.Compare(far(a), far(b)))
	})
	var got []step.GresAlloc
	left := w.Count
	for pass := range 2 { // what is free first, then what is shared
		for _, it := range fit {
			n := it.spare()
			if pass == 1 {
				n = it.has - it.takenIn(got)
			}
			if n = min(n, left); n > 0 {
				got = addGres(got, it, n)
				left -= n
			}
		}
		if left == 0 || !share {
			break
		}
	}
	for i := range got {
		slices.Sort(got[i].Index)
	}
	p.hold(got)
	return got, nil
}

func (it *gresItem) spare() uint64 {
	if it.free {
		return it.has
	}
	return it.has - min(it.used, it.has)
}

// takenIn is how much of the item is in the list.
func (it *gresItem) takenIn(list []step.GresAlloc) uint64 {
	for _, a := range list {
		switch {
		case a.Name != it.name || a.Type != it.kind:
		case it.index < 0:
			return a.Count
		case slices.Contains(a.Index, it.index):
			return 1
		}
	}
	return 0
}

func addGres(list []step.GresAlloc, it *gresItem, n uint64) []step.GresAlloc {
	i := slices.IndexFunc(list, func(a step.GresAlloc) bool { return a.Name == it.name && a.Type == it.kind })
	if i < 0 {
		list = append(list, step.GresAlloc{Name: it.name, Type: it.kind})
		i = len(list) - 1
	}
	list[i].Count += n
	if it.index >= 0 {
		list[i].Index = append(list[i].Index, it.index)
	}
	return list
}

// known says what there is of a name; of all where there is none of it.
func (p *gresPool) known(name string) []string {
	var sum []step.GresAlloc
	for i := range p.items {
		sum = addGres(sum, &p.items[i], p.items[i].has)
	}
	var of, all []string
	for _, a := range sum {
		a.Index = nil
		all = append(all, a.String())
		if a.Name == name {
			of = append(of, a.String())
		}
	}
	if len(of) > 0 {
		return of
	}
	return all
}

// missing takes what the pool has of the list, and returns the rest.
func (p *gresPool) missing(list []step.GresAlloc) (gone []step.GresAlloc) {
	for _, a := range list {
		left := a
		left.Index = slices.Clone(a.Index)
		for i := range p.items {
			it := &p.items[i]
			n := it.takenIn([]step.GresAlloc{a})
			if n > 0 && n <= it.spare() {
				left.Count -= n
				left.Index = slices.DeleteFunc(left.Index, func(i int) bool { return i == it.index })
			}
			it.used += n
		}
		if left.Count > 0 {
			gone = append(gone, left)
		}
	}
	return gone
}

// hold counts one more user, as cpuPool's does: what the pool has not is left out.
func (p *gresPool) hold(list []step.GresAlloc) {
	p.count(list, func(u, n uint64) uint64 { return u + n })
}

// release undoes take or hold.
func (p *gresPool) release(list []step.GresAlloc) {
	p.count(list, func(u, n uint64) uint64 { return u - min(u, n) })
}

func (p *gresPool) count(list []step.GresAlloc, to func(used, n uint64) uint64) {
	for i := range p.items {
		it := &p.items[i]
		for _, a := range list {
			if a.Name != it.name || a.Type != it.kind {
				continue
			}
			if n := it.takenIn([]step.GresAlloc{a}); n > 0 {
				it.used = to(it.used, n)
			}
		}
	}
}

// doc is the pool in the node document.
func (p *gresPool) doc() []api.NodeGres {
	out := []api.NodeGres{}
	index := make(map[int][]int)
	for i := range p.items {
		it := &p.items[i]
		at := slices.IndexFunc(out, func(d api.NodeGres) bool { return d.Name == it.name && d.Type == it.kind })
		if at < 0 {
			out = append(out, api.NodeGres{Name: it.name, Type: it.kind})
			at = len(out) - 1
		}
		out[at].Count += it.has
		out[at].Used += it.used
		if it.used > 0 && it.index >= 0 {
			index[at] = append(index[at], it.index)
		}
	}
	for at, list := range index {
		slices.Sort(list)
		out[at].UsedIndex = step.FormatCPUList(list)
	}
	return out
}

// GresScope is the receiver of a gresEnv.
type GresScope struct {
	Batch bool // a batch job's script, prolog or epilog: of the job
	Local bool // it sees its own devices alone, numbered from 0
}

// The variables that name GPUs of any kind (srun(1), sbatch(1)).
const (
	envJobGPUs    = "SLURM_JOB_GPUS"
	envStepGPUs   = "SLURM_STEP_GPUS"
	envGPUsOnNode = "SLURM_GPUS_ON_NODE"
)

// GresEnv describes their share of the node's generic resources to tasks and scripts, in the
// variables that libraries read (gres.conf(5), Flags), and which variables would
// tell him something else. SLURM_*_GPUS have the node's numbers; the others do
// too, unless the devices of others are hidden: libraries then count what they
// see.
func GresEnv(node []Gres, has []step.GresAlloc, to GresScope) (env, unset []string) {
	gpus := slices.DeleteFunc(slices.Clone(node), func(g Gres) bool { return g.Name != "gpu" || len(g.Files) == 0 })
	if len(gpus) == 0 {
		return nil, nil
	}
	global := make(map[string][]string) // variable to the node's numbers
	local := make(map[string][]string)
	var all []string
	seen := 0
	for _, g := range gpus {
		for i := range g.Files {
			if !HasGres(has, g.Name, g.First+i) {
				continue
			}
			n := strconv.Itoa(gpuNumber(gpus, g, i))
			all = append(all, n)
			for _, v := range g.Env {
				global[v] = append(global[v], n)
				local[v] = append(local[v], strconv.Itoa(seen))
			}
			seen++
		}
	}
	name, other := envStepGPUs, envJobGPUs
	if to.Batch {
		name, other = envJobGPUs, envStepGPUs
	}
	if len(all) == 0 {
		unset = []string{envGPUsOnNode, envStepGPUs}
		if to.Batch {
			unset = append(unset, envJobGPUs)
		}
	} else {
		env = []string{name + "=" + strings.Join(all, ","), envGPUsOnNode + "=" + strconv.Itoa(len(all))}
		if to.Batch {
			unset = []string{other}
		}
	}
	for _, v := range gpuVariables(gpus) {
		numbers := global[v]
		if to.Local {
			numbers = local[v]
		}
		if numbers == nil {
			unset = append(unset, v)
		} else {
			env = append(env, v+"="+strings.Join(numbers, ","))
		}
	}
	return env, unset
}

// gpuVariables are the variables that name the node's GPUs, in a stable order.
func gpuVariables(gpus []Gres) []string {
	var all []string
	for _, g := range gpus {
		all = append(all, g.Env...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// gpuNumber is what the driver calls a device: the digits that its file ends in,
// where those tell all GPUs of the node apart, else its place in gres.conf.
func gpuNumber(gpus []Gres, g Gres, i int) int {
	seen := make(map[int]bool)
	for _, h := range gpus {
		for _, files := range h.Files {
			n, ok := fileNumber(files[0])
			if !ok || seen[n] {
				return g.First + i
			}
			seen[n] = true
		}
	}
	n, _ := fileNumber(g.Files[i][0])
	return n
}

func fileNumber(path string) (int, bool) {
	digits := path[len(strings.TrimRight(path, "0123456789")):]
	n, err := strconv.Atoi(digits)
	return n, err == nil
}
