package place

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"stepd/node"
	"stepd/node/selection"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task/cgroup"
	"stepd/task/confine"
	"stepd/task/device"
)

var _ node.Limits = (*limits)(nil)

// limits is package confine as noded wants it, with the devices that the site's generic
// resources stand for.
type limits struct {
	*confine.Limits
	devices bool // ConstrainDevices
	gres    []selection.Gres
	nodes   deviceNodes
}

// deviceNodes remembers the numbers of device nodes. A driver that goes takes
// its nodes away and makes them again when it comes back, with the numbers that
// they had: a step that began in between must have been refused them, too.
type deviceNodes struct {
	mu    sync.Mutex
	known map[string]step.Device // by path; guarded by mu
}

// find is the device at path. The error says why there is none now; was is then
// the last that there has been, if ok.
func (n *deviceNodes) find(path string) (was step.Device, ok bool, err error) {
	d, err := device.Stat(path)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.known[path] = d
		return d, true, nil
	}
	was, ok = n.known[path]
	return was, ok, err
}

// NewLimits confines steps where the tracker, which NewTracker has made, has cgroups; each
// step's plan reports what a site asks for and the tracker has not. memory is the node's, in
// bytes; bindable says that the CPU numbers are the machine's.
func NewLimits(c *slurmconf.Config, tracker node.Tracker, gres []selection.Gres, memory uint64, bindable bool) node.Limits {
	at := confine.Nowhere(tracker.Kind())
	if t, ok := tracker.(*cgroupTracker); ok {
		at = tracked{t}
	}
	return newLimits(c, at, gres, memory, bindable)
}

// tracked are the places of a tracker, whose root and controllers may change: Prepare finds
// them out.
type tracked struct{ *cgroupTracker }

func (t tracked) now() confine.Places { return confine.Below(t.kind, t.root, t.v2) }

func (t tracked) Controllers() confine.Controllers         { return t.now().Controllers() }
func (t tracked) Roots() (v2 string, v1 map[string]string) { return t.now().Roots() }
func (t tracked) Of(id step.ID) confine.StepPlaces         { return t.now().Of(id) }

func newLimits(c *slurmconf.Config, at confine.Places, gres []selection.Gres, memory uint64, bindable bool) *limits {
	l := &limits{
		Limits:  confine.New(confine.Config{Site: c, At: at, MemoryMB: memory >> 20, Bindable: bindable, Devices: true}),
		devices: c.Cgroup.ConstrainDevices, gres: gres, nodes: deviceNodes{known: make(map[string]step.Device)},
	}
	if l.devices { // the first look, for steps that begin when a device is gone
		_, _ = l.denied(nil) // it fails for devices that are given alone
	}
	return l
}

// Plan decides what confines the step.
func (l *limits) Plan(spec *step.Spec) (*launch.LimitPlan, error) {
	var deny confine.Denied
	if l.devices {
		var err error
		if deny.Job, err = l.denied(spec.JobGres); err != nil {
			return nil, err
		}
		if deny.Step, err = l.denied(spec.StepGres); err != nil {
			return nil, err
		}
	}
	return l.Limits.Plan(spec, deny)
}

// Apply carries out writes of a plan.
func (l *limits) Apply(writes []step.CgroupWrite) error { return cgroup.Apply(writes, device.Attach) }

// denied are the devices of the node's generic resources that has does not
// name. What is no device now, and has not been one, needs no refusal; what was
// given must be one.
func (l *limits) denied(has []step.GresAlloc) ([]step.Device, error) {
	var deny, allow []step.Device
	for _, g := range l.gres {
		for i, files := range g.Files {
			given := selection.HasGres(has, g.Name, g.First+i)
			for _, file := range files {
				d, ok, err := l.nodes.find(file)
				switch {
				case given && err != nil:
					return nil, &launch.FaultError{Err: fmt.Errorf("gres/%s %d: %w", g.Name, g.First+i, err)}
				case given:
					allow = append(allow, d)
				case ok && !slices.ContainsFunc(deny, d.Same):
					deny = append(deny, d)
				}
			}
		}
	}
	// One node may belong to two resources.
	return slices.DeleteFunc(deny, func(d step.Device) bool {
		return slices.ContainsFunc(allow, d.Same)
	}), nil
}

// Gres numbers the site's generic resources as the node's: through all lines
// of one name, in their order.
func Gres(c *slurmconf.Config) []selection.Gres {
	next := make(map[string]int)
	var out []selection.Gres
	for i := range c.Gres {
		g := &c.Gres[i]
		s := selection.Gres{
			Name: g.Name, Type: g.Type, Count: g.Count, First: next[g.Name], Files: g.Devices(),
			Env: gpuVariables(g), NoConsume: g.NoConsume,
		}
		next[g.Name] += len(s.Files)
		out = append(out, s)
	}
	return out
}

// gpuVariables are the variables that the flags of a gpu stand for (gres.conf(5)).
func gpuVariables(g *slurmconf.Gres) []string {
	if !strings.EqualFold(g.Name, "gpu") {
		return nil
	}
	var out []string
	for _, v := range []struct{ flag, name string }{
		{slurmconf.GresNvidiaEnv, "CUDA_VISIBLE_DEVICES"}, {slurmconf.GresAMDEnv, "ROCR_VISIBLE_DEVICES"},
		{slurmconf.GresIntelEnv, "ZE_AFFINITY_MASK"}, {slurmconf.GresOpenCLEnv, "GPU_DEVICE_ORDINAL"},
	} {
		if slices.Contains(g.Flags, v.flag) {
			out = append(out, v.name)
		}
	}
	return out
}
