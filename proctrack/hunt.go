package proctrack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

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
// what describes the processes.
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
	for batch := range slices.Chunk(pids, pidfdBatch) {
		one, err := huntBatch(ctx, batch, list)
		killed = killed || one
		if err != nil {
			return killed, err
		}
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
	same, err := confirmed(living, list)
	if err != nil {
		return true, err
	}
	var fds []int
	for _, p := range same {
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

// living lists the processes that are no zombies.
func living(list func() ([]int, error)) ([]int, error) {
	pids, err := list()
	if err != nil {
		return nil, err
	}
	return livingPIDs(pids)
}

// livingPIDs filters a list of processes down to the ones that are no zombies.
func livingPIDs(pids []int) ([]int, error) {
	var living []int
	for batch := range slices.Chunk(pids, pidfdBatch) {
		procs, err := openProcs(batch)
		if err != nil {
			return nil, err
		}
		running, err := alive(procs)
		closeProcs(procs)
		if err != nil {
			return nil, err
		}
		for _, p := range running {
			living = append(living, p.pid)
		}
	}
	return living, nil
}

// keepSince kills the processes of list that have started before since, in
// linux.StartTime's ticks, and counts the others.
func keepSince(list func() ([]int, error), since uint64) (kept int, err error) {
	pids, err := living(list)
	if err != nil {
		return 0, err
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool {
		start, err := linux.StartTime(pid)
		if err == nil && start >= since {
			kept++
			return true
		}
		return err != nil // it is gone
	})
	return kept, signalEach(pids, unix.SIGKILL, list)
}

// pidfdBatch bounds the descriptors that are open at a time, whatever number
// of processes a user starts.
const pidfdBatch = 256

// signalEach sends sig to the processes that pids named when they were listed.
// A number may have become another process since. So the pidfds are opened
// first, and list is asked again afterwards: a number that is still listed, and
// whose pidfd is still alive, has been that one process in between.
func signalEach(pids []int, sig syscall.Signal, list func() ([]int, error)) error {
	for batch := range slices.Chunk(pids, pidfdBatch) {
		if err := signalBatch(batch, sig, list); err != nil {
			return err
		}
	}
	return nil
}

func signalBatch(pids []int, sig syscall.Signal, list func() ([]int, error)) error {
	procs, err := openProcs(pids)
	if err != nil {
		return err
	}
	defer closeProcs(procs)
	same, err := confirmed(procs, list)
	errs := []error{err}
	for _, p := range same {
		if err := linux.PidfdSignal(p.fd, sig); err != nil && !linux.IsGone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// confirmed are the processes that list still names, now that their pidfds are open.
func confirmed(procs []proc, list func() ([]int, error)) (same []proc, err error) {
	again, err := list()
	still := set(again)
	for _, p := range procs {
		if still[p.pid] && err == nil {
			same = append(same, p)
		}
	}
	return same, err
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

// Process names one process for ever, on one boot: its number and when it
// started (linux.StartTime). Numbers come again, the pair does not.
type Process struct {
	PID   int
	Start uint64
}

// KillSession is for noded, when a stepd that tracked its step without cgroups
// is dead: the descent is lost then, since the orphans went to another
// subreaper or to init. It kills, and waits for,
//
//   - the processes of the session that stepd led,
//   - the processes of known (the tasks that the record names) that are still the same,
//   - and all descendants of both.
//
// This is best effort: a process that left the session and whose ancestors are
// all dead is not found, and only a cgroup would find it. stepd and known must
// be of this boot: the caller compares boot ids. The error is a
// *SurvivorsError when ctx ends first.
func KillSession(ctx context.Context, stepd Process, known []Process) error {
	if stepd.PID <= 1 || stepd.Start == 0 {
		return fmt.Errorf("cannot kill the session of process %d: its number and start time must be known", stepd.PID)
	}
	what := fmt.Sprintf("the step of stepd %d", stepd.PID)
	return hunt(ctx, what, func() ([]int, error) { return orphans(stepd, known) })
}

func orphans(stepd Process, known []Process) ([]int, error) {
	found, err := sessionOf(stepd)
	if err != nil {
		return nil, err
	}
	for _, p := range known {
		same, err := p.exists()
		if err != nil {
			return nil, err
		}
		if same {
			found = append(found, p.PID)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	below, err := descendants(found...)
	if err != nil {
		return nil, err
	}
	return append(found, below...), nil
}

// exists reports whether p exists, perhaps as a zombie.
func (p Process) exists() (bool, error) {
	start, err := linux.StartTime(p.PID)
	if noProcess(err) {
		return false, nil
	}
	return err == nil && start == p.Start, err
}

// sessionOf lists the members of the session that stepd leads or led. The
// kernel does not give the number to a new process while the session has
// members. A process that has it all the same, and is not stepd, reports that
// the session is empty and that today's session of that number is another's;
// so do members that are older than stepd.
func sessionOf(stepd Process) ([]int, error) {
	_, taken, err := readFamily(stepd.PID)
	if err != nil {
		return nil, err
	}
	if taken {
		same, err := stepd.exists()
		if !same || err != nil {
			return nil, err
		}
	}
	pids, err := ofFamily(func(f family) bool { return f.session == stepd.PID })
	if err != nil {
		return nil, err
	}
	var members []int
	for _, pid := range pids {
		start, err := linux.StartTime(pid)
		if noProcess(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if start >= stepd.Start {
			members = append(members, pid)
		}
	}
	return members, nil
}
