package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

// child is a program that noded runs for a job, in the job's own place.
type child struct {
	argv  []string // argv[0] is what it is called; path is what is run
	path  string
	env   []string
	files []*os.File // its descriptors, from 0
}

// scriptsID is the step that stands for a job's prolog and epilog: what they
// leave behind lives as long as the job.
func scriptsID(job uint32) step.ID { return step.ID{Job: job, Step: step.ScriptsPlace} }

// runChild runs the child to its end, in a session of its own and in the job's
// place. When ctx ends first, its process group is killed, and the error is
// ctx's cause.
func (n *Node) runChild(ctx context.Context, j *job, c child) error {
	leaf, err := n.cfg.Tracker.MakeScripts(scriptsID(j.ID))
	if err != nil {
		return err
	}
	j.placeScripts()
	if leaf != nil {
		defer leaf.Close()
	}
	fds := make([]uintptr, len(c.files))
	for i, f := range c.files {
		fds[i] = f.Fd()
	}
	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if leaf != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(leaf.Fd())
	}
	dir := n.cfg.Scripts.Dir
	if dir == "" {
		dir = "/"
	}
	pid, _, err := syscall.StartProcess(c.path, c.argv, &syscall.ProcAttr{Dir: dir, Env: c.env, Files: fds, Sys: sys})
	if err != nil {
		return fmt.Errorf("cannot run %q: %w", c.path, err)
	}
	p, err := newChild(pid, pidfd)
	if err != nil {
		return err
	}
	defer p.close()
	j.addScript(p)
	if leaf == nil {
		if err := n.cfg.Tracker.AddStepd(scriptsID(j.ID), pid); err != nil {
			n.log.WithField("job", j.ID).Errorf("%v", err)
		}
	}
	return p.end(ctx)
}

// end waits for a child's end and reaps it. When ctx ends first, its session's
// first process group is killed.
func (p *process) end(ctx context.Context) error {
	err := p.wait(ctx)
	if err != nil {
		// Not reaped yet, so that the number is still its group's.
		if kerr := syscall.Kill(-p.pid, syscall.SIGKILL); kerr != nil && !errors.Is(kerr, syscall.ESRCH) {
			err = step.JoinErrors(err, fmt.Errorf("cannot kill process group %d: %w", p.pid, kerr))
		}
		err = step.JoinErrors(err, p.wait(context.Background()))
	}
	var ws unix.WaitStatus
	werr := linux.IgnoringEINTR(func() error {
		_, err := unix.Wait4(p.pid, &ws, 0, nil)
		return err
	})
	switch {
	case err != nil:
		return err
	case werr != nil:
		return fmt.Errorf("cannot wait for process %d: %w", p.pid, werr)
	case ws.Signaled():
		return fmt.Errorf("was killed by %s", signalName(ws.Signal()))
	case ws.ExitStatus() != 0:
		return fmt.Errorf("exited with code %d", ws.ExitStatus())
	}
	return nil
}

// output takes what a script writes: the last of it is kept for messages. A
// program that the script has left running may go on writing.
type output struct {
	r    *os.File
	done chan struct{} // closed at the end of file

	mu   sync.Mutex
	tail []byte // guarded by mu
}

const (
	// outputMax is how much of a script's output is kept, in bytes.
	outputMax = 4 << 10
	// outputPatience is how long the rest of the output is waited for when a
	// script has ended and something else holds its other end.
	outputPatience = 50 * time.Millisecond
)

// newOutput returns the other end as well; the caller closes both.
func newOutput() (*output, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a pipe for a script's output: %w", err)
	}
	o := &output{r: r, done: make(chan struct{})}
	go o.read()
	return o, w, nil
}

func (o *output) read() {
	defer close(o.done)
	buf := make([]byte, 16*outputMax) // a script that prints a lot must not keep noded busy
	for {
		n, err := o.r.Read(buf)
		o.mu.Lock()
		o.tail = append(o.tail, buf[:n]...)
		o.tail = o.tail[max(0, len(o.tail)-outputMax):]
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// lines returns the last lines that were written.
func (o *output) lines() []string {
	t := time.NewTimer(outputPatience)
	defer t.Stop()
	select {
	case <-o.done:
	case <-t.C:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines []string
	for line := range bytes.Lines(o.tail) {
		if text := message(strings.TrimRight(string(line), "\n")); text != "" {
			lines = append(lines, text)
		}
	}
	return lines
}

func (o *output) close() {
	o.r.Close()
	<-o.done
}
