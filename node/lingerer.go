package node

import "context"

// goOnWithout ends a step that has its result and whose stepd SIGKILL does not end: a
// pipe of its client's stands in the kernel for as long as a page of the client's memory
// does not come (a file of a FUSE server that is gone, userfaultfd(2)), and so does
// a process that writes to it or closes it. The step's place is then held as for any process
// that does not die, and the job goes on.
func (f *follower) goOnWithout() {
	f.log.Errorf("stepd (pid %d) has given its result and still exists %v after SIGKILL: the step ends without it", f.proc.PID, f.n.leaveMax)
	p := f.proc
	go func() { // ends with stepd, or with us: process 1 then reaps it
		if p.Wait(context.Background()) == nil {
			_ = p.Reap() // the step has its result
		}
		p.Close()
	}()
	f.cleanup()
}
