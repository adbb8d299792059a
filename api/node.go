package api

import (
	"time"

	"stepd/step"
)

// Node is the node document of `node status --json` (docs/json.md): noded writes it, its
// clients read it. Fields may be added, none goes. The zero value is no node.
type Node struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Reason      string `json:"reason"`
	CPUs        int    `json:"cpus"`
	FreeCPUs    int    `json:"free_cpus"`
	MemoryBytes uint64 `json:"memory_bytes"`
	// UsedMB is the memory that jobs were given, in MB.
	UsedMB    uint64         `json:"memory_used_mb"`
	Gres      []NodeGres     `json:"gres"`
	Proctrack string         `json:"proctrack"`
	Container string         `json:"container"`
	Fallbacks []NodeFallback `json:"fallbacks"`
	Jobs      []NodeJob      `json:"jobs"`
	// Unkillable are steps of which processes are left that SIGKILL does not end.
	Unkillable []NodeUnkillable `json:"unkillable"`
	// Daemon is noded itself.
	Daemon  NodeDaemon   `json:"daemon"`
	Plugins []NodePlugin `json:"plugins"`
}

// NodeGres is one kind of generic resource in the node document.
type NodeGres struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Count uint64 `json:"count"`
	Used  uint64 `json:"used"`
	// UsedIndex are the numbers of the devices that jobs have: "0-1,3".
	UsedIndex string `json:"used_index"`
}

// NodeJob is one running job in the node document.
type NodeJob struct {
	ID     uint32         `json:"job_id"`
	UID    uint32         `json:"uid"`
	User   string         `json:"user"`
	Name   string         `json:"name"`
	Origin step.JobOrigin `json:"origin"`
	CPUs   string         `json:"cpus"`
	// Suspended is since when, null where it is not.
	Suspended *time.Time `json:"suspended"`
	// MemoryMB is null where the job was given no share of the memory.
	MemoryMB *uint64  `json:"memory_mb"`
	Gres     string   `json:"gres"`
	Steps    []uint32 `json:"steps"`
}

// NodeUnkillable is a step with processes that SIGKILL does not end.
type NodeUnkillable struct {
	step.ID
	Since     time.Time       `json:"since"`
	Text      string          `json:"text"`
	Processes []step.Survivor `json:"processes"`
	Total     int             `json:"total"`
}

// NodeDaemon is what noded itself uses: a figure that grows here with the number of steps
// that have run is a leak.
type NodeDaemon struct {
	PID        int `json:"pid"`
	Goroutines int `json:"goroutines"`
	// OpenFiles is null where /proc does not say.
	OpenFiles *int `json:"open_files"`
	// HeapBytes is the memory that Go's objects take.
	HeapBytes uint64 `json:"heap_bytes"`
}

// NodeFallback is a thing that the node does in a lesser way than it was asked to, and why.
type NodeFallback struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// NodePlugin is one line of the plugin stack in the node document, or a finding
// about a line or file that is no plugin: then Path is the file's, and
// State "error" or "warning".
type NodePlugin struct {
	Path     string `json:"path"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Required bool   `json:"required"`
	// State of a plugin is "found", "missing", "incompatible" or "error".
	State string `json:"state"`
	// Problem is everything that is wrong with it, "" where nothing is.
	Problem string `json:"problem"`
	// Release is the release of Slurm for which it was built, "" where it does not say. Hooks are
	// the functions that it exports.
	Release string   `json:"release"`
	Hooks   []string `json:"hooks"`
}
