package proctrack

import (
	"errors"
	"syscall"

	"stepd/internal/linux"
)

// pidfdBatch bounds the descriptors that are open at a time, whatever number
// of processes a user starts.
const pidfdBatch = 256

// signalEach sends sig to the processes that pids named when they were listed.
// A number may have become another process since. So the pidfds are opened
// first, and members is asked afterwards: a number that is still a member, and
// whose pidfd is still alive, has been that one process in between.
func signalEach(pids []int, sig syscall.Signal, members func() (map[int]bool, error)) error {
	for len(pids) > 0 {
		n := min(len(pids), pidfdBatch)
		if err := signalBatch(pids[:n], sig, members); err != nil {
			return err
		}
		pids = pids[n:]
	}
	return nil
}

func signalBatch(pids []int, sig syscall.Signal, members func() (map[int]bool, error)) error {
	procs, err := openProcs(pids)
	if err != nil {
		return err
	}
	defer closeProcs(procs)
	still, err := members()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range procs {
		if !still[p.pid] {
			continue
		}
		if err := linux.PidfdSignal(p.fd, sig); err != nil && !linux.IsGone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// proc is a process and the pidfd that names it.
type proc struct{ pid, fd int }

// openProcs opens the processes that exist.
func openProcs(pids []int) ([]proc, error) {
	procs := make([]proc, 0, len(pids))
	for _, pid := range pids {
		fd, err := linux.PidfdOpen(pid)
		if linux.IsGone(err) {
			continue
		}
		if err != nil {
			closeProcs(procs)
			return nil, err
		}
		procs = append(procs, proc{pid, fd})
	}
	return procs, nil
}

func closeProcs(procs []proc) {
	for _, p := range procs {
		syscall.Close(p.fd)
	}
}
