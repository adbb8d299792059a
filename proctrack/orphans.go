package proctrack

import (
	"context"
	"fmt"

	"stepd/internal/linux"
)

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
