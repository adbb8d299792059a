package proctrack

import (
	"fmt"
	"slices"
	"strings"
)

// wanted are the v2 controllers that limits and accounting can use.
var wanted = [...]string{"cpu", "cpuset", "io", "memory", "pids"}

// controllers are the v2 controllers of a group, and those that it gives to its children.
type controllers struct{ *group }

// delegate enables the wanted controllers for the children of g, as far as g
// has them, and says why the others stay disabled.
func (g controllers) delegate() (missing map[string]string, err error) {
	missing = make(map[string]string)
	if g.v1 {
		return missing, nil
	}
	want, err := g.lacking()
	if err != nil || len(want) == 0 {
		return missing, err
	}
	why, err := g.keepsAll()
	if err != nil {
		return nil, err
	}
	if why == "" && g.enable(want) == nil {
		return missing, nil
	}
	for _, c := range want {
		if why != "" {
			missing[c] = why
		} else if err := g.enable([]string{c}); err != nil {
			missing[c] = err.Error()
		}
	}
	return missing, nil
}

// lacking lists the wanted controllers that g has and its children have not.
func (g controllers) lacking() ([]string, error) {
	has, err := g.listed("cgroup.controllers")
	if err != nil {
		return nil, err
	}
	enabled, err := g.listed("cgroup.subtree_control")
	return slices.DeleteFunc(has, func(c string) bool {
		return !slices.Contains(wanted[:], c) || slices.Contains(enabled, c)
	}), err
}

// keepsAll says why none may be enabled: where processes are in g itself, the
// kernel refuses memory and io, and takes cpu and pids for a wish to have threads
// in the children, which could hold no processes any more (cgroup-v2.rst,
// "Threads"). The root of all alone may have processes.
func (g controllers) keepsAll() (why string, err error) {
	if !g.has("cgroup.type") {
		return "", nil
	}
	pids, err := g.ownPIDs()
	if err != nil || len(pids) == 0 {
		return "", err
	}
	return fmt.Sprintf("%d processes are in cgroup %q itself, whose controllers can then limit nothing below it", len(pids), g.path), nil
}

// enable lets these controllers limit the children of g.
func (g controllers) enable(names []string) error {
	if len(names) == 0 {
		return nil
	}
	enabled, err := g.listed("cgroup.subtree_control")
	if err != nil {
		return err
	}
	var change []string
	for _, c := range names {
		if !slices.Contains(enabled, c) {
			change = append(change, "+"+c)
		}
	}
	if len(change) == 0 {
		return nil
	}
	return g.write("cgroup.subtree_control", strings.Join(change, " "))
}

// delegated lists the wanted controllers that limit the children of g.
func (g controllers) delegated() ([]string, error) {
	if g.v1 {
		return nil, nil
	}
	enabled, err := g.listed("cgroup.subtree_control")
	return slices.DeleteFunc(enabled, func(c string) bool { return !slices.Contains(wanted[:], c) }), err
}

// listed reads a file of controllers' names.
func (g controllers) listed(file string) ([]string, error) {
	data, err := g.read(file)
	return strings.Fields(string(data)), err
}

// prepareV1 makes a new v1 group fit for processes: a cpuset takes none, and
// says ENOSPC, before it has CPUs and memory nodes; memory counts what is below
// only if memory.use_hierarchy is set, before Linux 5.11. Values that are already set
// stay.
func (g *group) prepareV1(parent *group) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := g.inherit(parent, file); err != nil {
			return err
		}
	}
	if !g.has("memory.use_hierarchy") {
		return nil
	}
	if data, err := g.read("memory.use_hierarchy"); err != nil || strings.TrimSpace(string(data)) == "1" {
		return err
	}
	return g.write("memory.use_hierarchy", "1")
}

// inherit fills an empty file with the parent's value.
func (g *group) inherit(parent *group, file string) error {
	if !g.has(file) {
		return nil
	}
	own, err := g.read(file)
	if err != nil || strings.TrimSpace(string(own)) != "" {
		return err
	}
	value, err := parent.read(file)
	if err != nil {
		return err
	}
	text := strings.TrimSpace(string(value))
	if text == "" {
		return fmt.Errorf("cannot use cgroup %q: %s of %q is empty", g.path, file, parent.path)
	}
	return g.write(file, text)
}
