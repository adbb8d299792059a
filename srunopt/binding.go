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

// cpuLists are the types that a client may ask for, and how the list of each is read.
var cpuLists = map[step.CPUBindKind]listKind{
	CPUBindNone: listNone, CPUBindRank: listNone, CPUBindMap: listNumbers, CPUBindMask: listMasks,
	CPUBindRankLdom: listNone, CPUBindMapLdom: listNumbers, CPUBindMaskLdom: listMasks,
	CPUBindSockets: listNone, CPUBindCores: listNone, CPUBindThreads: listNone, CPUBindLdoms: listNone, CPUBindBoards: listNone,
}

// memLists are that for memory.
var memLists = map[step.MemBindKind]listKind{
	MemBindNone: listNone, MemBindRank: listNone, MemBindLocal: listNone, MemBindMap: listNumbers, MemBindMask: listMasks,
}

// ParseCPUBind reads the text of --cpu-bind: words and one type, the last of
// several, parted by commas. The help word is not one of them.
func ParseCPUBind(text string) (b step.CPUBind, err error) {
	b.Verbosity, b.Kind, b.List, err = parseBind("--cpu-bind", text, cpuLists, func(string) bool { return false })
	return b, err
}

// ParseMemBind reads the text of --mem-bind, as ParseCPUBind.
func ParseMemBind(text string) (b step.MemBind, err error) {
	b.Verbosity, b.Kind, b.List, err = parseBind("--mem-bind", text, memLists, func(word string) bool {
		switch word {
		case "p", "prefer":
			b.Prefer = true
		case "sort", "nosort":
			b.Sort = word == "sort"
		default:
			return false
		}
		return true
	})
	if err == nil {
		if err = checkPrefer(b); err != nil {
			err = fmt.Errorf("--mem-bind: %w", err)
		}
	}
	if err != nil {
		return step.MemBind{}, err
	}
	return b, nil
}

// parseBind reads the text of an option. lists are its types; flag takes a word that is none,
// and stands without a list. With an error all else is zero.
func parseBind[K ~string](option, text string, lists map[K]listKind, flag func(string) bool) (v step.Verbosity, kind K, list string, err error) {
	words, err := bindWords(option, text)
	for _, w := range words {
		if said, ok := verbosity(w.name); ok {
			v = said
			continue
		}
		told := K(w.name)
		if told == "no" {
			told = "none"
		}
		of, known := lists[told]
		switch {
		case !known && flag(w.name):
			if w.listed {
				return "", "", "", fmt.Errorf("%s: %q takes no list", option, w.name)
			}
			continue
		case !known:
			return "", "", "", fmt.Errorf("%s: %.40q is no type of binding; %s=help lists them", option, w.name, option)
		}
		if err := checkList(option, w, of); err != nil {
			return "", "", "", err
		}
		kind, list = told, w.list
	}
	return v, kind, list, err
}

func checkPrefer(b step.MemBind) error {
	if b.Prefer && (b.Kind == MemBindUnset || b.Kind == MemBindNone) {
		return fmt.Errorf("prefer needs rank, local, map_mem or mask_mem to say which node")
	}
	return nil
}

// CPUItems are the entries of the list of a --cpu-bind.
func CPUItems(b step.CPUBind) ([]BindItem, error) {
	return BindList(b.List, cpuLists[b.Kind] == listMasks)
}

// MemItems are the entries of the list of a --mem-bind.
func MemItems(b step.MemBind) ([]BindItem, error) {
	return BindList(b.List, memLists[b.Kind] == listMasks)
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
