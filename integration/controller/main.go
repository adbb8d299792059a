// Command controller plays the controller of a site that has its own queue and starts each
// step by itself: it gives jobs and steps their numbers, tells them their place in a job
// array and how often they have run, and takes their results. It reads orders, lines of
// JSON, and writes what becomes of them, lines of JSON. noded may go away and come back at
// any time. What it needs of stepd is the client of package api and the words of package
// step.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"stepd/api"
	"stepd/step"
)

// order is a line of the input: a step to launch or, with Cancel, one to end.
type order struct {
	Job   uint32   `json:"job"`
	Step  uint32   `json:"step"`
	Joins bool     `json:"joins"` // the job runs already
	UID   uint32   `json:"uid"`
	Argv  []string `json:"argv"`
	Cwd   string   `json:"cwd"`
	Out   string   `json:"out"` // a file name pattern
	// Array is the job's place in a job array, nil without one, and Restarts how often
	// the job has run before.
	Array    *step.ArrayTask `json:"array"`
	Restarts uint32          `json:"restarts"`
	Cancel   bool            `json:"cancel"`
}

// news is a line of the output.
type news struct {
	Event string     `json:"event"` // started, ended, or failed: an order that noded refuses
	Job   uint32     `json:"job"`
	Step  uint32     `json:"step"`
	State step.State `json:"state,omitempty"`
	// Exit is the highest exit code of the tasks, nil where none has one.
	Exit   *int   `json:"exit_code,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// controller carries orders out.
type controller struct {
	noded *api.Client

	mu  sync.Mutex // for out
	out *json.Encoder
}

// retry is how long the controller waits for a noded that is gone before it tries again.
const retry = 100 * time.Millisecond

func main() {
	c := &controller{noded: &api.Client{Socket: os.Args[1], Program: "controller 1.0"}, out: json.NewEncoder(os.Stdout)}
	var orders sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Fprintf(os.Stderr, "controller: cannot parse order %q: %v\n", lines.Bytes(), err)
			os.Exit(1)
		}
		orders.Go(func() { c.do(context.Background(), &o) })
	}
	orders.Wait()
}

// do carries out one order, and follows a launched step to its end.
func (c *controller) do(ctx context.Context, o *order) {
	if err := c.carryOut(ctx, o); err != nil {
		c.tell(news{Event: "failed", Job: o.Job, Step: o.Step, Reason: err.Error()})
	}
}

func (c *controller) carryOut(ctx context.Context, o *order) error {
	if o.Cancel {
		return c.persist(func() error {
			_, err := c.noded.Cancel(ctx, &api.CancelRequest{StepRef: o.ref(), Reason: "its controller ends it"})
			return err
		})
	}
	if err := c.persist(func() error { return c.launch(ctx, o) }); err != nil {
		return err
	}
	c.tell(news{Event: "started", Job: o.Job, Step: o.Step})
	return c.persist(func() error {
		records, err := c.noded.Wait(ctx, o.ref())
		if err != nil {
			return err
		}
		for _, r := range records {
			c.tell(news{Event: "ended", Job: o.Job, Step: o.Step, State: r.State, Exit: r.ExitCode, Reason: r.Reason})
		}
		return nil
	})
}

func (o *order) ref() api.StepRef { return api.StepRef{JobID: o.Job, StepID: &o.Step} }

// persist calls noded until it answers.
func (c *controller) persist(call func() error) error {
	for {
		err := call()
		if api.CodeOf(err) != api.Unavailable {
			return err
		}
		time.Sleep(retry)
	}
}

// launch starts the step. It may be called again: a noded that died before its answer may
// have started it, and the numbers are the controller's own.
func (c *controller) launch(ctx context.Context, o *order) error {
	known, err := c.noded.Show(ctx, o.ref())
	if code := api.CodeOf(err); code != api.OK && code != api.NotFound {
		return err
	}
	if len(known) > 0 && known[0].Restarts >= o.Restarts {
		return nil
	}
	request := &step.Request{
		Schema: step.Schema, Unattended: true, As: &step.Numbers{Job: o.Job, Step: &o.Step}, UID: &o.UID, Array: o.Array, RestartCount: o.Restarts,
		Name: o.Argv[0], Argv: o.Argv, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: o.Cwd, NTasks: 1, NNodes: 1, CPUsPerTask: 1,
		Stdin: step.Stream{Kind: step.StreamNull}, Stdout: step.Stream{Kind: step.StreamFile, Pattern: o.Out}, Stderr: step.Stream{Kind: step.StreamSame},
	}
	if o.Joins {
		request.Job = &o.Job
	}
	_, err = c.noded.Run(ctx, &api.RunRequest{Request: request})
	return err
}

// tell writes a line.
func (c *controller) tell(n news) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(n); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}
