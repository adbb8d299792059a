// Package scripts runs what a site wants run as root around a job: prolog, epilog, the
// plugins' hooks that belong to them, and UnkillableStepProgram. It also writes batch
// scripts.
//
// It does not decide when a job begins or ends, nor what becomes of a job whose prolog fails,
// and it kills no process that a script leaves behind: node does, with what Job.Leave returns.
//
// Begin with Runner.Prolog and Runner.Epilog; Job is the scripts' part of one job, with the
// environment that they get.
package scripts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api/stepapi"
	"stepd/internal/child"
	"stepd/internal/printable"
	"stepd/step"
)

// PrologError is why no step of a job may start: its prolog has failed.
type PrologError struct{ Err error }

func (e PrologError) Error() string { return "Job prolog failed: " + e.Err.Error() }
func (e PrologError) Unwrap() error { return e.Err }

// ErrStopping ends what noded cannot wait for when it stops; the next noded
// begins it again.
var ErrStopping = errors.New("noded is stopping")

// Tracker makes the places of scripts (node.Tracker).
type Tracker interface {
	// MakeScripts makes the place of a job's scripts, or finds it again. The caller closes
	// leaf; nil says that no process can be born there.
	MakeScripts(id step.ID) (leaf *os.File, err error)
	// AddStepd tracks a process that was not born in its place.
	AddStepd(id step.ID, pid int) error
}

// Runner runs the scripts of all jobs of a node. All fields are required, and none changes
// after the first call. Methods may be called from any goroutine.
type Runner struct {
	Config
	// The names are those in the scripts' environment; Cluster, Partition and SlurmConf may
	// be "".
	NodeName, Cluster, Partition, SlurmConf, Socket string

	// Spank is the plugin stack of a job that began with the one of that digest. `stepd spank`
	// calls its hooks: StepdPath with StepdEnv and, as standard error, what StepdLog returns.
	Spank     func(digest string) step.SpankConf
	StepdPath string
	StepdEnv  []string
	StepdLog  func() (*child.Stderr, *os.File, error)
	// Quarantined are the plugins to leave out; CountCrashes gets those that have crashed, and
	// which hooks were called.
	Quarantined  func() []step.Quarantine
	CountCrashes func(crashed []step.PluginCrash, called func(hook string) bool)

	Tracker Tracker
	// Control returns the job control environment of a job.
	Control func(job uint32) ([][]byte, error)
	// Started is called with each program of a job's that runs, in its place.
	Started func(job uint32, pid int)
	// Drain drains the node: a script has failed.
	Drain func(reason string)
	// Stopping is closed when noded stops; scripts are killed Linger later.
	Stopping <-chan struct{}
	Linger   time.Duration
	Log      *logrus.Logger

	one   sync.Mutex // held by the prolog or epilog that runs, where they are serial
	hooks stackHooks
	count count
}

// stackHooks remembers which hooks the plugin stack has: a stack without
// job_prolog and job_epilog, as most are, then costs a job nothing.
type stackHooks struct {
	mu    sync.Mutex
	id    string   // guarded by mu
	hooks []string // guarded by mu
}

// count counts the prologs that run.
type count struct {
	mu      sync.Mutex
	running int           // guarded by mu
	none    chan struct{} // guarded by mu; closed when none runs any more
}

// begin counts one, until end is called.
func (c *count) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running++; c.running == 1 {
		c.none = make(chan struct{})
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running--; c.running == 0 {
			close(c.none)
		}
	}
}

// Prologs returns how many jobs' prologs run; over is closed when none does any more, and nil
// where none runs. A reload of noded waits for that, since a prolog that noded's stop
// interrupts costs its step.
func (r *Runner) Prologs() (running int, over <-chan struct{}) {
	r.count.mu.Lock()
	defer r.count.mu.Unlock()
	if r.count.running == 0 {
		return 0, nil
	}
	return r.count.running, r.count.none
}

// LearnStack notes which hooks the plugin stack has that StackID named before it was loaded.
func (r *Runner) LearnStack(id string, hooks []string) {
	r.hooks.mu.Lock()
	defer r.hooks.mu.Unlock()
	r.hooks.id, r.hooks.hooks = id, hooks
}

// hasHook reports whether a plugin of the job's stack may have to be called, and what the stack's
// name was then.
func (r *Runner) hasHook(j *Job, hook string) (may bool, id string) {
	id, digest, err := r.StackID()
	if err != nil || j.stack != "" && j.stack != digest {
		return true, "" // loading the job's own stack tells
	}
	if id == "" {
		return false, ""
	}
	r.hooks.mu.Lock()
	defer r.hooks.mu.Unlock()
	// A plugin's own init() and fini() are called in every context.
	needed := func(h string) bool { return h == hook || !strings.HasPrefix(h, "slurm_spank_") }
	return r.hooks.id != id || slices.ContainsFunc(r.hooks.hooks, needed), id
}

// owes reports whether anything is to be run.
func (r *Runner) owes(j *Job, k kind) bool {
	if len(r.patterns(k)) > 0 {
		return true
	}
	may, _ := r.hasHook(j, k.hook)
	return may
}

// OwesEpilog reports whether the end of the job has anything to run.
func (r *Runner) OwesEpilog(j *Job) bool { return r.owes(j, epilog()) }

// AwaitsProlog reports whether a step of the job has to run the prolog, or to
// wait for it. Where nothing is to be run now, nothing will be for this job.
func (r *Runner) AwaitsProlog(j *Job) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state == waiting && !r.owes(j, prolog()) {
		_ = j.moveLocked(passed, nil) // a legal move
	}
	return j.state != passed
}

// Prolog runs the job's prolog, once, for the first caller; others wait for its end. A failure
// is every step's, and drains the node: the error is a PrologError then, and ErrStopping where
// noded stops. The first caller's ended is called before the others go on.
func (r *Runner) Prolog(j *Job, f Facts, ended func(error)) error {
	if !j.begin() {
		<-j.ended // bounded as the scripts are, and by noded's stop
		return j.err
	}
	over := r.count.begin()
	err := r.run(j, f, prolog(), nil, step.Running)
	if err != nil && !errors.Is(err, ErrStopping) {
		r.Drain(fmt.Sprintf("%s: job %d: %v", prolog().title, j.id, err))
		err = PrologError{err}
	}
	ended(err)
	over()
	return j.end(err)
}

// Epilog runs the epilog of a job whose steps have ended; a failure drains the node. It
// returns false where noded stops before the epilog's end: then the next noded runs it again.
func (r *Runner) Epilog(j *Job, f Facts, end End) bool {
	j.note(func() { j.epilog = true })
	defer j.note(func() { j.epilog = false })
	err := r.run(j, f, epilog(), end.env(), cmp.Or(end.State, step.Completed))
	if errors.Is(err, ErrStopping) {
		return false
	}
	if err != nil {
		r.Drain(fmt.Sprintf("%s: job %d: %v", epilog().title, j.id, err))
	}
	return true
}

// run calls the plugins' hook and then runs the programs, whatever the result of the hook.
// The prolog ends with the first program that fails; of the epilog all programs are run, since
// each cleans up something. The error names all that failed, on one line: it is the reason of
// steps and of the node.
func (r *Runner) run(j *Job, f Facts, k kind, more []string, state step.State) error {
	if r.Serial {
		r.one.Lock()
		defer r.one.Unlock()
	}
	select {
	case <-r.Stopping:
		return ErrStopping
	default:
	}
	ctx, cancel := r.untilStopped()
	defer cancel()
	log := r.Log.WithField("job", j.id)
	control, err := r.Control(j.id)
	if err != nil {
		return err
	}
	env := r.scriptEnv(j, f, k, control, more)
	begin := time.Now()
	var errs []error
	if may, stack := r.hasHook(j, k.hook); may {
		errs = append(errs, r.callPlugins(ctx, j, f, k, env, control, stack, state))
	}
	paths, err := r.paths(k)
	errs = append(errs, err)
	short := passable(env, log)
	for _, path := range paths {
		err := r.runScript(ctx, j, path, short, log)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", k.name, path, err))
		}
		if ctx.Err() != nil || (err != nil && k.name == "prolog") {
			break
		}
	}
	if ctx.Err() != nil {
		log.Infof("the %s was interrupted: %s", k.name, k.interrupted)
		return ErrStopping
	}
	log.Debugf("%s took %v", k.name, time.Since(begin))
	return printable.JoinErrors(errs...)
}

// untilStopped is a context that ends Linger after noded began to stop.
func (r *Runner) untilStopped() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { // ends with ctx
		select {
		case <-r.Stopping:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(r.Linger):
			cancel(ErrStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// bounded is ctx with PrologEpilogTimeout.
func (r *Runner) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("did not end within %v (PrologEpilogTimeout)", r.Timeout))
}

// runScript runs one of the site's programs.
func (r *Runner) runScript(ctx context.Context, j *Job, path string, env []string, log *logrus.Entry) error {
	if err := r.checkProgram(path); err != nil {
		return fmt.Errorf("cannot run it: %w", err)
	}
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	return r.runProgram(ctx, j, path, env, log)
}

// runProgram runs one program of the site's in the job's place, until ctx ends.
func (r *Runner) runProgram(ctx context.Context, j *Job, path string, env []string, log *logrus.Entry) error {
	out, theirs, err := newOutput()
	if err != nil {
		return err
	}
	err = r.runChild(ctx, j, child.Program{Path: path, Argv: []string{path}, Env: env, Files: []*os.File{nil, theirs, theirs}})
	theirs.Close()
	lines := out.lines()
	j.note(func() { j.outputs = append(j.outputs, out) }) // what the program has left running may go on writing
	for _, line := range lines {
		if err != nil {
			log.Infof("%s: %s", path, line) // the error has the last one
		} else {
			log.Debugf("%s: %s", path, line)
		}
	}
	if err != nil && len(lines) > 0 {
		err = fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return err
}

// runChild runs the child to its end, in a session of its own and in the job's
// place. When ctx ends first, its process group is killed, and the error is
// ctx's cause.
func (r *Runner) runChild(ctx context.Context, j *Job, c child.Program) error {
	leaf, err := r.Tracker.MakeScripts(j.Place())
	if err != nil {
		return err
	}
	j.note(func() { j.placed = true }) // whether a program can be run in it or not
	if leaf != nil {
		defer leaf.Close()
	}
	c.Leaf, c.Dir = leaf, r.Dir
	c.Dir = cmp.Or(c.Dir, "/")
	p, err := c.Start()
	if err != nil {
		return fmt.Errorf("cannot run %q: %w", c.Path, err)
	}
	defer p.Close()
	j.note(func() { j.ran = append(j.ran, step.Record{ID: j.Place(), StepdPID: p.PID, StepdStart: p.Start}) })
	if leaf == nil {
		if err := r.Tracker.AddStepd(j.Place(), p.PID); err != nil {
			r.Log.WithField("job", j.id).Errorf("%v", err)
		}
	}
	r.Started(j.id, p.PID)
	return p.Run(ctx)
}

// callPlugins runs `stepd spank prolog|epilog`: the plugins' hook, in a process
// of its own.
func (r *Runner) callPlugins(ctx context.Context, j *Job, f Facts, k kind, env []string, control [][]byte, stack string, state step.State) error {
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	doc := stepapi.JobScript{
		Schema: step.Schema, Job: f.Job, State: state, Env: make([][]byte, len(env)), JobControl: control,
	}
	doc.Job.Spank = r.Spank(j.stack)
	doc.Job.Spank.Quarantined = r.Quarantined()
	for i, e := range env {
		doc.Env[i] = []byte(e)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("cannot encode job %d for its plugins: %w", j.id, err)
	}
	mem, err := stepapi.SealedMemfd("job", text)
	if err != nil {
		return err
	}
	defer mem.Close()
	words, stderr, err := r.StepdLog()
	if err != nil {
		return err
	}
	if words != nil {
		defer stderr.Close()
		defer words.Close()
		defer words.Finish() // its last words may not have been read
	}
	answer, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make a pipe for stepd's answer: %w", err)
	}
	defer answer.Close()
	err = r.runChild(ctx, j, child.Program{
		Path: r.StepdPath, Argv: []string{"stepd", "spank", k.name}, Env: r.StepdEnv,
		Files: []*os.File{nil, theirs, stderr, mem},
	})
	theirs.Close()
	res, rerr := readResult(answer)
	if rerr == nil {
		r.CountCrashes(res.Crashes, func(hook string) bool { return hook == k.hook })
		if res.Hooks != nil && stack != "" {
			r.LearnStack(stack, res.Hooks)
		}
	}
	switch {
	case err == nil && rerr == nil:
		return nil
	case res != nil && res.Failure != "":
		return errors.New(child.Message(res.Failure))
	case err == nil:
		return rerr
	}
	return fmt.Errorf("`stepd spank %s`: %w", k.name, err)
}

// resultMax bounds stepd's answer: it names plugins and hooks.
const resultMax = 1 << 20

// readResult reads what stepd has written before it ended. No other
// process has the pipe's other end.
func readResult(from io.Reader) (*stepapi.JobScriptResult, error) {
	b, err := io.ReadAll(io.LimitReader(from, resultMax))
	if err != nil {
		return nil, fmt.Errorf("cannot read stepd's answer: %w", err)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, errors.New("stepd gave no answer")
	}
	res := new(stepapi.JobScriptResult)
	if err := json.Unmarshal(b, res); err != nil {
		return nil, fmt.Errorf("cannot parse stepd's answer: %w", err)
	}
	return res, nil
}

// unkillableMax bounds UnkillableStepProgram, as Slurm does.
const unkillableMax = 5 * time.Minute

// Unkillable runs the site's UnkillableStepProgram, as root in the place of the job's scripts,
// for a step that has processes left; text describes them. The log has its failure.
func (r *Runner) Unkillable(j *Job, f Facts, program string, left *step.Record, text string) {
	log := r.Log.WithField("step", left.ID.Name())
	ctx, cancel := r.untilStopped()
	defer cancel()
	ctx, stop := context.WithTimeoutCause(ctx, unkillableMax, fmt.Errorf("did not end within %v", unkillableMax))
	defer stop()
	begin := time.Now()
	if err := r.runProgram(ctx, j, program, r.unkillableEnv(j, f, left, text), log); err != nil {
		log.Errorf("UnkillableStepProgram %q: %v", program, err)
		return
	}
	log.Infof("UnkillableStepProgram took %v", time.Since(begin).Round(time.Millisecond))
}

// output takes what a program writes: the last of it is kept for messages. A
// process that the program has left running may go on writing.
type output struct {
	r    *os.File
	done chan struct{} // closed at the end of file

	mu   sync.Mutex
	tail []byte // guarded by mu
}

const (
	// outputMax is how much of a program's output is kept, in bytes.
	outputMax = 4 << 10
	// outputPatience is how long the rest of the output is waited for when a
	// program has ended and another process holds its other end.
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
	buf := make([]byte, 16*outputMax) // a program that prints a lot must not keep noded busy
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
	select {
	case <-o.done:
	case <-time.After(outputPatience):
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
