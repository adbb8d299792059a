package proctrack

import (
	"context"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// quietScans is how many scans in a row must find nothing alive before a hunt
// ends. One may miss a process whose parent died during the scan; the next one
// finds it below its new parent.
const quietScans = 2

// hunt is what trackers without cgroups have for a kill: list finds the
// processes, and a round kills the living ones and waits, by pidfd, until all
// of them are dead. It ends after rounds that found none. A signalled process
// cannot fork any more, so a round leaves only children born before.
//
// members verifies numbers as for signalEach; what describes the processes.
func hunt(ctx context.Context, what string, list func() ([]int, error)) error {
	for quiet := 0; quiet < quietScans; {
		pids, err := list()
		if err != nil {
			return err
		}
		killed, err := huntRound(ctx, pids, list)
		if ctx.Err() != nil && err != nil {
			left, listErr := list()
			if listErr != nil {
				return listErr
			}
			return newSurvivorsError(what, left, err)
		}
		if err != nil {
			return err
		}
		if killed {
			quiet = 0
		} else {
			quiet++
		}
	}
	return nil
}

// huntRound reports whether any of pids was alive.
func huntRound(ctx context.Context, pids []int, list func() ([]int, error)) (killed bool, err error) {
	for len(pids) > 0 {
		n := min(len(pids), pidfdBatch)
		one, err := huntBatch(ctx, pids[:n], list)
		killed = killed || one
		if err != nil {
			return killed, err
		}
		pids = pids[n:]
	}
	return killed, nil
}

func huntBatch(ctx context.Context, pids []int, list func() ([]int, error)) (bool, error) {
	procs, err := openProcs(pids)
	if err != nil {
		return false, err
	}
	defer closeProcs(procs)
	living, err := alive(procs)
	if len(living) == 0 || err != nil {
		return false, err
	}
	again, err := list() // see signalEach
	if err != nil {
		return true, err
	}
	still := set(again)
	var fds []int
	for _, p := range living {
		if !still[p.pid] {
			continue
		}
		if err := linux.PidfdSignal(p.fd, unix.SIGKILL); err != nil && !linux.IsGone(err) {
			return true, err
		}
		fds = append(fds, p.fd)
	}
	return true, linux.PidfdWait(ctx, fds...)
}

// alive leaves out zombies.
func alive(procs []proc) ([]proc, error) {
	var living []proc
	for _, p := range procs {
		exited, err := linux.PidfdExited(p.fd)
		if err != nil {
			return nil, err
		}
		if !exited {
			living = append(living, p)
		}
	}
	return living, nil
}

// livingPIDs filters a list of processes down to the ones that are no zombies.
func livingPIDs(pids []int) ([]int, error) {
	var living []int
	for len(pids) > 0 {
		n := min(len(pids), pidfdBatch)
		procs, err := openProcs(pids[:n])
		if err != nil {
			return nil, err
		}
		batch, err := alive(procs)
		closeProcs(procs)
		if err != nil {
			return nil, err
		}
		for _, p := range batch {
			living = append(living, p.pid)
		}
		pids = pids[n:]
	}
	return living, nil
}
