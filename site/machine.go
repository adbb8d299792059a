package site

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/node"
	"stepd/node/selection"
	"stepd/task/affinity"
)

// machineCPUs lists the CPUs that noded itself may run on: those that it can
// give away.
func machineCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("cannot read the CPU affinity: %w", err)
	}
	var cpus []int
	for i := 0; len(cpus) < set.Count(); i++ {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus, nil
}

// machineMemory is MemTotal of /proc/meminfo, in bytes.
func machineMemory() (uint64, error) {
	const path = "/proc/meminfo"
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory size: %w", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "MemTotal:"); ok {
			kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 54)
			if err != nil {
				return 0, fmt.Errorf("cannot parse MemTotal in %q: %w", path, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("cannot find MemTotal in %q", path)
}

// machine is what the node has of CPUs and memory.
type machine struct {
	cpus   []int
	memory uint64 // bytes
	// unbindable says why nothing can be bound to the CPUs, "" if it can.
	unbindable string
}

func (m *machine) bindable() bool { return m.unbindable == "" }

func (m *machine) fallbacks() (out []node.Fallback) {
	if m.unbindable != "" {
		out = append(out, node.Fallback{What: "CPU binding", Why: m.unbindable})
	}
	return out
}

func (s *Site) machine(log *logrus.Logger) (*machine, error) {
	cpus, bindable, err := s.cpus()
	if err != nil {
		return nil, err
	}
	m := &machine{cpus: cpus, memory: s.conf.Node.RealMemory << 20}
	if m.memory == 0 {
		if m.memory, err = machineMemory(); err != nil {
			return nil, err
		}
	}
	if !bindable {
		m.unbindable = fmt.Sprintf("NodeName CPUs=%d is more than the machine has", len(cpus))
		log.Warnf("fallback: no CPU binding: %s", m.unbindable)
	}
	return m, nil
}

// cpus are the node's CPU numbers. NodeName CPUs= is believed, above the
// hardware too: then the numbers are no longer the machine's, and
// nothing can be bound to them.
func (s *Site) cpus() (cpus []int, bindable bool, err error) {
	cpus, err = machineCPUs()
	want := s.conf.Node.CPUs
	switch {
	case err != nil:
		return nil, false, err
	case want == 0:
		return cpus, true, nil
	case want <= len(cpus):
		return cpus[:want], true, nil
	}
	cpus = cpus[:0]
	for i := range want {
		cpus = append(cpus, i)
	}
	return cpus, false, nil
}

// nodeCores are the cores of the node's CPUs, for what requests say of them; nil
// where the kernel does not tell.
func nodeCores(log *logrus.Logger, cpus []int, bindable bool) (cores []selection.Core) {
	if !bindable {
		return nil
	}
	t, err := affinity.ReadTopology(os.DirFS("/sys"), cpus)
	if err != nil {
		log.Warnf("what steps say of cores is not heeded: %v", err)
		return nil
	}
	last := -1
	for _, p := range t.PUs {
		if p.Core != last {
			cores = append(cores, selection.Core{Socket: p.Socket})
			last = p.Core
		}
		c := &cores[len(cores)-1]
		c.CPUs = append(c.CPUs, p.CPU)
	}
	return cores
}
