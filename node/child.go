package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"stepd/node/child"
	"stepd/step"
)

// program is a program that noded runs for a job, in the job's own place.
type program struct {
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
func (n *Node) runChild(ctx context.Context, j *job, c program) error {
	leaf, err := n.cfg.Tracker.MakeScripts(scriptsID(j.ID))
	if err != nil {
		return err
	}
	j.placeScripts()
	if leaf != nil {
		defer leaf.Close()
	}
	dir := n.cfg.Scripts.Dir
	if dir == "" {
		dir = "/"
	}
	p, err := child.Program{Path: c.path, Argv: c.argv, Env: c.env, Dir: dir, Files: c.files, Leaf: leaf}.Start()
	if err != nil {
		return fmt.Errorf("cannot run %q: %w", c.path, err)
	}
	defer p.Close()
	j.addScript(p)
	if leaf == nil {
		if err := n.cfg.Tracker.AddStepd(scriptsID(j.ID), p.PID); err != nil {
			n.log.WithField("job", j.ID).Errorf("%v", err)
		}
	}
	return p.Run(ctx)
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
		if text := child.Message(strings.TrimRight(string(line), "\n")); text != "" {
			lines = append(lines, text)
		}
	}
	return lines
}

func (o *output) close() {
	o.r.Close()
	<-o.done
}
