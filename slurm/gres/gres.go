// Package gres says which generic resources of the node a step of slurmd's has: which device
// files its tasks may open, which each of them is bound to (--gpu-bind, --tres-bind), and the
// variables that tell the tasks so. All is decided from what slurmd has sent: no file is read.
// Begin with Of.
package gres

import (
	"fmt"
	"maps"
	"slices"

	"stepd/slurm/wire"
	"stepd/step"
)

// Plan is what a step has of the node's generic resources.
type Plan struct {
	release wire.Release
	batch   bool   // the variables are the job's
	request string // --tres-bind, as srun has it, as a variable that all tasks share, "" without
	held    []held // of the step, of a batch script its job's

	// JobDenied, StepDenied and TaskDenied, the latter by local id, are the devices that the
	// job, the step and a task must not open: what is others' of the site's generic resources. TaskDenied is nil where the tasks have the same.
	JobDenied, StepDenied []step.Device
	TaskDenied            [][]step.Device
	// Paths are the files of the step's devices.
	Paths []string
}

// held is one resource of the node, and what is held of it.
type held struct {
	node  *wire.NodeGres
	count uint64
	index []int // of devices, ascending
	// bound are the devices of each task by local id, says what a task is to be told.
	bound [][]int
	bind  *binding // nil where the tasks have all
	says  [][]string
}

// Step is what a plan depends on beside the stream.
type Step struct {
	Node  int // this node's place among the job's
	Tasks int // on this node
	// Constrained says that a task sees its own devices alone: they are then counted from 0, by
	// users and for them.
	Constrained bool
	// CPUs returns which a task is bound to; nil is all.
	CPUs func(local int) []int
}

// Of plans a step. The error is a credential's that gives what the node has not.
func Of(s *wire.Stream, of Step) (*Plan, error) {
	p := &Plan{release: s.Conf.Release}
	var cred *wire.Cred
	var bind string
	job := false // its resources are the job's
	switch {
	case s.Batch != nil:
		cred, p.batch, job = s.Batch.Cred, true, true
	default:
		cred, bind = s.Launch.Cred, s.Launch.GresBind
		p.batch = s.Launch.Step.Step == wire.StepInteractive // it is told as a script is
		job = p.batch || s.Launch.Step.Step == wire.StepExtern
	}
	jobs, err := hold(s, cred.JobGres, of.Node)
	if err != nil {
		return nil, err
	}
	p.held = jobs
	if !job {
		if p.held, err = hold(s, cred.StepGres, of.Node); err != nil {
			return nil, err
		}
	}
	if bind != "" {
		p.request = "SLURMD_TRES_BIND=" + bind
	}
	for i := range p.held {
		h := &p.held[i]
		if h.bind = parseBind(bind, h.node.Name, p.release); h.bind == nil && s.Launch != nil && accelBinds(s.Launch.AccelBind, h.node.Name) {
			h.bind = &binding{kind: bindClosest}
		}
		h.bindTasks(s, of)
		for _, d := range h.node.Devices {
			if slices.Contains(h.index, int(d.Index)) && !slices.Contains(p.Paths, d.Path) {
				p.Paths = append(p.Paths, d.Path)
			}
		}
	}
	p.deny(s, jobs, of.Tasks)
	return p, nil
}

// accelBinds are the letters of --accel-bind (slurm.h).
func accelBinds(bits uint16, name string) bool {
	return bits&map[string]uint16{"gpu": 0x2, "nic": 0x8}[name] != 0
}

// hold sums up a list of a credential's, in the order of the node's resources.
func hold(s *wire.Stream, list []wire.Gres, node int) (all []held, err error) {
	for i := range s.NodeGres {
		all = append(all, held{node: &s.NodeGres[i]})
	}
	for _, g := range list {
		at := slices.IndexFunc(all, func(h held) bool { return h.node.ID == g.ID })
		if at < 0 {
			return nil, fmt.Errorf("cannot give generic resource %d of the credential: the node has none of it (GresTypes in slurm.conf)", g.ID)
		}
		if err := all[at].add(&g, node); err != nil {
			return nil, err
		}
	}
	for i := range all {
		slices.Sort(all[i].index)
		all[i].index = slices.Compact(all[i].index)
	}
	return all, nil
}

// add adds an entry: of each type of a resource there may be one.
func (h *held) add(g *wire.Gres, node int) error {
	if node < len(g.Counts) {
		h.count += g.Counts[node]
	}
	if node >= len(g.Bits) || len(h.node.Devices) == 0 {
		return nil // it is counted only, or its files are not known to slurmd
	}
	for i, given := range g.Bits[node] {
		if !given {
			continue
		}
		if !slices.ContainsFunc(h.node.Devices, func(d wire.NodeDevice) bool { return int(d.Index) == i }) {
			return fmt.Errorf("cannot give device %d of gres/%s: the node has no such device (gres.conf)", i, h.node.Name)
		}
		h.index = append(h.index, i)
	}
	return nil
}

// deny finds the devices that are others'. A device that is also one of their own stays.
func (p *Plan) deny(s *wire.Stream, jobs []held, tasks int) {
	p.JobDenied = denied(s, func(i int) []int { return jobs[i].index })
	p.StepDenied = denied(s, func(i int) []int { return p.held[i].index })
	if !slices.ContainsFunc(p.held, func(h held) bool { return h.bound != nil }) {
		return
	}
	p.TaskDenied = make([][]step.Device, tasks)
	for local := range p.TaskDenied {
		p.TaskDenied[local] = denied(s, func(i int) []int { return p.held[i].of(local) })
	}
}

// of are a task's devices.
func (h *held) of(local int) []int {
	if h.bound == nil {
		return h.index
	}
	return h.bound[local]
}

// denied are the node's devices but for the ones whose index has returns, by resource.
func denied(s *wire.Stream, has func(i int) []int) []step.Device {
	deny, allow := map[step.Device]bool{}, map[step.Device]bool{}
	for i := range s.NodeGres {
		own := has(i)
		for _, d := range s.NodeGres[i].Devices {
			if dev, ok := device(&d); ok && slices.Contains(own, int(d.Index)) {
				allow[dev] = true
			} else if ok {
				deny[dev] = true
			}
		}
	}
	list := slices.Collect(maps.Keys(deny))
	list = slices.DeleteFunc(list, func(d step.Device) bool { return allow[d] })
	slices.SortFunc(list, func(a, b step.Device) int {
		return slices.Compare([]uint32{uint32(a.Type[0]), a.Major, a.Minor}, []uint32{uint32(b.Type[0]), b.Major, b.Minor})
	})
	return list
}

// device is a device by its numbers, which slurmd has read when it started. ok is false for
// what was no device then.
func device(d *wire.NodeDevice) (_ step.Device, ok bool) {
	kind := map[uint32]string{wire.DeviceBlock: "b", wire.DeviceChar: "c"}[d.Kind]
	return step.Device{Type: kind, Major: d.Major, Minor: d.Minor}, kind != ""
}

// Allocated are the resources that are held, as a record has them.
func (p *Plan) Allocated() (all []step.GresAlloc) {
	for _, h := range p.held {
		if h.count > 0 {
			all = append(all, step.GresAlloc{Name: h.node.Name, Count: h.count, Index: h.index})
		}
	}
	return all
}
