package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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
