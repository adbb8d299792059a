package step

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// LimitPlan is what confines a step and its job: decided by noded before
// anything is touched, so that --dry-run can show it, and carried out before the
// step's stepd is started.
type LimitPlan struct {
	// Writes are the writes for job and step in their order. The writes for
	// single tasks are TaskWrites, with %t for the rank.
	Writes     []CgroupWrite `json:"writes"`
	TaskWrites []CgroupWrite `json:"task_writes,omitempty"`
	// V1 are the v1 controllers that the step needs directories of.
	V1 []string `json:"v1,omitempty"`
	// Confine is what stepd is told.
	Confine Confinement `json:"confine"`
	// Notes say what the configuration asks for and the node cannot do.
	Notes []string `json:"notes,omitempty"`
}

// CgroupWrite is one value for one file of a cgroup.
type CgroupWrite struct {
	Level string `json:"level"` // "job", "step" or "task"
	Path  string `json:"path"`  // the file; of a device program the directory
	Value string `json:"value"`
	// Deny makes it no write but a device program that is attached to Path, and
	// refuses these devices and nothing else. Value is then its text.
	Deny []Device `json:"deny,omitempty"`
}

// Device is a device node by its numbers.
type Device struct {
	Type  string `json:"type"` // "b" or "c"
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Path  string `json:"path,omitempty"` // where it was found, for messages
}

// Rule is the device in the form of the v1 files devices.deny and devices.allow.
func (d Device) Rule() string { return fmt.Sprintf("%s %d:%d rwm", d.Type, d.Major, d.Minor) }

// Same reports whether both are one device, wherever their nodes are.
func (d Device) Same(o Device) bool {
	return d.Type == o.Type && d.Major == o.Major && d.Minor == o.Minor
}

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
}

// GresAlloc is what a job or a step has of one gres.
type GresAlloc struct {
	Name  string `json:"name"`
	Type  string `json:"type,omitempty"`
	Count uint64 `json:"count"`
	// Index are the numbers of its devices, ascending; nil where it has no files.
	Index []int `json:"index,omitempty"`
}

func (a GresAlloc) String() string {
	s := a.Name
	if a.Type != "" {
		s += ":" + a.Type
	}
	s += ":" + strconv.FormatUint(a.Count, 10)
	if len(a.Index) > 0 {
		s += "(IDX:" + FormatCPUList(a.Index) + ")"
	}
	return s
}

// FormatAllocs is a list of allocations as Slurm writes it: "gpu:a100:2(IDX:0-1)".
// "" is none.
func FormatAllocs(list []GresAlloc) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return strings.Join(words, ",")
}

// HasGres reports whether device i of the gres is among the allocations.
func HasGres(list []GresAlloc, name string, i int) bool {
	return slices.ContainsFunc(list, func(a GresAlloc) bool { return a.Name == name && slices.Contains(a.Index, i) })
}

// FormatMB is a number of MB for people: "23 GB", "1500 MB".
func FormatMB(mb uint64) string {
	switch {
	case mb >= 1<<20 && mb%(1<<20) == 0:
		return fmt.Sprintf("%d TB", mb>>20)
	case mb >= 1<<10 && mb%(1<<10) == 0:
		return fmt.Sprintf("%d GB", mb>>10)
	case mb >= 10<<10:
		return fmt.Sprintf("%.1f GB", float64(mb)/1024)
	}
	return fmt.Sprintf("%d MB", mb)
}
