package oom

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// kills reads how many processes of the cgroup dir itself were killed:
// "oom_kill" of memory.events.local (cgroup v2) or of memory.oom_control (v1).
// For a cgroup that is gone, and one without the figure (Linux before 4.13),
// they are unknown.
func kills(dir string, v1 bool) (uint64, error) {
	name := "memory.events.local"
	if v1 {
		name = "memory.oom_control"
	}
	n, ok, err := readKey(filepath.Join(dir, name), "oom_kill")
	if !ok {
		return 0, err
	}
	return n, nil
}

// level reads what of a level was used at most, and is in swap now.
func usage(dir string, v1 bool) (peak, swap *uint64) {
	if v1 {
		peak = readNumber(filepath.Join(dir, "memory.max_usage_in_bytes"))
		if n, ok, err := readKey(filepath.Join(dir, "memory.stat"), "total_swap"); ok && err == nil {
			swap = &n
		}
		return peak, swap
	}
	return readNumber(filepath.Join(dir, "memory.peak")), readNumber(filepath.Join(dir, "memory.swap.current"))
}

func readNumber(path string) *uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

func readKey(path, key string) (n uint64, ok bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("cannot read the memory events: %w", err)
	}
	n, ok = findKey(string(data), key)
	return n, ok, nil
}

// findKey reads a flat keyed file: "KEY NUMBER\n" (cgroup-v2.rst, "Format").
func findKey(data, key string) (uint64, bool) {
	for line := range strings.Lines(data) {
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok || k != key {
			continue
		}
		n, err := strconv.ParseUint(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}
