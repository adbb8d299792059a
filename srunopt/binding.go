package srunopt

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"stepd/step"
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

// cpuList says how the list of a type is read, and whether a client may ask for the type.
func cpuList(kind step.CPUBindKind) (of listKind, known bool) {
	switch kind {
	case CPUBindMap, CPUBindMapLdom:
		return listNumbers, true
	case CPUBindMask, CPUBindMaskLdom:
		return listMasks, true
	case CPUBindNone, CPUBindRank, CPUBindRankLdom, CPUBindSockets, CPUBindCores, CPUBindThreads, CPUBindLdoms, CPUBindBoards:
		return listNone, true
	}
	return listNone, false
}

// memList is that for memory.
func memList(kind step.MemBindKind) (of listKind, known bool) {
	switch kind {
	case MemBindMap:
		return listNumbers, true
	case MemBindMask:
		return listMasks, true
	case MemBindNone, MemBindRank, MemBindLocal:
		return listNone, true
	}
	return listNone, false
}

// ParseCPUBind reads the text of --cpu-bind: words and one type, the last of
// several, parted by commas. The help word is not one of them.
func ParseCPUBind(text string) (b step.CPUBind, err error) {
	b.Verbosity, b.Kind, b.List, err = parseBind("--cpu-bind", text, cpuList, func(string) bool { return false })
	return b, err
}

// ParseMemBind reads the text of --mem-bind, as ParseCPUBind.
func ParseMemBind(text string) (b step.MemBind, err error) {
	b.Verbosity, b.Kind, b.List, err = parseBind("--mem-bind", text, memList, func(word string) bool {
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

// parseBind reads the text of an option. lists knows its types; flag takes a word that is none,
// and stands without a list. With an error all else is zero.
func parseBind[K ~string](option, text string, lists func(K) (listKind, bool), flag func(string) bool) (v step.Verbosity, kind K, list string, err error) {
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
		of, known := lists(told)
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
	of, _ := cpuList(b.Kind)
	return bindList(b.List, of == listMasks)
}

// MemItems are the entries of the list of a --mem-bind.
func MemItems(b step.MemBind) ([]BindItem, error) {
	of, _ := memList(b.Kind)
	return bindList(b.List, of == listMasks)
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

// Limits on the list of a map or mask, which a user writes.
const (
	// bindListMax bounds its text, in bytes: the tasks are told it in a variable.
	bindListMax = step.VariableMax
	// bindItemsMax bounds its entries: no step has more tasks.
	bindItemsMax = step.TasksMax
	// numberMax bounds the number of a CPU and of a memory node.
	numberMax = 1 << 16
	// maskDigits is the longest mask: one with numberMax bits.
	maskDigits = numberMax / 4
)

// BindItem is an entry of a map or mask list, for Times tasks one after the other.
type BindItem struct {
	// Numbers are the CPUs or memory nodes, ascending: one of a map; of a mask
	// the bits that are set, which may be none.
	Numbers []int
	Times   int // at least 1
}

// bindList reads the list of a map or mask: "0,4,0x8*2". Numbers are decimal, or
// hexadecimal after 0x; masks always are hexadecimal. "*N" repeats an entry for N
// tasks. Empty entries are passed over, as by srun; a list of nothing else is an error.
func bindList(text string, masks bool) ([]BindItem, error) {
	if len(text) > bindListMax {
		return nil, fmt.Errorf("the list has %d bytes: the limit is %d", len(text), bindListMax)
	}
	var items []BindItem
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		if len(items) == bindItemsMax {
			return nil, fmt.Errorf("the list has more than %d entries", bindItemsMax)
		}
		value, times, repeated := strings.Cut(part, "*")
		item := BindItem{Times: 1}
		if repeated {
			n, err := strconv.ParseUint(times, 10, 32)
			if err != nil || n < 1 || n > step.TasksMax {
				return nil, fmt.Errorf("%.40q is repeated %.20q times: write a number from 1 to %d", value, times, step.TasksMax)
			}
			item.Times = int(n)
		}
		var err error
		if masks {
			item.Numbers, err = parseMask(value)
		} else {
			item.Numbers, err = parseNumber(value)
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	if len(items) == 0 {
		return nil, errors.New("the list is empty")
	}
	return items, nil
}

func parseNumber(s string) ([]int, error) {
	digits, base := s, 10
	if hex, ok := cutHex(s); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 32)
	if err != nil || n >= numberMax {
		return nil, fmt.Errorf("%.40q is not a number below %d", s, numberMax)
	}
	return []int{int(n)}, nil
}

// parseMask reads a hexadecimal mask of any width.
func parseMask(s string) ([]int, error) {
	digits, _ := cutHex(s)
	if digits == "" {
		return nil, fmt.Errorf("%.40q is not a hexadecimal mask", s)
	}
	digits = strings.TrimLeft(digits, "0")
	if len(digits) > maskDigits {
		return nil, fmt.Errorf("the mask %.40q... has %d digits: the limit is %d", s, len(digits), maskDigits)
	}
	var bits []int
	for i := len(digits) - 1; i >= 0; i-- {
		v, err := strconv.ParseUint(digits[i:i+1], 16, 8)
		if err != nil {
			return nil, fmt.Errorf("%.40q is not a hexadecimal mask", s)
		}
		for bit := range 4 {
			if v&(1<<bit) != 0 {
				bits = append(bits, 4*(len(digits)-1-i)+bit)
			}
		}
	}
	return bits, nil
}

// cutHex takes 0x or 0X off.
func cutHex(s string) (string, bool) {
	if len(s) > 1 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		return s[2:], true
	}
	return s, false
}

// listKind says what stands behind a type's colon.
type listKind int

const (
	listNone listKind = iota
	listNumbers
	listMasks
)

// bindWord is one word of --cpu-bind or --mem-bind, with its list.
type bindWord struct {
	name   string
	list   string
	listed bool // there was a colon
}

// bindWords parts the option's text at its commas, and gives a list back those
// that are its own: what follows it belongs to it as long as it begins like a
// number, or could be a mask.
func bindWords(option, text string) ([]bindWord, error) {
	if len(text) > bindListMax {
		return nil, fmt.Errorf("%s: %d bytes: the limit is %d", option, len(text), bindListMax)
	}
	var words []bindWord
	for part := range strings.SplitSeq(text, ",") {
		last := len(words) - 1
		name, list, listed := strings.Cut(part, ":")
		switch {
		case part == "":
		case last >= 0 && words[last].listed && !listed && isItem(part):
			words[last].list += "," + part
		default:
			words = append(words, bindWord{strings.ToLower(name), list, listed})
		}
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("%s: it is empty; %s=help lists what there is", option, option)
	}
	return words, nil
}

// isItem reports whether a word is an entry of a list: no name of a type is.
func isItem(s string) bool {
	if s[0] >= '0' && s[0] <= '9' || s[0] == '-' || s[0] == '*' {
		return true
	}
	return strings.Trim(s, "0123456789abcdefABCDEF*") == ""
}

// checkList checks that w has a list where it must and nowhere else,
// and can be read. option, if any, is named in the error.
func checkList(option string, w bindWord, kind listKind) error {
	if option != "" {
		option += ": "
	}
	switch {
	case kind == listNone && w.listed:
		return fmt.Errorf("%s%.40q takes no list", option, w.name)
	case kind == listNone:
		return nil
	}
	if _, err := bindList(w.list, kind == listMasks); err != nil {
		return fmt.Errorf("%s%s: %w (write %s:N,N,... or %s:N*TIMES)", option, w.name, err, w.name, w.name)
	}
	return nil
}

// The words of a distribution.
const (
	DistBlock     = "block"
	DistCyclic    = "cyclic"
	DistFCyclic   = "fcyclic"
	DistPlane     = "plane"
	DistArbitrary = "arbitrary"
	DistPack      = "pack"
	DistNoPack    = "nopack"
)

const distributionUsage = "write {block|cyclic|plane=N|arbitrary|*}[:{block|cyclic|fcyclic|*}[:{block|cyclic|fcyclic|*}]][,{Pack|NoPack}]"

// ParseDistribution reads the text of -m. planeSize is what SLURM_DIST_PLANESIZE
// says, for a "plane" without a size of its own.
func ParseDistribution(text, planeSize string) (step.Distribution, error) {
	var d step.Distribution
	methods, pack, packed := strings.Cut(strings.ToLower(text), ",")
	if !packed && (methods == DistPack || methods == DistNoPack) {
		methods, pack = "*", methods // alone, as srun takes it
	} else if packed && pack != DistPack && pack != DistNoPack {
		return d, fmt.Errorf("--distribution=%.80s: %s", text, distributionUsage)
	}
	d.Pack = pack
	if size, ok := strings.CutPrefix(methods, DistPlane); ok {
		if size == "" {
			size = "=" + planeSize
		}
		n, err := strconv.ParseUint(strings.TrimPrefix(size, "="), 10, 32)
		if size[0] != '=' || err != nil || n < 1 || n > step.TasksMax {
			return step.Distribution{}, fmt.Errorf("--distribution=%.80s: the size of a plane is a number from 1 to %d, and nothing comes behind it", text, step.TasksMax)
		}
		d.Nodes, d.Plane, d.Levels = DistPlane, int(n), 1
		return d, nil
	}
	parts := strings.Split(methods, ":")
	if len(parts) > 3 {
		return step.Distribution{}, fmt.Errorf("--distribution=%.80s: %s", text, distributionUsage)
	}
	for i, word := range []*string{&d.Nodes, &d.Sockets, &d.Cores}[:len(parts)] {
		if parts[i] != "*" {
			*word = parts[i]
		}
		if parts[i] == "" {
			return step.Distribution{}, fmt.Errorf("--distribution=%.80s: %s", text, distributionUsage)
		}
	}
	d.Levels = len(parts)
	if err := checkDistribution(d); err != nil {
		return step.Distribution{}, fmt.Errorf("--distribution=%.80s: %w", text, err)
	}
	return d, nil
}

func checkDistribution(d step.Distribution) error {
	switch {
	case d.Nodes != "" && d.Nodes != DistBlock && d.Nodes != DistCyclic && d.Nodes != DistPlane && d.Nodes != DistArbitrary,
		!cpuMethod(d.Sockets), !cpuMethod(d.Cores),
		d.Pack != "" && d.Pack != DistPack && d.Pack != DistNoPack:
		return fmt.Errorf("there is no such method: %s", distributionUsage)
	case (d.Nodes == DistPlane) != (d.Plane != 0) || d.Plane < 0 || d.Plane > step.TasksMax:
		return fmt.Errorf("a plane has from 1 to %d tasks, and nothing else has a size", step.TasksMax)
	case d.Nodes == DistPlane && (d.Sockets != "" || d.Cores != ""):
		return fmt.Errorf("plane goes without methods for sockets and cores")
	case d.Levels < 0 || d.Levels > 3:
		return fmt.Errorf("there are three levels, not %d", d.Levels)
	}
	return nil
}

func cpuMethod(word string) bool {
	return word == "" || word == DistBlock || word == DistCyclic || word == DistFCyclic
}

// DistributionText is the value of SLURM_DISTRIBUTION, as measured: every level that
// was written, with the word for "*". The default for one task a node is cyclic.
func DistributionText(d step.Distribution, ntasks, nnodes int) string {
	nodes := d.Nodes
	if nodes == "" {
		nodes = DistBlock
		if ntasks <= nnodes && d.Levels == 0 {
			nodes = DistCyclic
		}
	}
	sockets := cmp.Or(d.Sockets, DistCyclic)
	words := []string{nodes, sockets, cmp.Or(d.Cores, sockets)} // inherited
	text := strings.Join(words[:max(d.Levels, 1)], ":")
	if d.Pack != "" {
		text += "," + d.Pack
	}
	return text
}
