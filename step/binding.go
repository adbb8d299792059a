package step

import (
	"fmt"
	"strings"
)

// Binding is what a client asks of the place of its tasks on the node's CPUs and
// memory: srun's options with these names. The zero value asks for nothing: then
// the site's TaskPluginParam and the automatic binding decide.
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
	// Whole gives a step of a job all of the job's CPUs, and not just as many as its
	// tasks need (--whole).
	Whole bool `json:"whole,omitempty"`
}

// Verbosity says whether the binding of each task is reported on its stderr.
type Verbosity string

const (
	VerbosityDefault Verbosity = ""        // as TaskPluginParam says
	Quiet            Verbosity = "quiet"   // not at all
	Verbose          Verbosity = "verbose" // a line for each task
)

// CPUBindKind is the type of a --cpu-bind, in srun's words.
type CPUBindKind string

const (
	CPUBindAuto     CPUBindKind = "" // none was given
	CPUBindNone     CPUBindKind = "none"
	CPUBindRank     CPUBindKind = "rank"
	CPUBindMap      CPUBindKind = "map_cpu"
	CPUBindMask     CPUBindKind = "mask_cpu"
	CPUBindRankLdom CPUBindKind = "rank_ldom"
	CPUBindMapLdom  CPUBindKind = "map_ldom"
	CPUBindMaskLdom CPUBindKind = "mask_ldom"
	CPUBindSockets  CPUBindKind = "sockets"
	CPUBindCores    CPUBindKind = "cores"
	CPUBindThreads  CPUBindKind = "threads"
	CPUBindLdoms    CPUBindKind = "ldoms"
	CPUBindBoards   CPUBindKind = "boards"
)

// CPUBind is a --cpu-bind.
type CPUBind struct {
	Verbosity Verbosity   `json:"verbosity,omitempty"`
	Kind      CPUBindKind `json:"kind,omitempty"`
	// List belongs to the map_ and mask_ kinds: see BindList.
	List string `json:"list,omitempty"`
}

// MemBindKind is the type of a --mem-bind, in srun's words.
type MemBindKind string

const (
	MemBindUnset MemBindKind = "" // none was given
	MemBindNone  MemBindKind = "none"
	MemBindRank  MemBindKind = "rank"
	MemBindLocal MemBindKind = "local"
	MemBindMap   MemBindKind = "map_mem"
	MemBindMask  MemBindKind = "mask_mem"
)

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

const (
	HintComputeBound  Hint = "compute_bound"
	HintMemoryBound   Hint = "memory_bound"
	HintMultithread   Hint = "multithread"
	HintNoMultithread Hint = "nomultithread"
)

// ParseCPUBind reads the text of --cpu-bind: words and one type, the last of
// several, parted by commas. The help word is not one of them.
func ParseCPUBind(text string) (CPUBind, error) {
	var b CPUBind
	words, err := bindWords("--cpu-bind", text)
	if err != nil {
		return b, err
	}
	for _, w := range words {
		if v, ok := verbosity(w.name); ok {
			b.Verbosity = v
			continue
		}
		kind := CPUBindKind(w.name)
		switch {
		case kind == "no":
			kind = CPUBindNone
		case !kind.known():
			return CPUBind{}, fmt.Errorf("--cpu-bind: %.40q is no type of binding; --cpu-bind=help lists them", w.name)
		}
		if err := checkList("--cpu-bind", w, kind.listBits()); err != nil {
			return CPUBind{}, err
		}
		b.Kind, b.List = kind, w.list
	}
	return b, nil
}

// known reports whether k is a type that a client may ask for.
func (k CPUBindKind) known() bool {
	switch k {
	case CPUBindNone, CPUBindRank, CPUBindMap, CPUBindMask, CPUBindRankLdom, CPUBindMapLdom, CPUBindMaskLdom,
		CPUBindSockets, CPUBindCores, CPUBindThreads, CPUBindLdoms, CPUBindBoards:
		return true
	}
	return false
}

// listBits says how the kind's list is read.
func (k CPUBindKind) listBits() listKind {
	switch k {
	case CPUBindMap, CPUBindMapLdom:
		return listNumbers
	case CPUBindMask, CPUBindMaskLdom:
		return listMasks
	}
	return listNone
}

// Items are the list's entries.
func (b CPUBind) Items() ([]BindItem, error) { return BindList(b.List, b.Kind.listBits() == listMasks) }

// ParseMemBind reads the text of --mem-bind, as ParseCPUBind.
func ParseMemBind(text string) (MemBind, error) {
	var b MemBind
	words, err := bindWords("--mem-bind", text)
	if err != nil {
		return b, err
	}
	for _, w := range words {
		if v, ok := verbosity(w.name); ok {
			b.Verbosity = v
			continue
		}
		switch w.name {
		case "p", "prefer":
			b.Prefer = true
		case "sort":
			b.Sort = true
		case "nosort":
			b.Sort = false
		default:
			kind := MemBindKind(w.name)
			if kind == "no" {
				kind = MemBindNone
			}
			if !kind.known() {
				return MemBind{}, fmt.Errorf("--mem-bind: %.40q is no type of binding; --mem-bind=help lists them", w.name)
			}
			if err := checkList("--mem-bind", w, kind.listBits()); err != nil {
				return MemBind{}, err
			}
			b.Kind, b.List = kind, w.list
			continue
		}
		if w.listed {
			return MemBind{}, fmt.Errorf("--mem-bind: %q takes no list", w.name)
		}
	}
	if err := b.checkPrefer(); err != nil {
		return MemBind{}, fmt.Errorf("--mem-bind: %w", err)
	}
	return b, nil
}

func (b MemBind) checkPrefer() error {
	if b.Prefer && (b.Kind == MemBindUnset || b.Kind == MemBindNone) {
		return fmt.Errorf("prefer needs rank, local, map_mem or mask_mem to say which node")
	}
	return nil
}

func (k MemBindKind) known() bool {
	switch k {
	case MemBindNone, MemBindRank, MemBindLocal, MemBindMap, MemBindMask:
		return true
	}
	return false
}

func (k MemBindKind) listBits() listKind {
	switch k {
	case MemBindMap:
		return listNumbers
	case MemBindMask:
		return listMasks
	}
	return listNone
}

// Items are the list's entries.
func (b MemBind) Items() ([]BindItem, error) { return BindList(b.List, b.Kind.listBits() == listMasks) }

// ParseHint reads the text of --hint.
func ParseHint(text string) (Hint, error) {
	h := Hint(strings.ToLower(text))
	if !h.known() {
		return "", fmt.Errorf("--hint: %.40q is no hint; --hint=help lists them", text)
	}
	return h, nil
}

func (h Hint) known() bool {
	return h == HintComputeBound || h == HintMemoryBound || h == HintMultithread || h == HintNoMultithread
}

func verbosity(word string) (Verbosity, bool) {
	switch word {
	case "q", "quiet":
		return Quiet, true
	case "v", "verbose":
		return Verbose, true
	}
	return "", false
}

// checkBinding checks what a client may have written into the document by hand.
func (r *Request) checkBinding() error {
	b := &r.Binding
	for _, v := range []struct {
		field string
		v     Verbosity
	}{{"binding.cpu", b.CPU.Verbosity}, {"binding.mem", b.Mem.Verbosity}} {
		if v.v != VerbosityDefault && v.v != Quiet && v.v != Verbose {
			return bad(v.field, "unknown verbosity %.40q", string(v.v))
		}
	}
	if b.CPU.Kind != CPUBindAuto && !b.CPU.Kind.known() {
		return bad("binding.cpu", "unknown type %.40q", string(b.CPU.Kind))
	}
	if err := checkList("", bindWord{string(b.CPU.Kind), b.CPU.List, b.CPU.List != ""}, b.CPU.Kind.listBits()); err != nil {
		return bad("binding.cpu", "%v", err)
	}
	if b.Mem.Kind != MemBindUnset && !b.Mem.Kind.known() {
		return bad("binding.mem", "unknown type %.40q", string(b.Mem.Kind))
	}
	if err := checkList("", bindWord{string(b.Mem.Kind), b.Mem.List, b.Mem.List != ""}, b.Mem.Kind.listBits()); err != nil {
		return bad("binding.mem", "%v", err)
	}
	if err := b.Mem.checkPrefer(); err != nil {
		return bad("binding.mem", "%v", err)
	}
	if err := b.Distribution.check(); err != nil {
		return bad("binding.distribution", "%v", err)
	}
	if b.Hint != "" && !b.Hint.known() {
		return bad("binding.hint", "unknown hint %.40q", string(b.Hint))
	}
	for _, n := range []struct {
		field string
		n     int
	}{{"threads_per_core", b.ThreadsPerCore}, {"ntasks_per_core", b.NTasksPerCore}, {"ntasks_per_socket", b.NTasksPerSocket}} {
		if n.n < 0 || n.n > TasksMax {
			return bad("binding."+n.field, "%d is not from 1 to %d", n.n, TasksMax)
		}
	}
	return nil
}
