package task

import (
	"errors"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// endRest ends the tasks whose ends nobody will tell any more. A new kernel
// still knows the status; else it is lost, and why is the step's reason.
func (s *Step) endRest(why error) {
	for id := range s.tasks {
		if s.tasks[id].ended {
			continue
		}
		e := step.TaskEnd{LocalID: id, Lost: true}
		if status, ok := pidfdStatus(s.tasks[id].pidfd); ok {
			e = step.TaskEnd{LocalID: id, Status: status}
		} else if why != nil {
			s.mu.Lock()
			s.noteReason(why.Error())
			s.mu.Unlock()
		}
		s.taskEnded(e)
	}
}

// pidfdStatus is the end of a process that somebody else has reaped while the
// descriptor was open. ok is false where it is not known: the process is there,
// or the kernel is older than 6.15.
func pidfdStatus(pidfd int) (status step.ExitStatus, ok bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := unix.IoctlPidfdInfo(pidfd, &info)
	for errors.Is(err, unix.EINTR) {
		err = unix.IoctlPidfdInfo(pidfd, &info)
	}
	if err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return step.ExitStatus(info.Exit_code), true
}
