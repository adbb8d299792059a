package proctrack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// family is a process's place among others: proc_pid_stat(5), fields 5 and 6.
type family struct{ pgrp, session int }

// parseFamily reads /proc/PID/stat.
func parseFamily(data []byte) (family, error) {
	_, fields := linux.ParseStat(data)
	if len(fields) < 4 {
		return family{}, fmt.Errorf("too few fields in %q", data)
	}
	pgrp, err1 := strconv.ParseInt(fields[2], 10, 32)
	session, err2 := strconv.ParseInt(fields[3], 10, 32)
	return family{int(pgrp), int(session)}, errors.Join(err1, err2)
}

// ofFamily lists the processes whose place is is.
func ofFamily(is func(family) bool) (members []int, err error) {
	pids, err := allPIDs()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		f, ok, err := readFamily(pid)
		if err != nil {
			return nil, err
		}
		if ok && is(f) {
			members = append(members, pid)
		}
	}
	return members, nil
}

// readFamily returns ok=false for a process that is gone.
func readFamily(pid int) (f family, ok bool, err error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "stat")
	data, err := os.ReadFile(path)
	if noProcess(err) {
		return family{}, false, nil
	}
	if err == nil {
		f, err = parseFamily(data)
	}
	if err != nil {
		return family{}, false, fmt.Errorf("cannot read %q: %w", path, err)
	}
	return f, true, nil
}

// noProcess: ESRCH comes from files of a process that ended after the open.
func noProcess(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// allPIDs lists the processes of this pid namespace.
func allPIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// descendants lists the processes below each of roots, without the roots,
// parents before their children. Zombies are among them. Children of a process
// that dies during the scan go to the roots (if one of these is a subreaper),
// so these are read again at the end, until nothing new is found.
func descendants(roots ...int) ([]int, error) {
	seen := set(roots)
	var found []int
	add := func(parent int) error {
		pids, err := childrenOf(parent)
		for _, pid := range pids {
			if !seen[pid] {
				seen[pid] = true
				found = append(found, pid)
			}
		}
		return err
	}
	for done := 0; ; {
		for _, root := range roots {
			if err := add(root); err != nil {
				return nil, err
			}
		}
		if done == len(found) {
			return found, nil
		}
		for ; done < len(found); done++ {
			if err := add(found[done]); err != nil {
				return nil, err
			}
		}
	}
}

// childrenOf reads the children of every thread, since each has its own list.
func childrenOf(pid int) ([]int, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	threads, err := os.ReadDir(dir)
	if noProcess(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the threads of process %d: %w", pid, err)
	}
	var all []int
	for _, thread := range threads {
		path := filepath.Join(dir, thread.Name(), "children")
		data, err := os.ReadFile(path)
		if noProcess(err) {
			continue
		}
		var pids []int
		if err == nil {
			pids, err = parsePIDs(data)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %q: %w", path, err)
		}
		all = append(all, pids...)
	}
	return all, nil
}
