package jobcontainer

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// AddCont notes that a step's proctrack container belongs to the job. A
// container belongs to one job: a second one is an error.
func (t *Tmpfs) AddCont(job uint32, cont uint64) error {
	c := t.lock(job)
	defer t.unlock(job, c)
	if c.ns == nil {
		return fmt.Errorf("cannot add container %d to job %d: the job has no job container", cont, job)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if other, ok := t.conts[cont]; ok && other != job {
		return fmt.Errorf("cannot add container %d to job %d: it belongs to job %d", cont, job, other)
	}
	t.conts[cont] = job
	return nil
}

// AddPID notes that a process works for the job: its stepd, or a helper. No
// process can be put into a mount namespace by another one, so nothing is
// moved; a Delete that fails names the processes that are inside.
func (t *Tmpfs) AddPID(job uint32, pid int) error {
	c := t.lock(job)
	defer t.unlock(job, c)
	if c.ns == nil {
		return fmt.Errorf("cannot add process %d to job %d: the job has no job container", pid, job)
	}
	if _, err := c.holds(pid); err != nil {
		return fmt.Errorf("cannot add process %d to job %d: %w", pid, job, err)
	}
	if !slices.Contains(c.pids, pid) {
		c.pids = append(c.pids, pid)
	}
	return nil
}

// holds reports whether the process is in the job's namespace. It fails for a
// process that is gone.
func (c *container) holds(pid int) (bool, error) {
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return false, err
	}
	ours, err := c.ns.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(theirs, ours), nil
}

// survivors names the known processes that still are in the namespace, which
// explains a directory that fills while it is emptied.
func (c *container) survivors(job uint32) error {
	var left []string
	for _, pid := range c.pids {
		if in, err := c.holds(pid); err == nil && in {
			left = append(left, fmt.Sprint(pid))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("processes of job %d are still there: %s", job, strings.Join(left, ", "))
}
