package srunopt

import (
	"fmt"
	"stepd/step"
	"strings"
)

// The verbosities of --cpu-bind and --mem-bind.
const (
	VerbosityDefault step.Verbosity = ""        // as TaskPluginParam says
	Quiet            step.Verbosity = "quiet"   // not at all
	Verbose          step.Verbosity = "verbose" // a line for each task
)

// The types of --cpu-bind.
const (
	CPUBindAuto     step.CPUBindKind = "" // none was given
	CPUBindNone     step.CPUBindKind = "none"
	CPUBindRank     step.CPUBindKind = "rank"
	CPUBindMap      step.CPUBindKind = "map_cpu"
	CPUBindMask     step.CPUBindKind = "mask_cpu"
	CPUBindRankLdom step.CPUBindKind = "rank_ldom"
	CPUBindMapLdom  step.CPUBindKind = "map_ldom"
	CPUBindMaskLdom step.CPUBindKind = "mask_ldom"
	CPUBindSockets  step.CPUBindKind = "sockets"
	CPUBindCores    step.CPUBindKind = "cores"
	CPUBindThreads  step.CPUBindKind = "threads"
	CPUBindLdoms    step.CPUBindKind = "ldoms"
	CPUBindBoards   step.CPUBindKind = "boards"
)

// The types of --mem-bind.
const (
	MemBindUnset step.MemBindKind = "" // none was given
	MemBindNone  step.MemBindKind = "none"
	MemBindRank  step.MemBindKind = "rank"
	MemBindLocal step.MemBindKind = "local"
	MemBindMap   step.MemBindKind = "map_mem"
	MemBindMask  step.MemBindKind = "mask_mem"
)

// The hints of --hint.
const (
	HintComputeBound  step.Hint = "compute_bound"
	HintMemoryBound   step.Hint = "memory_bound"
	HintMultithread   step.Hint = "multithread"
	HintNoMultithread step.Hint = "nomultithread"
)

// ParseCPUBind reads the text of --cpu-bind: words and one type, the last of
// several, parted by commas. The help word is not one of them.
func ParseCPUBind(text string) (step.CPUBind, error) {
	var b step.CPUBind
	words, err := bindWords("--cpu-bind", text)
	if err != nil {
		return b, err
	}
	for _, w := range words {
		if v, ok := verbosity(w.name); ok {
			b.Verbosity = v
			continue
		}
		kind := step.CPUBindKind(w.name)
		switch {
		case kind == "no":
			kind = CPUBindNone
		case !knownCPU(kind):
			return step.CPUBind{}, fmt.Errorf("--cpu-bind: %.40q is no type of binding; --cpu-bind=help lists them", w.name)
		}
		if err := checkList("--cpu-bind", w, listOfCPU(kind)); err != nil {
			return step.CPUBind{}, err
		}
		b.Kind, b.List = kind, w.list
	}
	return b, nil
}

// knownCPU reports whether k is a type that a client may ask for.
func knownCPU(k step.CPUBindKind) bool {
	switch k {
	case CPUBindNone, CPUBindRank, CPUBindMap, CPUBindMask, CPUBindRankLdom, CPUBindMapLdom, CPUBindMaskLdom,
		CPUBindSockets, CPUBindCores, CPUBindThreads, CPUBindLdoms, CPUBindBoards:
		return true
	}
	return false
}

// listOfCPU says how the kind's list is read.
func listOfCPU(k step.CPUBindKind) listKind {
	switch k {
	case CPUBindMap, CPUBindMapLdom:
		return listNumbers
	case CPUBindMask, CPUBindMaskLdom:
		return listMasks
	}
	return listNone
}

// CPUItems are the entries of the list of a --cpu-bind.
func CPUItems(b step.CPUBind) ([]BindItem, error) {
	return BindList(b.List, listOfCPU(b.Kind) == listMasks)
}

// ParseMemBind reads the text of --mem-bind, as ParseCPUBind.
func ParseMemBind(text string) (step.MemBind, error) {
	var b step.MemBind
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
			kind := step.MemBindKind(w.name)
			if kind == "no" {
				kind = MemBindNone
			}
			if !knownMem(kind) {
				return step.MemBind{}, fmt.Errorf("--mem-bind: %.40q is no type of binding; --mem-bind=help lists them", w.name)
			}
			if err := checkList("--mem-bind", w, listOfMem(kind)); err != nil {
				return step.MemBind{}, err
			}
			b.Kind, b.List = kind, w.list
			continue
		}
		if w.listed {
			return step.MemBind{}, fmt.Errorf("--mem-bind: %q takes no list", w.name)
		}
	}
	if err := checkPrefer(b); err != nil {
		return step.MemBind{}, fmt.Errorf("--mem-bind: %w", err)
	}
	return b, nil
}

func checkPrefer(b step.MemBind) error {
	if b.Prefer && (b.Kind == MemBindUnset || b.Kind == MemBindNone) {
		return fmt.Errorf("prefer needs rank, local, map_mem or mask_mem to say which node")
	}
	return nil
}

func knownMem(k step.MemBindKind) bool {
	switch k {
	case MemBindNone, MemBindRank, MemBindLocal, MemBindMap, MemBindMask:
		return true
	}
	return false
}

func listOfMem(k step.MemBindKind) listKind {
	switch k {
	case MemBindMap:
		return listNumbers
	case MemBindMask:
		return listMasks
	}
	return listNone
}

// MemItems are the entries of the list of a --mem-bind.
func MemItems(b step.MemBind) ([]BindItem, error) {
	return BindList(b.List, listOfMem(b.Kind) == listMasks)
}

// ParseHint reads the text of --hint.
func ParseHint(text string) (step.Hint, error) {
	h := step.Hint(strings.ToLower(text))
	if !knownHint(h) {
		return "", fmt.Errorf("--hint: %.40q is no hint; --hint=help lists them", text)
	}
	return h, nil
}

func knownHint(h step.Hint) bool {
	return h == HintComputeBound || h == HintMemoryBound || h == HintMultithread || h == HintNoMultithread
}

func verbosity(word string) (step.Verbosity, bool) {
	switch word {
	case "q", "quiet":
		return Quiet, true
	case "v", "verbose":
		return Verbose, true
	}
	return "", false
}
