package gres

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"stepd/slurm/wire"
)

// bindKind is a way to bind tasks to devices (srun(1), --gpu-bind).
type bindKind int

const (
	bindClosest bindKind = iota
	bindSingle           // so many tasks to a device
	bindPerTask          // so many devices to a task
	bindMap
	bindMask
	bindNone
)

// binding is an entry of tres_bind: "gpu:verbose,single:2".
type binding struct {
	request string // the whole, for messages
	kind    bindKind
	verbose bool
	n       int      // of bindSingle and bindPerTask
	list    []string // of bindMap and bindMask: numbers, and masks in hexadecimal
}

// listMax bounds a list of devices with its repetitions: a task takes one entry.
const listMax = 1 << 16

// requestMax bounds how much of a request each task's message repeats, in bytes.
const requestMax = 1024

// parseBind finds the entry of a resource; nil is none. srun has checked its grammar, and what
// cannot be read binds to nothing: a message tells the user.
func parseBind(text, name string, v wire.Release) *binding {
	for _, entry := range strings.FieldsFunc(text, func(c rune) bool { return c == ';' || c == '+' }) {
		of, how, ok := strings.Cut(strings.TrimPrefix(entry, "gres/"), ":")
		if !ok || of != name {
			continue
		}
		b := &binding{request: text[:min(len(text), requestMax)]}
		how, b.verbose = strings.CutPrefix(how, "verbose,")
		word, value, _ := strings.Cut(how, ":")
		switch {
		case word == "closest":
			b.kind = bindClosest
		case word == "single":
			b.kind, b.n = bindSingle, number(value)
		case word == "per_task":
			b.kind, b.n = bindPerTask, number(value)
		case strings.HasPrefix(word, "map_") || word == "map":
			b.kind, b.list = bindMap, repeats(value)
		case strings.HasPrefix(word, "mask_") || word == "mask":
			b.kind, b.list = bindMask, repeats(value)
		case word == "none" && v < wire.V2302:
			b.kind = bindNone // no variable names a device
		default:
			return nil
		}
		return b
	}
	return nil
}

func number(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 1
	}
	return int(n)
}

// repeats reads "0*2,3" as 0,0,3.
func repeats(text string) (list []string) {
	for item := range strings.SplitSeq(text, ",") {
		value, times, ok := strings.Cut(item, "*")
		n := 1
		if ok {
			n = number(times)
		}
		for range min(n, listMax-len(list)) {
			list = append(list, value)
		}
	}
	return list
}

// bindTasks decides the devices of each task.
func (h *held) bindTasks(s *wire.Stream, of Step) {
	if h.bind == nil || len(h.index) == 0 {
		return
	}
	if h.bind.kind == bindNone {
		return
	}
	h.bound, h.says = make([][]int, of.Tasks), make([][]string, of.Tasks)
	b := binder{held: h, release: s.Conf.Release, constrained: of.Constrained, used: map[int]int{}}
	for local := range h.bound {
		b.near = h.near(s, of.CPUs(local))
		h.bound[local], h.says[local] = b.task(local)
	}
}

// near are the held devices whose CPUs are among the task's, as gres.conf has them.
func (h *held) near(s *wire.Stream, cpus []int) (list []int) {
	first := 0
	for _, l := range s.GresLines {
		if l.Name != h.node.Name {
			continue
		}
		after := first + int(min(l.Count, uint64(len(h.node.Devices))))
		if l.CPUs == nil || cpus == nil || slices.ContainsFunc(cpus, func(c int) bool { return c < len(l.CPUs) && l.CPUs[c] }) {
			for i := first; i < after; i++ {
				if slices.Contains(h.index, i) {
					list = append(list, i)
				}
			}
		}
		first = after
	}
	if len(s.GresLines) == 0 {
		return h.index
	}
	return list
}

// binder binds the tasks of a step to the devices of one resource, in their order.
type binder struct {
	held        *held
	release     wire.Release
	constrained bool
	near        []int
	used        map[int]int // tasks of each device, of bindSingle
}

// task are the devices of a task, and what it is to be told.
func (b *binder) task(local int) (list []int, says []string) {
	bind, own := b.held.bind, b.held.index
	var fault string
	switch bind.kind {
	case bindClosest:
		list = b.near
	case bindSingle:
		list, fault = b.single(local)
	case bindPerTask:
		first := min(local*bind.n, len(own))
		if list = own[first:min(first+bind.n, len(own))]; len(list) < bind.n { // the last has what is left
			fault = "Not enough gpus to bind for gpus per task"
			if b.release >= wire.V2311 {
				fault = fmt.Sprintf("Not enough gres to bind %d per task", bind.n)
			}
		}
	case bindMap, bindMask:
		if list = b.listed(bind.list[local%len(bind.list)]); list == nil {
			fault = "Invalid --gpu-bind= value specified."
			if b.release >= wire.V2311 {
				fault = "Invalid map or mask value specified."
			}
		}
		list = slices.DeleteFunc(list, func(i int) bool { return !slices.Contains(own, i) })
	}
	if fault != "" {
		says = append(says, "error: "+fault)
	}
	if len(list) == 0 {
		list = own[:1]
		says = append(says, fmt.Sprintf("error: Bind request %s does not specify any devices within the allocation for task %d. Binding to the first device in the allocation instead.", bind.request, local))
	}
	return list, says
}

// single gives a task one device, and each device to so many tasks. From 23.02 on a task takes
// the first one near it that has room, and before one near it by the task's number.
func (b *binder) single(local int) (list []int, fault string) {
	n, own := b.held.bind.n, b.held.index
	if b.release < wire.V2302 {
		if len(b.near) == 0 {
			return nil, ""
		}
		i := local / n % len(b.near)
		return b.near[i : i+1], ""
	}
	for _, from := range [][]int{b.near, own} {
		for _, i := range from {
			if b.used[i] < n {
				b.used[i]++
				return []int{i}, ""
			}
		}
	}
	i := local / n % len(own)
	return own[i : i+1], fmt.Sprintf("_get_single_usable_gres Can't find free slot for local_proc_id = %d, continue using block distribution", local)
}

// listed are the devices of an entry of a map or mask; nil is a bad one. Where the task sees
// its own devices alone, the entry counts those.
func (b *binder) listed(entry string) (list []int) {
	own := b.held.index
	limit := 0
	for _, d := range b.held.node.Devices {
		limit = max(limit, int(d.Index)+1)
	}
	if b.constrained {
		limit = len(own)
	}
	var bits big.Int
	if b.held.bind.kind == bindMap {
		if n, err := strconv.ParseUint(strings.TrimPrefix(entry, "0x"), base(entry), 31); err == nil && int(n) < limit {
			bits.SetBit(&bits, int(n), 1)
		}
	} else if digits, ok := strings.CutPrefix(entry, "0x"); ok && len(digits) <= limit/4+1 {
		bits.SetString(digits, 16)
	}
	if bits.Sign() <= 0 || bits.BitLen() > limit {
		return nil
	}
	for i := range limit {
		switch {
		case bits.Bit(i) == 0:
		case b.constrained:
			list = append(list, own[i])
		default:
			list = append(list, i)
		}
	}
	return list
}

func base(entry string) int {
	if strings.HasPrefix(entry, "0x") {
		return 16
	}
	return 10
}
