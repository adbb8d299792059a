package affinity

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"stepd/srunopt"
	"stepd/step"
)

// kindText is the type in SLURM_CPU_BIND_TYPE: all that was dealt is a mask.
func (p *Plan) kindText() string {
	switch p.Kind {
	case srunopt.CPUBindNone, srunopt.CPUBindRank, srunopt.CPUBindRankLdom:
		return string(p.Kind)
	case srunopt.CPUBindMap, srunopt.CPUBindMapLdom, srunopt.CPUBindMaskLdom:
		return string(p.Kind) + ":"
	}
	return string(srunopt.CPUBindMask) + ":"
}

// cpuList is SLURM_CPU_BIND_LIST: the user's own list with its repetitions
// written out, else the masks of the tasks, or one where all have the same. "" is
// a type without one, or a list too long for a variable.
func (p *Plan) cpuList() string {
	bind := p.in.Binding.CPU
	switch p.Kind {
	case srunopt.CPUBindNone, srunopt.CPUBindRank, srunopt.CPUBindRankLdom:
		return ""
	case srunopt.CPUBindMap, srunopt.CPUBindMapLdom, srunopt.CPUBindMask, srunopt.CPUBindMaskLdom:
		if bind.Kind == p.Kind {
			return p.givenList(bind)
		}
		return p.CPUs[0].padded(p.in.Topology.Width) // shared
	}
	var entries []listEntry
	size := 0
	for _, s := range p.CPUs {
		text := s.padded(p.in.Topology.Width)
		if size > listMax {
			return ""
		}
		if n := len(entries); n > 0 && entries[n-1].text == text {
			entries[n-1].times++
			continue
		}
		entries = append(entries, listEntry{text, 1})
		size += len(text) + 1
	}
	return listText(entries)
}

// givenList is the user's list.
func (p *Plan) givenList(bind step.CPUBind) string {
	items, err := srunopt.CPUItems(bind)
	if err != nil {
		return "" // not reached: it was read before
	}
	masks := bind.Kind == srunopt.CPUBindMask || bind.Kind == srunopt.CPUBindMaskLdom
	return p.itemList(items, masks, "")
}

// itemList writes a list of numbers, or of masks that begin with prefix.
func (p *Plan) itemList(items []srunopt.BindItem, masks bool, prefix string) string {
	var entries []listEntry
	for _, item := range items {
		text := prefix + strings.TrimPrefix(NewCPUSet(item.Numbers...).Hex(), "0x")
		if !masks {
			text = strconv.Itoa(item.Numbers[0])
		}
		entries = append(entries, listEntry{text, min(item.Times, p.in.NTasks)})
	}
	return listText(entries)
}

// listEntry is an entry of a list, and for how many tasks it stands.
type listEntry struct {
	text  string
	times int
}

// listMax is how long a list may be: it is in two variables, of which the longer
// one has a name and two words more.
const listMax = step.VariableMax - 64

// listText writes the list with every repetition, as srun does, or with "*N",
// which srun takes as well, where that would be too long for a variable.
func listText(entries []listEntry) string {
	size := 0
	for _, e := range entries {
		size += (len(e.text) + 1) * e.times
	}
	var b strings.Builder
	for _, e := range entries {
		text, times := e.text, e.times
		if size > listMax && times > 1 {
			text, times = fmt.Sprintf("%s*%d", text, times), 1
		}
		for range times {
			if b.Len() > 0 {
				b.WriteByte(',')
			}
			b.WriteString(text)
		}
		if b.Len() > listMax {
			return ""
		}
	}
	return b.String()
}

// Env are the variables that describe the binding to the tasks, as NAME=VALUE. A list that is
// too long for a variable is left out (execve(2) would fail for it), and the type
// told alone.
func (p *Plan) Env() []string {
	word := func(v bool) string {
		if v {
			return string(srunopt.Verbose)
		}
		return string(srunopt.Quiet)
	}
	var env []string
	if !p.off { // else as without the plugin
		cpu, kind, list := word(p.cpuVerbose), p.kindText(), p.list
		if p.in.Decided {
			list = p.in.Binding.CPU.List
		}
		env = append(env, "SLURM_CPU_BIND_VERBOSE="+cpu, "SLURM_CPU_BIND_TYPE="+kind, "SLURM_CPU_BIND_LIST="+list)
		if list != "" || !strings.HasSuffix(kind, ":") {
			env = append(env, "SLURM_CPU_BIND="+cpu+","+kind+list)
		}
	}
	m := p.in.Binding.Mem
	if m == (step.MemBind{}) {
		return env
	}
	kind, list := string(m.Kind), ""
	if m.Kind == srunopt.MemBindMap || m.Kind == srunopt.MemBindMask {
		kind += ":"
		list = p.memList(m)
		if p.in.Decided {
			list = m.List
		}
	}
	all := []string{word(p.memVerbose)}
	if m.Prefer {
		all = append(all, "prefer")
		env = append(env, "SLURM_MEM_BIND_PREFER=prefer")
	}
	if m.Sort {
		env = append(env, "SLURM_MEM_BIND_SORT=sort")
	}
	if kind != "" {
		all = append(all, kind+list)
	}
	env = append(env, "SLURM_MEM_BIND_VERBOSE="+all[0], "SLURM_MEM_BIND_TYPE="+kind, "SLURM_MEM_BIND_LIST="+list)
	if list != "" || !strings.HasSuffix(kind, ":") {
		env = append(env, "SLURM_MEM_BIND="+strings.Join(all, ","))
	}
	return env
}

// stale are the variables of a binding that this plan does not set: a task must
// not find there what the step around its own has got.
func (p *Plan) stale() (names []string) {
	set := make(map[string]bool)
	for _, e := range p.Env() {
		name, _, _ := strings.Cut(e, "=")
		set[name] = true
	}
	for _, of := range []string{"SLURM_CPU_BIND", "SLURM_MEM_BIND"} {
		for _, part := range []string{"", "_VERBOSE", "_TYPE", "_LIST", "_PREFER", "_SORT"} {
			if !set[of+part] {
				names = append(names, of+part)
			}
		}
	}
	return names
}

// memList is the user's list of memory nodes, written out.
func (p *Plan) memList(m step.MemBind) string {
	items, err := srunopt.MemItems(m)
	if err != nil {
		return "" // not reached: it was read before
	}
	return p.itemList(items, m.Kind != srunopt.MemBindMap, "0x")
}

// cpuWords and memWords are srun's words for kinds of binding.
var (
	cpuWords = map[step.CPUBindKind]string{
		srunopt.CPUBindNone: "NONE", srunopt.CPUBindRank: "RANK", srunopt.CPUBindMap: "MAP ",
		srunopt.CPUBindRankLdom: "LDRANK", srunopt.CPUBindMapLdom: "LDMAP ", srunopt.CPUBindMaskLdom: "LDMASK",
	}
	memWords = map[step.MemBindKind]string{
		srunopt.MemBindUnset: "NULL", srunopt.MemBindNone: "NONE", srunopt.MemBindRank: "RANK", srunopt.MemBindLocal: "LOC",
		srunopt.MemBindMap: "MAP", srunopt.MemBindMask: "MASK",
	}
)

// CPULine is srun's line on the CPUs of the task with a local id: those that it has,
// by the kernel.
func (p *Plan) CPULine(node string, id, pid int, has CPUSet) string {
	word, set := cmp.Or(cpuWords[p.Kind], "MASK"), " set"
	if p.Kind == srunopt.CPUBindNone {
		set = ""
	}
	return fmt.Sprintf("cpu-bind=%s - %s, task %2d %2d [%d]: mask %s%s", word, node, p.rank(id), id, pid, has.Hex(), set)
}

// MemLine is srun's line on the memory nodes of the task with a local id.
func (p *Plan) MemLine(node string, id, pid int) string {
	m, sep, set := p.in.Binding.Mem, "=", " set"
	if m.Kind == srunopt.MemBindUnset || m.Kind == srunopt.MemBindNone {
		set = ""
	}
	if m.Prefer {
		sep = " PREFER "
	}
	return fmt.Sprintf("mem-bind%s%s - %s, task %2d %2d [%d]: mask %s%s", sep, memWords[m.Kind], node, p.rank(id), id, pid, p.memoryOf(id).Hex(), set)
}

// Verbose reports whether CPULine and MemLine are asked for.
func (p *Plan) Verbose() (cpu, mem bool) { return p.cpuVerbose, p.memVerbose }
