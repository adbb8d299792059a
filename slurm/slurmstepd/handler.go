package slurmstepd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/slurm/socket"
	"stepd/slurm/tree"
	"stepd/slurm/wire"
	"stepd/step"
)

// socketConfig is what the step's socket says.
func (d *daemon) socketConfig() socket.Config {
	id := d.id()
	cfg := socket.Config{
		Release: d.stream.Conf.Release, Spool: d.stream.Conf.Spool, Node: d.stream.Conf.Node,
		ID: step.ID{Job: id.Job, Step: id.Step}, Name: stepName(d.stream), SLUID: id.SLUID, Owner: d.spec.User.UID, SlurmUser: d.peers.slurmUser,
		NodeID: d.spec.NodeID, Announces: socket.Announces(d.spec.Env, d.spec.NodeID),
		JobMemoryMB: d.spec.JobMemoryMB, StepMemoryMB: d.spec.MemoryMB,
		Namespace: d.namespace, Names: d.names(), Running: d.aud.running, Log: func(line string) { d.log.Info(line) },
	}
	if id.HetComp != wire.NoVal {
		cfg.Het = &id.HetComp
	}
	if d.extern != nil { // a nil one in an interface is not nil
		cfg.Extern = d.extern
	}
	return cfg
}

// listen opens the step's socket: from then on slurmd counts the step as begun.
func (d *daemon) listen() (err error) {
	d.socket, err = socket.Listen(d.socketConfig(), (*handler)(d))
	return err
}

// handler is the step for the clients of its socket.
type handler daemon

func (h *handler) State() socket.State {
	if !h.aud.isRunning() {
		return socket.Starting
	}
	switch rec := h.st.Record(); rec.State {
	case step.Starting:
		return socket.Starting
	case step.Running:
		return socket.Running
	}
	return socket.Ending
}

func (h *handler) Signal(sig unix.Signal, to socket.Scope) error {
	rec := h.st.Record()
	ends := sig == unix.SIGTERM || sig == unix.SIGKILL
	if (rec.Suspended != nil || h.suspending.Load() > 0) && sig != unix.SIGKILL {
		return socket.ErrSuspended
	}
	if ends {
		h.condemn(&rec)
	}
	if rec.State == step.Starting && ends {
		h.end(sig)
		return nil
	}
	switch to {
	case socket.Leader:
		return h.st.Signal(int(sig), step.ScopeLeader)
	case socket.Group:
		if len(rec.Tasks) == 0 || rec.Tasks[0].PID == nil || rec.Tasks[0].Status != nil {
			return socket.ErrNotRunning
		}
		return unix.Kill(-*rec.Tasks[0].PID, sig)
	}
	if sig == unix.SIGKILL {
		h.end(sig)
		return nil
	}
	return h.st.Signal(int(sig), step.ScopeCgroup)
}

// end ends the step: its processes are killed where sig is SIGKILL, and else terminated.
func (h *handler) end(sig unix.Signal) {
	reason := "a command has sent it " + unix.SignalName(sig)
	if sig != unix.SIGKILL {
		if err := h.st.Cancel(reason); err != nil {
			h.log.Error(err)
		}
		return
	}
	h.group.condemn()
	h.peers.tryAgain()
	// At once, and again each time. What hangs in the launch has no cgroup yet, and no process
	// that runs for the user. One whose tasks have ended kills what is left by itself.
	if err := h.st.Signal(int(sig), step.ScopeCgroup); err != nil && h.st.Record().State == step.Running {
		h.log.Error(err)
	}
	h.st.Kill(reason)
}

// lastSample is how long the last sample of an extern step may take.
const lastSample = 500 * time.Millisecond

// condemn notes which tasks a command ends. What a session has used is known of samples alone,
// since it is no child of the step's: the last one is taken while it lives. A session that
// hangs in the kernel may hold the sample up, and not the kill.
func (h *handler) condemn(rec *step.Record) {
	if h.extern != nil {
		sampled := make(chan struct{})
		go func() { h.st.Stat(); close(sampled) }()
		select {
		case <-sampled:
		case <-time.After(lastSample):
		}
	}
	h.verdict.kill(rec)
}

func (h *handler) Cancel() {
	rec := h.st.Record()
	h.condemn(&rec)
	h.end(unix.SIGTERM)
}

func (h *handler) Abort() {
	h.silent.Store(true)
	if h.stream.Batch != nil {
		(*daemon)(h).mark(markComplete) // nor does the orphan report it
	}
	h.Terminate()
}

func (h *handler) Terminate() {
	h.Late()
	rec := h.st.Record()
	h.condemn(&rec)
	h.end(unix.SIGKILL)
}

func (h *handler) Suspend(by uint32) error {
	if rec := h.st.Record(); rec.Suspended != nil {
		return socket.ErrSuspended
	}
	// While it takes effect no signal wakes the tasks: slurmd would let a job that it ends run on.
	h.suspending.Add(1)
	defer h.suspending.Add(-1)
	return h.st.Suspend(by)
}

func (h *handler) Resume(by uint32) error {
	if rec := h.st.Record(); rec.Suspended == nil {
		return socket.ErrNotSuspended
	}
	return h.st.Resume(by)
}

func (h *handler) Tasks() []socket.Task {
	rec := h.st.Record()
	list := make([]socket.Task, len(rec.Tasks))
	for i := range rec.Tasks {
		t := &rec.Tasks[i]
		list[i] = socket.Task{LocalID: uint32(t.LocalID), Rank: uint32(t.Rank), Program: (*daemon)(h).program(t.Rank), Status: t.Status}
		if t.PID != nil {
			list[i].PID = *t.PID
		}
		if h.extern != nil { // its one process is no task
			list[i].PID = -1
		}
	}
	return list
}

func (h *handler) PIDs() []int {
	pids, err := h.st.PIDs()
	if err != nil {
		h.log.Error(err)
	}
	if rec := h.st.Record(); h.extern != nil && h.stream.Conf.Release >= wire.V2511 && len(rec.Tasks) > 0 && rec.Tasks[0].PID != nil {
		idle := *rec.Tasks[0].PID // Slurm has none any more
		pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == idle })
	}
	return pids
}

// Usage is what the tasks have used so far, nil where the site counts nothing.
func (h *handler) Usage() (packed []byte, tasks int) {
	rec := h.st.Stat()
	if u := usage(&rec, h.stream.Conf.TRES, h.spec.NodeID); u != nil {
		packed = wire.PackUsage(u)
	}
	return packed, len(h.plan.Ranks)
}

// Reopen is for a log that was moved away.
func (h *handler) Reopen() error {
	if h.file == nil {
		return nil
	}
	f, err := os.OpenFile(h.stream.Conf.LogFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open slurmd's log anew: %w", err)
	}
	// In the place of the old one, and of what the runtime writes to.
	defer f.Close()
	return errors.Join(unix.Dup3(int(f.Fd()), int(h.file.Fd()), unix.O_CLOEXEC), unix.Dup3(int(f.Fd()), 2, 0))
}

func (h *handler) Say(line string) {
	for l := range strings.Lines(line) {
		h.aud.Say(h.spec.Speaker + ": error: " + strings.TrimRight(l, "\n"))
	}
}

// Late implements socket.Handler.
func (h *handler) Late() {
	if h.tree != nil {
		time.AfterFunc(tree.LatePatience, h.tree.GiveUp)
	}
}

// Ended takes the step's end on other nodes. Where each reports by itself, it is Slurm's own step
// daemon that runs on the other: its report is passed on.
func (h *handler) Ended(e socket.NodesEnd) error {
	if h.tree != nil {
		err := h.tree.Add(&e)
		if err != nil {
			h.log.Warnf("refused the end of nodes %d to %d of the step: %v", e.First, e.Last, err)
		}
		return err
	}
	used, err := wire.UnpackUsage(e.Usage)
	if err != nil {
		return err
	}
	return h.peers.passOn(context.Background(), &wire.StepComplete{Step: (*daemon)(h).id(), First: e.First, Last: e.Last, RC: e.RC, Usage: used})
}
