package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mostShares is the kernel's limit: all else on the machine gets next to nothing of
// the CPUs while something of the group wants them.
const mostShares = 262144

// ownShare puts this process, and with it all that it starts, into a cpu group of
// its own; leave undoes it. Outside of groups the kernel shares the CPUs out by
// session (sched_autogroup): mpiexec.hydra gives each rank a session, a step is one.
// Beside other work its ranks would get many shares, and the step one.
func ownShare() (leave func(), err error) {
	path, ok := cpuGroup()
	if !ok || path != "/" {
		return func() {}, nil // cgroup v2, or in a group already: shares are as in there
	}
	const mount = "/sys/fs/cgroup/cpu"
	dir := filepath.Join(mount, fmt.Sprintf("stepd-bench-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "cpu.shares"), []byte(strconv.Itoa(mostShares)), 0); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	enter := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
	}
	if err := enter(dir); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return func() {
		if err := errors.Join(enter(mount), os.Remove(dir)); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}, nil
}

// cpuGroup is this process's group of the cpu controller in cgroup v1.
func cpuGroup() (string, bool) {
	for _, l := range lines("/proc/self/cgroup") {
		f := strings.SplitN(l, ":", 3)
		if len(f) == 3 && (f[1] == "cpu" || strings.HasPrefix(f[1], "cpu,")) {
			return f[2], true
		}
	}
	return "", false
}
