package proctrack

import (
	"time"

	"github.com/opencontainers/runc/libcontainer/system"

	"stepd/step"
)

// Survivor is a process that SIGKILL has not ended.
type Survivor = step.Survivor

// SurvivorsError says which processes were left when the wait for their end
// was given up. Cause, the context's, is what errors.Is sees.
type SurvivorsError = step.SurvivorsError

// survivorsShown bounds the error: a fork bomb may leave thousands.
const survivorsShown = 8

// describeMax bounds the look at all of them. Nothing of it touches the file
// system that they may wait for, but parts of /proc have locks that a process
// in exec holds.
const describeMax = 2 * time.Second

func newSurvivorsError(where string, pids []int, cause error) *SurvivorsError {
	e := &SurvivorsError{Where: where, Total: len(pids), Cause: cause}
	late := time.NewTimer(describeMax)
	defer late.Stop()
	for i := 0; i < min(len(pids), survivorsShown); i++ {
		told := make(chan Survivor, 1) // size 1: a late sender does not block
		go func() { told <- describe(pids[i]) }()
		select {
		case s := <-told:
			e.Survivors = append(e.Survivors, s)
		case <-late.C:
			for _, pid := range pids[i:min(len(pids), survivorsShown)] {
				e.Survivors = append(e.Survivors, glance(pid))
			}
			return e
		}
	}
	return e
}

// glance returns what costs no lock.
func glance(pid int) Survivor {
	s := Survivor{PID: pid, Comm: "?", Grade: step.GradeVanished}
	stat, err := system.Stat(pid)
	if err != nil {
		return s
	}
	s.Comm, s.Start, s.State, s.Grade = stat.Name, stat.StartTime, string(rune(stat.State)), step.GradeRunning
	switch stat.State {
	case system.Zombie, system.Dead:
		s.Grade = step.GradeZombie
	case 'D':
		s.Grade = step.GradeDisk
	case 'T':
		s.Grade = step.GradeStopped
	case 't':
		s.Grade = step.GradeTraced
	}
	return s
}
