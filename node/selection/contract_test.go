package selection

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

// operations is the length of a history.
const operations = 10000

// TestContract: whatever happens on a node, no CPU, no memory and no gres is given twice, none is
// lost, a test takes nothing, what it has found can be begun, the node's figures are right, and the
// jobs and steps are the same after they were saved and restored. Both plugins, each policy, with
// and without known cores, consumable memory and CPUs that no job gets, with 1, 2 and 4 threads on
// nodes of 1 to 256 cores.
func TestContract(t *testing.T) {
	sizes := []int{1, 256, 2, 12, 5, 96, 31}
	asItIs := func(*Config) {}
	freeMemory := func(c *Config) { c.Memory.Consumable = false }
	n := 0
	for _, kind := range []struct {
		name string
		Config
		change func(*Config)
	}{
		{"linear", Config{Type: Linear}, asItIs},
		{"linear without memory", Config{Type: Linear}, freeMemory},
		{"cpu, no cores known", Config{Type: ConsTres}, func(c *Config) { c.Cores = nil }},
		{"cpu", Config{Type: ConsTres}, asItIs},
		{"cpu without memory", Config{Type: ConsTres}, freeMemory},
		{"cpu with spec", Config{Type: ConsTres}, firstCoreSpec},
		{"linear with spec", Config{Type: Linear}, firstCoreSpec},
		{"cpu, whole cores", Config{Type: ConsTres, Policy: Policy{WholeCores: true}}, asItIs},
		{"core", Config{Type: ConsTres, Policy: Policy{Unit: UnitCore}}, asItIs},
		{"core with spec", Config{Type: ConsTres, Policy: Policy{Unit: UnitCore}}, firstCoreSpec},
		{"socket", Config{Type: ConsTres, Policy: Policy{Unit: UnitSocket}}, asItIs},
		{"core, one task", Config{Type: ConsTres, Policy: Policy{Unit: UnitCore, OneTaskPerCore: true}}, asItIs},
	} {
		for _, threads := range []int{1, 2, 4} {
			cores := sizes[n%len(sizes)]
			n++
			seed := uint64(n)
			t.Run(fmt.Sprintf("%s/%dx%d", kind.name, cores, threads), func(t *testing.T) {
				t.Parallel()
				cfg := kind.Config
				nodeOf(&cfg, cores, threads)
				kind.change(&cfg)
				h := &history{t: t, rand: rand.New(rand.NewPCG(seed, 22)), cfg: cfg, units: unitsOf(&cfg), plugin: New(cfg), owners: make(map[int]*Job)}
				for h.op = range operations {
					h.step()
				}
				for len(h.jobs) > 0 {
					h.fini(0)
				}
				h.check()
				if h.begun < operations/50 || h.restored == 0 {
					t.Errorf("%d jobs were begun, and %d times all was restored: the history shows little", h.begun, h.restored)
				}
			})
		}
	}
}

// nodeOf fills in a node of two sockets, unless it has one core, with memory and gres.
func nodeOf(cfg *Config, cores, threads int) {
	for c := range cores {
		core := Core{Socket: c * 2 / max(cores, 2)}
		for i := range threads {
			core.CPUs = append(core.CPUs, c*threads+i)
		}
		cfg.CPUs, cfg.Cores = append(cfg.CPUs, core.CPUs...), append(cfg.Cores, core)
	}
	cfg.Memory = Memory{MB: uint64(cores) * 100, Consumable: true, DefPerCPU: 3}
	cfg.Gres = []Gres{
		{Name: "gpu", Type: "a", Count: 2, Files: [][]string{{"/dev/a0"}, {"/dev/a1"}}, CPUs: cfg.Cores[0].CPUs},
		{Name: "gpu", Type: "b", Count: 1, First: 2, Files: [][]string{{"/dev/b0"}}, CPUs: cfg.Cores[cores-1].CPUs},
		{Name: "scratch", Count: 100},
	}
}

// firstCoreSpec keeps the CPUs of the first core from jobs, unless it is the only one.
func firstCoreSpec(c *Config) {
	if len(c.Cores) > 1 {
		n := len(c.Cores[0].CPUs)
		c.Spec, c.CPUs, c.Cores = c.CPUs[:n], c.CPUs[n:], c.Cores[1:]
	}
}

// history plays a node's life, and keeps its own account of it.
type history struct {
	t              *testing.T
	rand           *rand.Rand
	cfg            Config
	units          map[int][]int // the CPUs that a job has with each one
	plugin         Plugin
	op             int
	jobs           []*played
	owners         map[int]*Job // of each CPU, as far as a job does not share it
	begun          int
	restored, next int
}

type played struct {
	*Job
	req   step.Request
	end   *time.Time
	steps []Share
}

func (h *history) step() {
	switch k := h.rand.IntN(100); {
	case k < 40 && len(h.jobs) < 200:
		h.begin()
	case k < 60 && len(h.jobs) > 0:
		h.fini(h.rand.IntN(len(h.jobs)))
	case k < 70 && len(h.jobs) > 0:
		h.stand(h.jobs[h.rand.IntN(len(h.jobs))])
	case k < 95 && len(h.jobs) > 0:
		h.steps(h.jobs[h.rand.IntN(len(h.jobs))])
	case k < 97:
		h.willRun()
	case k == 99 && h.rand.IntN(5) == 0:
		h.restore()
	}
	if h.op%100 == 0 {
		h.check()
	}
}

// request makes a request of a size that often fits.
func (h *history) request() *step.Request {
	r := h.rand
	req := &step.Request{NTasks: 1 + r.IntN(max(1, len(h.cfg.CPUs)/3)), CPUsPerTask: 1 + r.IntN(2), Overcommit: r.IntN(12) == 0}
	if r.IntN(3) == 0 {
		req.NTasks = 1
	}
	switch r.IntN(8) {
	case 0:
		req.Binding.ThreadsPerCore = 1
	case 1:
		req.Binding.NTasksPerCore = 1
	case 2:
		req.Binding.NTasksPerSocket = 1 + r.IntN(4)
	}
	switch r.IntN(4) {
	case 0:
		req.Mem = new(uint64(1 + r.IntN(int(h.cfg.Memory.MB))))
	case 1:
		req.MemPerCPU = new(uint64(1 + r.IntN(40)))
	}
	switch r.IntN(6) {
	case 0:
		req.Gres = []step.GresRequest{{Name: "gpu", Count: uint64(1 + r.IntN(2))}}
	case 1:
		req.Gres = []step.GresRequest{{Name: "scratch", Count: uint64(1 + r.IntN(60))}, {Name: "gpu", Type: "b", Count: 1}}
	}
	return req
}

func (h *history) begin() {
	req := h.request()
	sh, err := h.plugin.Test(req, RunNow)
	if err != nil {
		return
	}
	if want := req.NTasks * req.CPUsPerTask; len(sh.CPUs) < want && !req.Overcommit {
		h.t.Fatalf("operation %d: %d CPUs for %d", h.op, len(sh.CPUs), want)
	}
	if !req.Overcommit {
		h.whole(sh.CPUs)
	}
	j := &played{Job: h.plugin.Begin(sh), req: *req}
	h.next++
	j.ID = uint32(h.next)
	if h.rand.IntN(4) > 0 {
		j.end = new(time.Unix(int64(h.rand.IntN(1000)), 0))
	}
	if !reflect.DeepEqual(j.Share, sh) {
		h.t.Fatalf("operation %d: the test has found %+v, and the job has %+v", h.op, sh, j.Share)
	}
	h.begun++
	h.jobs = append(h.jobs, j)
	h.own(j)
}

// whole checks that the CPUs of a job are all of their nodes, sockets or cores.
func (h *history) whole(cpus []int) {
	has := make(map[int]int)
	for _, cpu := range cpus {
		has[h.units[cpu][0]]++
	}
	for unit, n := range has {
		if n < len(h.units[unit]) {
			h.t.Fatalf("operation %d: of the CPUs %v a job has %d", h.op, h.units[unit], n)
		}
	}
}

// unitsOf are the CPUs that jobs have together, of each CPU.
func unitsOf(cfg *Config) map[int][]int {
	units := make(map[int][]int)
	bySocket := make(map[int][]int)
	for _, c := range cfg.Cores {
		bySocket[c.Socket] = append(bySocket[c.Socket], c.CPUs...)
	}
	for _, cpu := range cfg.CPUs {
		units[cpu] = []int{cpu}
		if cfg.Type == Linear {
			units[cpu] = cfg.CPUs
		}
	}
	for _, c := range cfg.Cores {
		for _, cpu := range c.CPUs {
			switch {
			case cfg.Type == Linear:
			case cfg.Unit == UnitSocket:
				units[cpu] = bySocket[c.Socket]
			case cfg.Unit == UnitCore, cfg.WholeCores:
				units[cpu] = c.CPUs
			}
		}
	}
	return units
}

// own notes that the job has its CPUs, which no other may have.
func (h *history) own(j *played) {
	if j.Shared {
		return
	}
	for _, cpu := range j.CPUs {
		if o := h.owners[cpu]; o != nil {
			h.t.Fatalf("operation %d: CPU %d is given to job %d and to job %d", h.op, cpu, o.ID, j.ID)
		}
		h.owners[cpu] = j.Job
	}
}

func (h *history) disown(j *played) {
	for _, cpu := range j.CPUs {
		if h.owners[cpu] == j.Job {
			delete(h.owners, cpu)
		}
	}
}

func (h *history) fini(i int) {
	j := h.jobs[i]
	h.jobs = slices.Delete(h.jobs, i, i+1)
	h.plugin.Fini(j.Job)
	h.plugin.Fini(j.Job) // a second call gives nothing back
	h.disown(j)
}

// stand suspends a job, or resumes it.
func (h *history) stand(j *played) {
	if !j.Suspended {
		h.plugin.Suspend(j.Job)
		h.disown(j)
		return
	}
	var held []uint32
	for _, cpu := range j.CPUs {
		if o := h.owners[cpu]; o != nil && !j.Shared && !slices.Contains(held, o.ID) {
			held = append(held, o.ID)
		}
	}
	slices.Sort(held)
	err := h.plugin.Resume(j.Job)
	if e, ok := errors.AsType[*HeldError](err); ok && slices.Equal(e.Jobs, held) && j.Suspended {
		return
	}
	if err != nil || len(held) > 0 {
		h.t.Fatalf("operation %d: the resume of job %d, whose CPUs jobs %v have: %v", h.op, j.ID, held, err)
	}
	h.own(j)
}

// steps begins a step of the job, or ends one.
func (h *history) steps(j *played) {
	if n := len(j.steps); n > 0 && h.rand.IntN(2) == 0 {
		i := h.rand.IntN(n)
		j.StepFinish(j.steps[i])
		j.steps = slices.Delete(j.steps, i, i+1)
		return
	}
	req := step.Request{NTasks: 1 + h.rand.IntN(len(j.CPUs)), CPUsPerTask: 1}
	if h.rand.IntN(3) == 0 && len(j.Gres) > 0 {
		req.Gres = []step.GresRequest{{Name: j.Gres[0].Name, Count: 1}}
	}
	alone := h.rand.IntN(2) == 0
	before := j.FreeAlone()
	sh, err := j.StepPick(&req, alone)
	if err != nil {
		if j.FreeAlone() != before {
			h.t.Fatalf("operation %d: a refused step has CPUs", h.op)
		}
		return
	}
	for _, o := range j.steps {
		if both := common(o.CPUs, sh.CPUs); alone && o.Alone && len(both) > 0 {
			h.t.Fatalf("operation %d: two steps have CPUs %v for themselves", h.op, both)
		}
		for _, a := range o.Held {
			for _, b := range sh.Held {
				if a.Name == b.Name && a.Type == b.Type && len(common(a.Index, b.Index)) > 0 {
					h.t.Fatalf("operation %d: two steps hold %v and %v", h.op, a, b)
				}
			}
		}
	}
	for _, cpu := range sh.CPUs {
		if !slices.Contains(j.CPUs, cpu) {
			h.t.Fatalf("operation %d: a step has CPU %d, which its job has not", h.op, cpu)
		}
	}
	j.steps = append(j.steps, sh)
}

// willRun compares the three answers to a request, and that none takes anything.
func (h *history) willRun() {
	req, before := h.request(), h.plugin.Info()
	ends := func(has *Job) *time.Time {
		i := slices.IndexFunc(h.jobs, func(j *played) bool { return j.Job == has })
		return h.jobs[i].end
	}
	_, now := h.plugin.Test(req, RunNow)
	_, never := h.plugin.Test(req, TestOnly)
	w := h.plugin.WillRun(req, ends)
	if (w.Err == nil) != (now == nil) || w.Never != (never != nil) || never != nil && now == nil {
		h.t.Fatalf("operation %d: now %v, never %v, %+v", h.op, now, never, w)
	}
	if after := h.plugin.Info(); !reflect.DeepEqual(before, after) {
		h.t.Fatalf("operation %d: a test has changed %+v to %+v", h.op, before, after)
	}
	if w.Err == nil || w.Never {
		return
	}
	// It fits without the holders, and with any of them it does not.
	without := func(out []*Job) error {
		p := New(h.cfg)
		for _, j := range h.jobs {
			if !slices.Contains(out, j.Job) {
				p.JobInit(j.ID, j.Saved)
			}
		}
		_, err := p.Test(req, RunNow)
		return err
	}
	if err := without(w.Holders); err != nil {
		h.t.Fatalf("operation %d: when the holders have ended: %v", h.op, err)
	}
	if len(w.Holders) == 0 {
		h.t.Fatalf("operation %d: it would fit, and no job has what is missing: %v", h.op, w.Err)
	}
	if last := w.Holders[len(w.Holders)-1]; !reflect.DeepEqual(w.At, ends(last)) {
		h.t.Fatalf("operation %d: at %v, and job %d ends at %v", h.op, w.At, last.ID, ends(last))
	}
	for _, i := range []int{len(w.Holders) - 1, h.rand.IntN(len(w.Holders))} {
		if without(slices.Delete(slices.Clone(w.Holders), i, i+1)) == nil {
			h.t.Fatalf("operation %d: it fits while job %d runs", h.op, w.Holders[i].ID)
		}
	}
}

// restore saves all, and goes on with a plugin that knows that alone.
func (h *history) restore() {
	before := h.plugin.Info()
	h.plugin, h.owners = New(h.cfg), make(map[int]*Job)
	h.restored++
	var jobs []*Job
	for _, j := range h.jobs {
		text, err := json.Marshal(j.Saved)
		var saved Saved
		if err := errors.Join(err, json.Unmarshal(text, &saved)); err != nil {
			h.t.Fatal(err)
		}
		alone := j.FreeAlone()
		j.Job = h.plugin.JobInit(j.ID, saved)
		jobs = append(jobs, j.Job)
		for _, sh := range j.steps {
			j.StepInit(sh)
		}
		if j.FreeAlone() != alone {
			h.t.Fatalf("operation %d: steps of job %d have other CPUs", h.op, j.ID)
		}
		if !j.Suspended {
			h.own(j)
		}
	}
	if after := h.plugin.Info(); !reflect.DeepEqual(before, after) {
		h.t.Fatalf("operation %d: restored are %+v, saved were %+v", h.op, after, before)
	}
	if over := h.plugin.Confirm(jobs); over != nil {
		h.t.Fatalf("operation %d: what was saved does not fit: %v", h.op, over)
	}
	h.less()
}

// less restores all on a node that has less: the jobs that do not fit are named, and what the others
// and they have is not given to another job.
func (h *history) less() {
	cfg := h.cfg
	cfg.CPUs = cfg.CPUs[:1+h.rand.IntN(len(cfg.CPUs))]
	cfg.Cores = coresOf(cfg.Cores, cfg.CPUs)
	cfg.Memory.MB = uint64(h.rand.IntN(int(cfg.Memory.MB) + 1))
	cfg.Gres = slices.Clone(cfg.Gres[h.rand.IntN(2):])
	amount := &cfg.Gres[len(cfg.Gres)-1]
	amount.Count = uint64(h.rand.IntN(int(amount.Count) + 1))
	p := New(cfg)
	var jobs []*Job
	var want, got []uint32
	mb, scratch := uint64(0), uint64(0)
	for _, j := range h.jobs { // by their numbers
		jobs = append(jobs, p.JobInit(j.ID, j.Saved))
		over := slices.ContainsFunc(j.CPUs, func(cpu int) bool { return !slices.Contains(cfg.CPUs, cpu) })
		mb += j.MB
		over = over || cfg.Memory.Consumable && j.MB > 0 && mb > cfg.Memory.MB
		for _, a := range j.Gres {
			if a.Name == "scratch" {
				scratch += a.Count
			}
			over = over || a.Name == "scratch" && scratch > amount.Count || a.Type == "a" && cfg.Gres[0].Type != "a"
		}
		if over {
			want = append(want, j.ID)
		}
	}
	for _, e := range p.Confirm(jobs) {
		got = append(got, e.Job.ID)
	}
	if !slices.Equal(got, want) {
		h.t.Fatalf("operation %d: on a node with less jobs %v do not fit, want %v", h.op, got, want)
	}
	for range 10 {
		req := h.request()
		req.Overcommit = false
		sh, err := p.Test(req, RunNow)
		if err != nil {
			continue
		}
		if i := slices.IndexFunc(sh.CPUs, func(cpu int) bool { return h.owners[cpu] != nil }); i >= 0 {
			h.t.Fatalf("operation %d: CPU %d, which a job has, is given again", h.op, sh.CPUs[i])
		}
		if cfg.Memory.Consumable && sh.MB > 0 && mb+sh.MB > cfg.Memory.MB {
			h.t.Fatalf("operation %d: %d MB are given beside %d of %d", h.op, sh.MB, mb, cfg.Memory.MB)
		}
		for _, a := range sh.Gres {
			if a.Name == "scratch" && scratch+a.Count > amount.Count {
				h.t.Fatalf("operation %d: %v is given beside %d of %d", h.op, a, scratch, amount.Count)
			}
			for _, j := range h.jobs {
				for _, b := range j.Gres {
					if a.Type == b.Type && len(common(a.Index, b.Index)) > 0 {
						h.t.Fatalf("operation %d: %v is given, and job %d has %v", h.op, a, j.ID, b)
					}
				}
			}
		}
	}
}

// check compares the plugin's account with the history's.
func (h *history) check() {
	used := make(map[int]bool)
	mb := uint64(0)
	devices := make(map[string][]int)
	amounts := make(map[string]uint64)
	for _, j := range h.jobs {
		mb += j.MB
		for _, cpu := range j.CPUs {
			used[cpu] = used[cpu] || !j.Suspended
		}
		for _, a := range j.Gres {
			amounts[a.Name+a.Type] += a.Count
			devices[a.Name+a.Type] = append(devices[a.Name+a.Type], a.Index...)
		}
	}
	free := slices.DeleteFunc(slices.Clone(h.cfg.CPUs), func(cpu int) bool { return used[cpu] })
	cores := slices.DeleteFunc(slices.Clone(h.cfg.Cores), func(c Core) bool {
		return slices.ContainsFunc(c.CPUs, func(cpu int) bool { return used[cpu] })
	})
	info := h.plugin.Info()
	want := Info{
		NodeSelect: api.NodeSelect{
			Plugin: h.cfg.Type, Unit: string(cmp.Or(h.cfg.Unit, UnitCPU)), FreeCPUList: step.FormatCPUList(free), SpecCPUs: step.FormatCPUList(h.cfg.Spec),
			Cores: len(h.cfg.Cores), FreeCores: len(cores),
		},
		FreeCPUs: len(free), UsedMB: mb,
		Gres: []api.NodeGres{{Name: "gpu", Type: "a", Count: 2}, {Name: "gpu", Type: "b", Count: 1}, {Name: "scratch", Count: 100}},
	}
	if h.cfg.Type == Linear {
		want.Unit = string(UnitNode)
	}
	for i := range want.Gres {
		g := &want.Gres[i]
		list := devices[g.Name+g.Type]
		slices.Sort(list)
		g.Used, g.UsedIndex = amounts[g.Name+g.Type], step.FormatCPUList(list)
		if g.Used > g.Count || len(slices.Compact(list)) < len(list) {
			h.t.Fatalf("operation %d: used are %d of %d %s%s, devices %v", h.op, g.Used, g.Count, g.Name, g.Type, list)
		}
	}
	if !reflect.DeepEqual(info, want) || mb > h.cfg.Memory.MB && h.cfg.Memory.Consumable {
		h.t.Fatalf("operation %d: the node has %+v, and should have %+v, of %d MB", h.op, info, want, h.cfg.Memory.MB)
	}
}
