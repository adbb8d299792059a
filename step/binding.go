package step

// Binding is the client's wish for the place of its tasks on the node's CPUs and memory:
// srun's options with these names. With the zero value the site's TaskPluginParam and the
// automatic binding decide.
type Binding struct {
	CPU          CPUBind      `json:"cpu,omitzero"`          // --cpu-bind
	Mem          MemBind      `json:"mem,omitzero"`          // --mem-bind
	Distribution Distribution `json:"distribution,omitzero"` // -m
	Hint         Hint         `json:"hint,omitempty"`        // --hint
	// ThreadsPerCore uses at most so many threads of each core; 0 is all.
	ThreadsPerCore int `json:"threads_per_core,omitempty"`
	// NTasksPerCore and NTasksPerSocket are the most tasks for each; 0 is no limit.
	NTasksPerCore   int `json:"ntasks_per_core,omitempty"`
	NTasksPerSocket int `json:"ntasks_per_socket,omitempty"`
	// Whole gives a step of a job all of the job's CPUs, and not only the number that its
	// tasks need (--whole).
	Whole bool `json:"whole,omitempty"`
}

// Verbosity says whether the binding of each task is reported on its stderr.
type Verbosity string

// CPUBindKind is the type of a --cpu-bind, in srun's words.
type CPUBindKind string

// CPUBind is a --cpu-bind.
type CPUBind struct {
	Verbosity Verbosity   `json:"verbosity,omitempty"`
	Kind      CPUBindKind `json:"kind,omitempty"`
	// List belongs to the map_ and mask_ kinds: see srunopt.CPUItems and MemItems.
	List string `json:"list,omitempty"`
}

// MemBindKind is the type of a --mem-bind, in srun's words.
type MemBindKind string

// MemBind is a --mem-bind.
type MemBind struct {
	Verbosity Verbosity   `json:"verbosity,omitempty"`
	Kind      MemBindKind `json:"kind,omitempty"`
	List      string      `json:"list,omitempty"` // of map_mem and mask_mem
	// Prefer takes the first node where it has room, and others where not.
	Prefer bool `json:"prefer,omitempty"`
	// Sort is passed to the tasks and has no other effect: the sort of free pages
	// belongs to one processor, Intel's KNL.
	Sort bool `json:"sort,omitempty"`
}

// Hint is a --hint, in srun's words; "" is none.
type Hint string

// Distribution is a -m, --distribution: how tasks are dealt to nodes, and their
// CPUs to the tasks. An empty word is "*", the default.
type Distribution struct {
	// Nodes is "block", "cyclic", "plane" or "arbitrary" (DealRanks). "plane" makes
	// the default of Sockets "block".
	Nodes string `json:"nodes,omitempty"`
	Plane int    `json:"plane,omitempty"` // tasks of a plane; 0 without one
	// Sockets and Cores are "block", "cyclic" or "fcyclic".
	Sockets string `json:"sockets,omitempty"`
	Cores   string `json:"cores,omitempty"`
	Pack    string `json:"pack,omitempty"` // "pack" or "nopack"

	// Levels counts the levels that the user wrote: the tasks' variable has as many.
	Levels int `json:"levels,omitempty"`
}
