package affinity

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"

	"stepd/step"
)

// A PU is a processing unit: a hardware thread, which the kernel calls a CPU. Its
// places count from 0 in the order of the lowest CPU number that each has, which
// is hwloc's logical order.
type PU struct {
	CPU    int
	Core   int // of the whole machine
	Socket int // package
	Board  int
	// Ldom is the index of its NUMA node in Topology.Nodes.
	Ldom int
}

// Topology is the part of a machine that a step has.
type Topology struct {
	// PUs are ordered by board, socket, core and thread: Slurm's abstract order.
	PUs []PU
	// Nodes are the numbers of the memory nodes that have some of the PUs. Where the
	// kernel knows no nodes it is nil, and each socket is an ldom (srun(1)).
	Nodes []int
	// Width is the highest CPU number that this machine can have, plus 1.
	Width int
	// Offline are CPUs that were asked for and cannot run anything now; Missing are
	// beyond what the machine can ever have.
	Offline, Missing CPUSet
	// Memory are the nodes that have memory, NodesOnline all that there are.
	Memory, NodesOnline CPUSet
	// Whole says that the step has every CPU that is online.
	Whole bool
	// Threads is the most threads that one of the cores has, with those that are
	// not the step's.
	Threads int
	// Guessed says what the kernel did not tell, "" if it told all.
	Guessed string
}

// fileMax bounds what is read of one file of sysfs: a list of all CPUs that a
// kernel can have, each by itself, is shorter.
const fileMax = 1 << 19

// ReadTopology reads the CPUs from sys, a view of /sys. It reads one file for a
// core and few more, as every step pays for it. What is missing, as in some containers, is
// guessed: the CPUs are then cores of one socket.
func ReadTopology(sys fs.FS, cpus []int) (*Topology, error) {
	r := reader{sys: sys, t: &Topology{}}
	online, err := r.masks(cpus)
	if err != nil {
		return nil, err
	}
	places, err := r.places(online)
	if err != nil {
		return nil, err
	}
	if err := r.memory(places); err != nil {
		return nil, err
	}
	slices.SortFunc(places, func(a, b PU) int {
		return cmp.Or(cmp.Compare(a.Socket, b.Socket), cmp.Compare(a.Core, b.Core), cmp.Compare(a.CPU, b.CPU))
	})
	r.t.PUs = places
	r.number()
	r.t.Guessed = strings.Join(r.missing, ", ")
	return r.t, nil
}

// CPUs is the set of the PUs.
func (t *Topology) CPUs() CPUSet {
	var s CPUSet
	for _, p := range t.PUs {
		s.add(p.CPU)
	}
	return s
}

// reader reads one topology.
type reader struct {
	sys     fs.FS
	t       *Topology
	missing []string // what was not told
}

// masks sorts cpus into online ones and others.
func (r *reader) masks(cpus []int) ([]int, error) {
	online, hasOnline, err := r.list("devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	possible, hasPossible, err := r.list("devices/system/cpu/possible")
	if err != nil {
		return nil, err
	}
	if !hasOnline {
		// The caller may run on what it has been given, as far as can be told.
		r.missing = append(r.missing, "which CPUs are online")
		online = NewCPUSet(cpus...)
	}
	if !hasPossible {
		possible = online
	}
	if all := possible.Numbers(); len(all) > 0 {
		r.t.Width = all[len(all)-1] + 1
	}
	r.t.Whole = len(online.without(NewCPUSet(cpus...)).Numbers()) == 0
	var have []int
	for _, c := range cpus {
		switch {
		case online.Has(c):
			have = append(have, c)
		case possible.Has(c):
			r.t.Offline.add(c)
		default:
			r.t.Missing.add(c)
		}
	}
	return have, nil
}

// places finds each CPU's core and socket, by the lowest CPU number in it.
func (r *reader) places(cpus []int) ([]PU, error) {
	cores, guessed, err := r.groups(cpus, "core_cpus_list", "thread_siblings_list")
	if err != nil {
		return nil, err
	}
	r.t.Threads = largest(cores)
	if guessed {
		r.t.Threads = 1
		r.missing = append(r.missing, "cores")
		for _, c := range cpus {
			cores[c] = c
		}
	}
	sockets, guessed, err := r.groups(cpus, "package_cpus_list", "core_siblings_list")
	if err != nil {
		return nil, err
	}
	if guessed {
		r.missing = append(r.missing, "sockets")
		for _, c := range cpus {
			sockets[c] = 0
		}
	}
	out := make([]PU, 0, len(cpus))
	for _, c := range cpus {
		out = append(out, PU{CPU: c, Core: cores[c], Socket: sockets[c]})
	}
	return out, nil
}

// groups maps each CPU to the lowest number in the list of the first of the named
// files that it has. A list is read once for all that it names. guessed says that
// a CPU has none of the files.
func (r *reader) groups(cpus []int, names ...string) (group map[int]int, guessed bool, err error) {
	group = make(map[int]int, len(cpus))
	for _, c := range cpus {
		if _, ok := group[c]; ok {
			continue
		}
		found := false
		for _, name := range names {
			set, ok, err := r.list(fmt.Sprintf("devices/system/cpu/cpu%d/topology/%s", c, name))
			if err != nil {
				return nil, false, err
			}
			// A list without the CPU itself has been seen where a hypervisor makes it up.
			if !ok || !set.Has(c) {
				continue
			}
			members := set.Numbers()
			for _, m := range members {
				group[m] = members[0]
			}
			found = true
			break
		}
		if !found {
			return group, true, nil
		}
	}
	return group, false, nil
}

// largest is the size of the largest group.
func largest(group map[int]int) int {
	sizes := make(map[int]int)
	most := 0
	for _, g := range group {
		sizes[g]++
		most = max(most, sizes[g])
	}
	return most
}

// memory finds each PU's memory node.
func (r *reader) memory(pus []PU) error {
	online, ok, err := r.list("devices/system/node/online")
	if err != nil {
		return err
	}
	if !ok {
		r.missing = append(r.missing, "memory nodes")
		return nil
	}
	r.t.NodesOnline = online
	if r.t.Memory, ok, err = r.list("devices/system/node/has_memory"); err != nil {
		return err
	} else if !ok {
		r.t.Memory = online
	}
	node := make(map[int]int)
	for _, n := range online.Numbers() {
		cpus, ok, err := r.list(fmt.Sprintf("devices/system/node/node%d/cpulist", n))
		if err != nil {
			return err
		}
		for _, c := range cpus.Numbers() {
			if ok {
				node[c] = n
			}
		}
	}
	for i := range pus {
		n, ok := node[pus[i].CPU]
		if !ok {
			r.missing = append(r.missing, "memory nodes")
			r.t.Nodes = nil
			return nil
		}
		pus[i].Ldom = n
		if !slices.Contains(r.t.Nodes, n) {
			r.t.Nodes = append(r.t.Nodes, n)
		}
	}
	slices.Sort(r.t.Nodes)
	for i := range pus {
		pus[i].Ldom = slices.Index(r.t.Nodes, pus[i].Ldom)
	}
	return nil
}

// number turns lowest CPU numbers into indexes. The kernel knows no boards:
// the node is one board.
func (r *reader) number() {
	sockets, cores := make(map[int]int), make(map[int]int)
	index := func(m map[int]int, at *int) {
		i, ok := m[*at]
		if !ok {
			i = len(m)
			m[*at] = i
		}
		*at = i
	}
	for i := range r.t.PUs {
		p := &r.t.PUs[i]
		index(sockets, &p.Socket)
		index(cores, &p.Core)
		if r.t.Nodes == nil {
			p.Ldom = p.Socket
		}
	}
}

// list reads a file in the kernel's list format; ok is false where it is
// missing, or is empty.
func (r *reader) list(name string) (set CPUSet, ok bool, err error) {
	f, err := r.sys.Open(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot read the machine's topology: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileMax))
	if err != nil {
		return nil, false, fmt.Errorf("cannot read the machine's topology: %q: %w", path.Join("/sys", name), err)
	}
	numbers, err := step.ParseCPUList(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, false, fmt.Errorf("cannot read the machine's topology: %s: %w", strconv.Quote(path.Join("/sys", name)), err)
	}
	return NewCPUSet(numbers...), len(numbers) > 0, nil
}

// CPUSet is a set of CPU numbers, or of memory nodes, as the kernel's bit mask:
// number n is bit n%64 of word n/64. The zero value is empty. It is not changed
// once others have it.
type CPUSet []uint64

// NewCPUSet makes the set of the numbers.
func NewCPUSet(numbers ...int) CPUSet {
	var s CPUSet
	for _, n := range numbers {
		s.add(n)
	}
	return s
}

func (s *CPUSet) add(n int) {
	for len(*s) <= n/64 {
		*s = append(*s, 0)
	}
	(*s)[n/64] |= 1 << (n % 64)
}

// Has reports whether n is in the set.
func (s CPUSet) Has(n int) bool { return n >= 0 && n/64 < len(s) && s[n/64]&(1<<(n%64)) != 0 }

// Len counts the numbers in it.
func (s CPUSet) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Numbers are the numbers in the set, ascending.
func (s CPUSet) Numbers() []int {
	out := make([]int, 0, s.Len())
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			out = append(out, 64*i+bits.TrailingZeros64(w))
		}
	}
	return out
}

// String is the kernel's list format: "0-2,5".
func (s CPUSet) String() string { return step.FormatCPUList(s.Numbers()) }

// Hex is the mask as srun reports it: "0x10001".
func (s CPUSet) Hex() string {
	var b strings.Builder
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case b.Len() > 0:
			fmt.Fprintf(&b, "%016x", s[i])
		case s[i] != 0 || i == 0:
			fmt.Fprintf(&b, "0x%x", s[i])
		}
	}
	if b.Len() == 0 {
		return "0x0"
	}
	return b.String()
}

// padded is the mask as SLURM_CPU_BIND_LIST has it: in capitals, and as wide as
// the machine is, of width CPUs, in whole words of 32.
func (s CPUSet) padded(width int) string {
	digits := strings.ToUpper(s.Hex()[2:])
	want := (width + 31) / 32 * 8
	return "0x" + strings.Repeat("0", max(want-len(digits), 0)) + digits
}

func (s CPUSet) and(t CPUSet) CPUSet {
	out := make(CPUSet, min(len(s), len(t)))
	for i := range out {
		out[i] = s[i] & t[i]
	}
	return out
}

func (s CPUSet) or(t CPUSet) CPUSet {
	if len(s) < len(t) {
		s, t = t, s
	}
	out := append(CPUSet(nil), s...)
	for i := range t {
		out[i] |= t[i]
	}
	return out
}

// without is what of s is not in t.
func (s CPUSet) without(t CPUSet) CPUSet {
	out := append(CPUSet(nil), s...)
	for i := range min(len(s), len(t)) {
		out[i] &^= t[i]
	}
	return out
}
