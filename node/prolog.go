package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api/stepapi"
	"stepd/node/child"
	"stepd/step"
)

// prologExitCode is the exit code of a step whose job's prolog has failed, as
// measured with srun (spank-behaviour §5).
const prologExitCode = 182

// errProlog says that a job's prolog has failed: no step of it may start.
type errProlog struct{ cause error }

func (e errProlog) Error() string { return "Job prolog failed: " + e.cause.Error() }
func (e errProlog) Unwrap() error { return e.cause }

// errStopping ends what noded cannot wait for when it stops; the next noded
// begins it again.
var errStopping = errors.New("noded is stopping")

// prologOf is where a job's prolog stands. The zero value has not begun.
type prologOf struct {
	end chan struct{} // closed at its end; nil before it was begun
	err error         // valid when end is closed
}

// prologs counts the prologs that run.
type prologs struct {
	mu      sync.Mutex
	running int           // guarded by mu
	none    chan struct{} // guarded by mu; closed when none runs any more
}

// begin counts one, until end is called.
func (p *prologs) begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running++; p.running == 1 {
		p.none = make(chan struct{})
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.running--; p.running == 0 {
			close(p.none)
		}
	}
}

// Prologs returns how many jobs' prologs run; over is closed when none does any more. What
// is to begin anew waits for that, for a prolog that noded's stop interrupts costs its
// step. nil where none runs.
func (n *Node) Prologs() (running int, over <-chan struct{}) {
	n.prologs.mu.Lock()
	defer n.prologs.mu.Unlock()
	if n.prologs.running == 0 {
		return 0, nil
	}
	return n.prologs.running, n.prologs.none
}

// PrologMax is how long a prolog may run (PrologEpilogTimeout); 0 is for ever.
func (n *Node) PrologMax() time.Duration { return n.cfg.Scripts.Timeout }

// awaitsProlog reports whether a step of the job has to run the prolog, or to
// wait for it. Where nothing is to be run now, nothing will be for this job.
func (n *Node) awaitsProlog(j *job) bool {
	j.scripts.Lock()
	defer j.scripts.Unlock()
	if j.prolog.end == nil && (j.Prologued || !n.owed(prologKind())) {
		j.prolog.end = make(chan struct{})
		close(j.prolog.end)
	}
	if j.prolog.end == nil {
		return true
	}
	select {
	case <-j.prolog.end:
		return j.prolog.err != nil
	default:
		return true
	}
}

// runProlog runs the job's prolog, once, for the first caller; others wait
// for its end. A failure is every step's, drains the node, and ends an allocation.
func (n *Node) runProlog(j *job) error {
	j.scripts.Lock()
	first := j.prolog.end == nil
	if first {
		j.prolog.end = make(chan struct{})
	}
	j.scripts.Unlock()
	if !first {
		<-j.prolog.end // bounded as the scripts are, and by noded's stop
		return j.prolog.err
	}
	defer close(j.prolog.end)
	defer n.prologs.begin()()
	err := n.runScripts(j, prologKind(), nil)
	switch {
	case errors.Is(err, errStopping):
		j.prolog.err = err
	case err != nil:
		j.prolog.err = errProlog{err}
		n.drainSelf(fmt.Sprintf("%s: job %d: %v", prologKind().title, j.ID, err))
		if j.Origin == step.OriginAlloc {
			n.endAlloc(j, j.prolog.err.Error())
		}
	case j.Origin == step.OriginAlloc:
		// Its next step may come after a restart.
		if err := n.store.SetPrologued(j.ID); err != nil {
			n.log.WithField("job", j.ID).Errorf("%v: it is tried again", err)
		}
	}
	return j.prolog.err
}

// runEpilog runs the epilog of a job whose steps have ended. It returns false
// where noded stops before its end: then the next one runs it.
func (n *Node) runEpilog(j *job) bool {
	err := n.runScripts(j, epilogKind(), n.jobEnd(j))
	if errors.Is(err, errStopping) {
		return false
	}
	if err != nil {
		n.drainSelf(fmt.Sprintf("%s: job %d: %v", epilogKind().title, j.ID, err))
	}
	return true
}

// runScripts runs the plugins' hook and then the programs, the latter whatever
// the former came to. Of the prolog's programs the first failure is the last;
// the epilog's are all run, for each cleans up something. The error says all
// that failed, on one line: it is the reason of steps and of the node.
func (n *Node) runScripts(j *job, k scriptKind, more []string) error {
	if n.cfg.Scripts.Serial {
		n.oneScript.Lock()
		defer n.oneScript.Unlock()
	}
	select {
	case <-n.stopping:
		return errStopping
	default:
	}
	ctx, cancel := n.untilStopped()
	defer cancel()
	log := n.log.WithField("job", j.ID)
	control, err := n.store.JobControl(j.ID)
	if err != nil {
		return err
	}
	env := n.scriptEnv(&j.Job, k, control, more)
	begin := time.Now()
	var errs []error
	if may, id := n.hasHook(k.hook); may {
		errs = append(errs, n.runPlugins(ctx, j, k, env, control, id))
	}
	paths, err := n.cfg.Scripts.paths(k)
	errs = append(errs, err)
	short := passable(env, log)
	for _, path := range paths {
		err := n.runScript(ctx, j, path, short, log)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", k.name, path, err))
		}
		if ctx.Err() != nil || (err != nil && k.name == "prolog") {
			break
		}
	}
	if ctx.Err() != nil {
		log.Infof("the %s was interrupted: %s", k.name, k.interrupted)
		return errStopping
	}
	log.Debugf("%s took %v", k.name, time.Since(begin))
	return step.JoinErrors(errs...)
}

// untilStopped is a context that ends stopLinger after noded began to stop.
func (n *Node) untilStopped() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { // ends with ctx
		select {
		case <-n.stopping:
		case <-ctx.Done():
			return
		}
		t := time.NewTimer(stopLinger)
		defer t.Stop()
		select {
		case <-t.C:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// bounded is ctx with PrologEpilogTimeout.
func (n *Node) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := n.cfg.Scripts.Timeout
	if limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("did not end within %v (PrologEpilogTimeout)", limit))
}

// runScript runs one of the site's programs.
func (n *Node) runScript(ctx context.Context, j *job, path string, env []string, log *logrus.Entry) error {
	if err := n.cfg.Scripts.checkScript(path); err != nil {
		return fmt.Errorf("cannot run it: %w", err)
	}
	ctx, cancel := n.bounded(ctx)
	defer cancel()
	return n.runProgram(ctx, j, path, env, log)
}

// runProgram runs one program of the site's in the job's place, until ctx ends.
func (n *Node) runProgram(ctx context.Context, j *job, path string, env []string, log *logrus.Entry) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	out, theirs, err := newOutput()
	if err != nil {
		return err
	}
	err = n.runChild(ctx, j, program{path: path, argv: []string{path}, env: env, files: []*os.File{null, theirs, theirs}})
	theirs.Close()
	lines := out.lines()
	j.addOutput(out)
	for _, line := range lines {
		if err != nil {
			log.Warnf("%s: %s", path, line)
		} else {
			log.Debugf("%s: %s", path, line)
		}
	}
	if err != nil && len(lines) > 0 {
		err = fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return err
}

// runPlugins runs `stepd spank prolog|epilog`: the plugins' hook, in a process
// of its own.
func (n *Node) runPlugins(ctx context.Context, j *job, k scriptKind, env []string, control [][]byte, id string) error {
	ctx, cancel := n.bounded(ctx)
	defer cancel()
	spank := n.cfg.Spank
	spank.Quarantined = n.quarantined()
	doc, err := json.Marshal(step.JobScript{
		Schema: step.Schema, JobID: j.ID, User: step.User{Name: j.User, UID: j.UID, GID: j.GID}, NodeName: n.cfg.NodeName,
		Spank: spank, Env: asBytes(env), JobControl: control,
	})
	if err != nil {
		return fmt.Errorf("cannot encode job %d for its plugins: %w", j.ID, err)
	}
	mem, err := stepapi.SealedMemfd("job", doc)
	if err != nil {
		return err
	}
	defer mem.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	said, stderr, err := n.stepdLog()
	if err != nil {
		return err
	}
	if said != nil {
		defer stderr.Close()
		defer said.Close()
		defer said.Finish() // its last words may not have been read
	}
	answer, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make a pipe for stepd's answer: %w", err)
	}
	defer answer.Close()
	err = n.runChild(ctx, j, program{
		path: n.cfg.StepdPath, argv: []string{"stepd", "spank", k.name}, env: n.stepdEnv(),
		files: []*os.File{null, theirs, stderr, mem},
	})
	theirs.Close()
	res, rerr := readScriptResult(answer)
	if rerr == nil {
		n.countCrashes(res.Crashes, func(hook string) bool { return hook == k.hook })
		if res.Hooks != nil {
			n.hooks.learn(id, res.Hooks)
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

// scriptResultMax bounds stepd's answer: it names plugins and hooks.
const scriptResultMax = 1 << 20

// readScriptResult reads what stepd has written before it ended. No other
// process has the pipe's other end.
func readScriptResult(r io.Reader) (*step.JobScriptResult, error) {
	b, err := io.ReadAll(io.LimitReader(r, scriptResultMax))
	if err != nil {
		return nil, fmt.Errorf("cannot read stepd's answer: %w", err)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, errors.New("stepd gave no answer")
	}
	res := new(step.JobScriptResult)
	if err := json.Unmarshal(b, res); err != nil {
		return nil, fmt.Errorf("cannot parse stepd's answer: %w", err)
	}
	return res, nil
}
