package scripts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

// state is where a job's prolog stands.
type state string

// The states of a job's prolog.
const (
	waiting state = "waiting" // for the job's first step
	running state = "running"
	passed  state = "passed" // it has succeeded, or the job has none to run
	failed  state = "failed" // no step of the job may start
)

// moves are the legal changes of a state.
var moves = map[state][]state{waiting: {running, passed}, running: {passed, failed}}

// Job is what scripts have, and leave, in one job: where its prolog stands, the processes
// that were started, and the pipes that their children may still write to. Make it with
// NewJob.
type Job struct {
	id    uint32
	stack string        // the digest of its plugin stack; "" is not known
	ended chan struct{} // closed when the prolog has passed or failed

	mu      sync.Mutex
	state   state         // guarded by mu
	err     error         // why the prolog has failed; does not change when ended is closed
	ran     []step.Record // guarded by mu: the processes, as a Tracker wants them
	outputs []*output     // guarded by mu
	placed  bool          // guarded by mu: the scripts have a place, which is to be removed
	epilog  bool          // guarded by mu: the epilog runs
}

// NewJob returns the scripts' part of a job whose prolog has not begun; stack is the digest of
// the plugin stack with which the job began, "" is not known.
func NewJob(id uint32, stack string) *Job {
	return &Job{id: id, stack: stack, state: waiting, ended: make(chan struct{})}
}

// Place is the place of the job's scripts: what they leave behind lives as long as the job.
func (j *Job) Place() step.ID { return step.ID{Job: j.id, Step: PlaceID} }

// Skip notes that the prolog of a job of an earlier noded has run, or is not to run any more.
func (j *Job) Skip() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.moveLocked(passed, nil)
}

// moveLocked changes the state; err is why the prolog has failed.
func (j *Job) moveLocked(to state, err error) error {
	if !slices.Contains(moves[j.state], to) {
		return fmt.Errorf("internal error: the prolog of job %d is %s and cannot become %s", j.id, j.state, to)
	}
	j.state, j.err = to, err
	if to == passed || to == failed {
		close(j.ended)
	}
	return nil
}

// begin reports whether the caller is to run the prolog; other callers wait for ended.
func (j *Job) begin() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.moveLocked(running, nil) == nil
}

// Doing is "prolog" or "epilog" while that runs, else "".
func (j *Job) Doing() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.state == running:
		return prolog().name
	case j.epilog:
		return epilog().name
	}
	return ""
}

// end ends the prolog that begin has begun.
func (j *Job) end(err error) error {
	to := passed
	if err != nil {
		to = failed
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if illegal := j.moveLocked(to, err); illegal != nil {
		return illegal
	}
	return err
}

// note records what the scripts have made, or left.
func (j *Job) note(made func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	made()
}

// Leave hands over what the scripts have left: the records of the places that the caller has
// to end, one for all processes or one for each, and a function that closes their outputs
// afterwards. No script has run where places is empty.
func (j *Job) Leave() (places []step.Record, closeOutputs func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ran, outputs, placed := j.ran, j.outputs, j.placed
	j.ran, j.outputs, j.placed = nil, nil, false
	if placed {
		places = append(ran, step.Record{ID: j.Place()})
	}
	return places, func() {
		for _, o := range outputs {
			o.close()
		}
	}
}

// PlaceID is the step number under which a job's prolog and epilog have a place beside
// its steps (SLURM_PENDING_STEP, which no step has). It is never shown.
const PlaceID uint32 = 4294967293

// WriteBatch makes a batch script: a file of root's that user alone may read and execute, so that a
// job changes neither what it runs nor what Epilog reads. On a file system without access control
// lists the file is the user's. A file of that name, left by an earlier noded, is replaced.
func WriteBatch(dir, name string, content []byte, user step.User) error {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(d)
	if err := unix.Unlinkat(d, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	fd, err := unix.Openat(d, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o700)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(content)
	if err == nil {
		// Last: until then only root can open it.
		const read, write, execute = linux.MayRead, linux.MayWrite, linux.MayExecute
		err = linux.GrantUser(f, read|write|execute, user.UID, read|execute)
	}
	err = errors.Join(err, f.Close())
	// No fork of ours may keep the file open that was closed before: the user's execve of it
	// would fail with ETXTBSY. A fork has the lock until it has called exec. The file is not
	// written under the lock, because a disk that hangs would keep noded from forking.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return err
}

// Config is what the site's files say about prolog and epilog. The zero value runs nothing.
type Config struct {
	// Prolog and Epilog are programs or glob patterns (slurm.conf), in order.
	Prolog, Epilog []string
	// AtAlloc runs the prolog of an allocation when it is made, and not with
	// its first step (PrologFlags=Alloc).
	AtAlloc bool
	// NoHold answers such an allocation at once: its steps wait for the prolog
	// (PrologFlags=NoHold).
	NoHold bool
	// Serial runs them one at a time on the node (PrologFlags=Serial).
	Serial bool
	// Timeout bounds each of them (PrologEpilogTimeout); 0 is no bound.
	Timeout time.Duration
	// Dir is their working directory; "" is /.
	Dir string
	// Unsafe returns why a program is not root's alone; a nil function trusts every program.
	Unsafe func(path string) error
	// StackID names the plugin stack as it is now: the text changes with the
	// stack and with the plugins' files, and is "" for a stack without plugins. digest is of
	// the stack's files alone. Required.
	StackID func() (id, digest string, err error)
}

// kind is prolog or epilog.
type kind struct {
	name    string // the word of `stepd spank` and of messages
	title   string // begins the reason of a drain, in Slurm's words
	hook    string
	context string // SLURM_SCRIPT_CONTEXT
	// interrupted is what becomes of the job when noded's stop ends it early.
	interrupted string
}

func prolog() kind {
	return kind{"prolog", "Prolog error", "slurm_spank_job_prolog", "prolog_slurmd",
		"the next noded ends its step, and a batch job as NODE_FAIL"}
}

func epilog() kind {
	return kind{"epilog", "Epilog error", "slurm_spank_job_epilog", "epilog_slurmd", "the next noded runs it again"}
}

// IsHook reports whether a plugin's hook is called with prolog or epilog, and not by a step.
func IsHook(hook string) bool { return hook == prolog().hook || hook == epilog().hook }

func (c *Config) patterns(k kind) []string {
	if k.name == "prolog" {
		return c.Prolog
	}
	return c.Epilog
}

// paths expands the patterns; the paths of one pattern are sorted by name. A path without
// a pattern is returned even if it is missing: running it fails then.
func (c *Config) paths(k kind) ([]string, error) {
	var paths []string
	for _, pattern := range c.patterns(k) {
		if !strings.ContainsAny(pattern, `*?[\`) {
			paths = append(paths, pattern)
			continue
		}
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("cannot use pattern %q: %w", pattern, err)
		}
		slices.Sort(found)
		paths = append(paths, found...)
	}
	return paths, nil
}

// Check returns what is wrong with the programs that are named, for the log at the start: a
// job that runs such a program drains the node.
func (c *Config) Check() error {
	var errs []error
	for _, k := range []kind{prolog(), epilog()} {
		paths, err := c.paths(k)
		errs = append(errs, err)
		for _, p := range paths {
			if err := c.checkProgram(p); err != nil {
				errs = append(errs, fmt.Errorf("cannot run %s %q: %w", k.name, p, err))
			}
		}
	}
	return errors.Join(errs...)
}

// checkProgram refuses a path that is no program, and a program that users other than root
// may change: it is run as root.
func (c *Config) checkProgram(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		if e, ok := errors.AsType[*os.PathError](err); ok {
			return e.Err // the caller names the path
		}
		return err
	case !st.Mode().IsRegular() || st.Mode()&0o111 == 0:
		return errors.New("it is no executable file")
	case c.Unsafe != nil:
		return c.Unsafe(path)
	}
	return nil
}

// Facts are what the scripts are told about a job.
type Facts struct {
	// Job has the job's own fields of a step, as far as its record has them, and the site.
	Job     step.Spec
	GresEnv []string // the variables of its generic resources
	// Stdin and Stdout are a batch job's patterns; "" for other jobs.
	Stdin, Stdout string
}

// End is how a job has ended, as its epilog is told: raw wait statuses.
type End struct {
	Exit    step.ExitStatus // of the step that the job was made for
	State   step.State      // the same step's; "" of an allocation
	Derived step.ExitStatus // the highest of all other steps
}

func (e End) env() []string {
	code, signal := 0, 0
	if c, s := e.Exit.CodeAndSignal(); s != nil {
		signal = *s
	} else {
		code = *c
	}
	return []string{
		fmt.Sprintf("SLURM_JOB_DERIVED_EC=%d", e.Derived),
		fmt.Sprintf("SLURM_JOB_EXIT_CODE=%d", e.Exit),
		fmt.Sprintf("SLURM_JOB_EXIT_CODE2=%d:%d", code, signal),
	}
}

// nodeEnv are the variables of the node and of the job's user. Nothing in them comes from a
// user but names and numbers that the node has checked.
func (r *Runner) nodeEnv(j *Job, f Facts) []string {
	id := strconv.FormatUint(uint64(j.id), 10)
	env := []string{
		"SLURMD_NODENAME=" + r.NodeName,
		"NODED_SOCKET=" + r.Socket,
		"SLURM_CLUSTER_NAME=" + r.Cluster,
		"SLURM_JOB_ID=" + id,
		"SLURM_JOBID=" + id,
		fmt.Sprintf("SLURM_JOB_UID=%d", f.Job.User.UID),
		fmt.Sprintf("SLURM_JOB_GID=%d", f.Job.User.GID),
		"SLURM_JOB_USER=" + f.Job.User.Name,
	}
	if r.SlurmConf != "" {
		env = append(env, "SLURM_CONF="+r.SlurmConf)
	}
	return env
}

// scriptEnv is the environment of prolog and epilog (spank-behaviour §4):
// Slurm's variables of the job, and the job control environment, every variable of it
// prefixed. Nothing else in it comes from a user, and it has no PATH.
func (r *Runner) scriptEnv(j *Job, f Facts, k kind, control [][]byte, more []string) []string {
	env := make([]string, 0, len(control)+28)
	for _, e := range control {
		env = append(env, scriptEnvPrefix+string(e))
	}
	cpus := 0
	if list, err := step.ParseCPUList(f.Job.JobCPUs); err == nil { // noded has written it
		cpus = len(list)
	}
	env = append(env, r.nodeEnv(j, f)...)
	env = append(env,
		"SLURM_JOB_WORK_DIR="+f.Job.Cwd,
		fmt.Sprintf("SLURM_UID=%d", f.Job.User.UID),
		"SLURM_NODELIST="+r.NodeName,
		"SLURM_SCRIPT_CONTEXT="+k.context,
	)
	env = append(env, more...)
	env = append(env, f.GresEnv...)
	env = append(env,
		fmt.Sprintf("SLURM_JOB_CPUS_PER_NODE=%d", cpus),
		fmt.Sprintf("SLURM_JOB_NTASKS=%d", f.Job.JobNTasks),
		"SLURM_JOB_NUM_NODES=1",
		"SLURM_JOB_PARTITION="+r.Partition,
		fmt.Sprintf("SLURM_JOB_RESTART_COUNT=%d", f.Job.RestartCount),
	)
	env = append(env, f.Job.Array.Env()...)
	if f.Stdin != "" {
		env = append(env, "SLURM_JOB_STDIN="+f.Stdin)
	}
	if f.Stdout != "" {
		env = append(env, "SLURM_JOB_STDOUT="+f.Stdout)
	}
	return env
}

// unkillableEnv is the environment of UnkillableStepProgram.
func (r *Runner) unkillableEnv(j *Job, f Facts, left *step.Record, text string) []string {
	id := strconv.FormatUint(uint64(left.ID.Step), 10)
	pids := make([]string, len(left.Survivors))
	for i, s := range left.Survivors {
		pids[i] = fmt.Sprint(s.PID)
	}
	return append(r.nodeEnv(j, f),
		"PATH="+step.SafePath,
		"SLURM_STEP_ID="+id,
		"SLURM_STEPID="+id,
		"STEPD_UNKILLABLE="+text,
		"STEPD_UNKILLABLE_PIDS="+strings.Join(pids, " "),
	)
}

// userEnvMax bounds the job control environment of a program, in bytes with
// its pointers: execve(2) takes a quarter of the stack's limit for all, and what
// a user has sent must not make the site's programs fail.
const userEnvMax = 1 << 20

// passable leaves out the variables that the kernel gives no program: the plugins have them
// in any case, because no program is exec'd with theirs.
func passable(env []string, log *logrus.Entry) []string {
	out := make([]string, 0, len(env))
	size, over := 0, 0
	for _, e := range env {
		if !strings.HasPrefix(e, scriptEnvPrefix) {
			out = append(out, e)
			continue
		}
		name, value, _ := strings.Cut(e, "=")
		if len(e) > step.VariableMax {
			log.Warnf("cannot pass %.80q to prolog and epilog: its value has %d bytes, and the kernel takes %d of a variable", name, len(value), step.VariableMax)
			continue
		}
		if size += len(e) + 16; size > userEnvMax {
			over++
			continue
		}
		out = append(out, e)
	}
	if over > 0 {
		log.Warnf("cannot pass %d variables of the job control environment to prolog and epilog: all of them have more than %d bytes", over, userEnvMax)
	}
	return out
}

// scriptEnvPrefix begins the variables by which prolog and epilog see the job control
// environment.
const scriptEnvPrefix = "SPANK_"
