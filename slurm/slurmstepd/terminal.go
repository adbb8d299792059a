package slurmstepd

import (
	"errors"

	"golang.org/x/sys/unix"

	"stepd/slurm/stdio"
	"stepd/step"
)

// terminal is the step's, nil without one. srun waits for a connection by which it sends the
// sizes of its window.
func (d *daemon) terminal() *stdio.Terminal {
	t := d.spec.Terminal
	if t == nil {
		return nil
	}
	return &stdio.Terminal{
		Rows: t.Rows, Cols: t.Cols, GID: d.spec.User.GID,
		Window: agent(d.stream.Launch.Env, "SLURM_PTY_PORT"), Resized: d.resized,
	}
}

// resized tells the first task of a new size, as the original does: the kernel tells the
// program in the foreground alone.
func (d *daemon) resized() {
	if err := d.st.Signal(int(unix.SIGWINCH), step.ScopeLeader); err != nil {
		d.log.Debugf("cannot tell task 0 the new size of its window: %v", err)
	}
}

// output is the terminal for the tasks.
type output struct{ streams *stdio.Streams }

func (o output) OpenTerminal() (int, error) {
	if o.streams == nil {
		return -1, errors.New("cannot make a terminal: there is no srun")
	}
	return o.streams.OpenTerminal()
}

// Drain has nothing to do: the terminal is one of the step's streams.
func (output) Drain()     {}
func (output) Used() bool { return false }
