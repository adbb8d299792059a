package step

import (
	"fmt"
	"strconv"
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
