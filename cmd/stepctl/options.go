package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"stepd/internal/printable"
	"stepd/step"
	"stepd/stepio"
)

// runOptions are the options of run: srun's letters and meanings.
type runOptions struct {
	ntasks, cpus          int
	nodes                 nodeOptions
	files                 commonFiles // what request has taken over
	name, chdir           string
	input, output, errors string
	label, unbuffered     bool
	pty                   bool
	detachKeys            string
	killOnBadExit         string
	quiet                 bool
	quitOnInterrupt       bool
	verbose               int
	mpi, export           string
	overcommit            bool
	uid, gid              string
	jobid                 uint32
	noNewPrivs            bool
	openMode              string
	acctgFreq             string
	place                 bindingOptions
	resources             resourceOptions
	programs              programOptions
	immediate             immediateOption
	dryRun, json          bool
	interactive           bool
	preserveEnv           bool
}

// bindJob binds what run, alloc and batch have in common.
func (o *runOptions) bindJob(c *cobra.Command) {
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	f.SortFlags = false
	f.IntVarP(&o.ntasks, "ntasks", "n", 1, "number of tasks")
	o.nodes.bind(c)
	f.IntVarP(&o.cpus, "cpus-per-task", "c", 1, "CPUs for each task")
	f.StringVarP(&o.name, "job-name", "J", "", "name of the job and step (default: the command's)")
	f.StringVarP(&o.chdir, "chdir", "D", "", "working directory (default: this one)")
	f.BoolVarP(&o.overcommit, "overcommit", "O", false, "more tasks than CPUs")
	o.resources.bind(c)
	f.StringVar(&o.uid, "uid", "", "as another user (root)")
	f.StringVar(&o.gid, "gid", "", "with another group (root)")
	f.BoolVarP(&o.quiet, "quiet", "Q", false, "no messages but errors")
	f.CountVarP(&o.verbose, "verbose", "v", "say more; may be repeated")
	o.place.bind(c)
	o.programs.bindJob(f)
	o.immediate.bind(f)
	bindLeft(f)
}

// bindOutput binds what run and batch have in common beyond that.
func (o *runOptions) bindOutput(c *cobra.Command, input, output string) {
	f := c.Flags()
	f.StringVarP(&o.input, "input", "i", input, "stdin: all, none, a rank, or a file name pattern")
	f.StringVarP(&o.output, "output", "o", output, "stdout: all, none, a rank, or a file name pattern")
	f.StringVarP(&o.errors, "error", "e", "", "stderr: as --output (default: as stdout goes)")
	f.StringVar(&o.openMode, "open-mode", "truncate", "output files: append or truncate")
	f.StringVar(&o.export, "export", "ALL", "environment: ALL, NONE, or NAME[=VALUE],...")
	o.programs.bindOutput(f)
	f.StringVar(&o.acctgFreq, "acctg-freq", "", "seconds between samples of what the tasks use: SECONDS or task=SECONDS, 0 for none")
	f.BoolVar(&o.noNewPrivs, "no-new-privs", false, "set no_new_privs for the tasks")
}

func (o *runOptions) bind(c *cobra.Command) {
	o.bindJob(c)
	o.bindOutput(c, "all", "all")
	f := c.Flags()
	f.BoolVarP(&o.label, "label", "l", false, "put the rank before each line of output")
	f.BoolVarP(&o.unbuffered, "unbuffered", "u", false, "pass output on as it comes, not by lines")
	f.BoolVar(&o.pty, "pty", false, "run task 0 in a terminal of its own, which outlives this command; the other tasks have /dev/null")
	f.StringVar(&o.detachKeys, "detach-keys", defaultDetachKeys, "with --pty: keys that leave the step running; none for none")
	f.StringVarP(&o.killOnBadExit, "kill-on-bad-exit", "K", "0", "end the step when a task exits non-zero")
	f.Lookup("kill-on-bad-exit").NoOptDefVal = "1"
	f.BoolVarP(&o.quitOnInterrupt, "quit-on-interrupt", "q", false, "one Ctrl-C ends the step")
	o.programs.bindStep(f)
	o.place.bindStep(c)
	f.StringVar(&o.mpi, "mpi", "", "kind of MPI (default $SLURM_MPI_TYPE, then MpiDefault of slurm.conf); list shows them")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be started, bound and limited, and start nothing")
	f.BoolVar(&o.json, "json", false, "with --dry-run: print it as one JSON document")
	f.BoolVar(&o.interactive, "interactive", false, "be the shell of a job of alloc: one task with all that the job has, which other steps may use too")
	f.BoolVarP(&o.preserveEnv, "preserve-env", "E", false, "leave SLURM_NTASKS, SLURM_NPROCS, SLURM_NNODES and SLURM_JOB_NUM_NODES as they are")
	f.Uint32Var(&o.jobid, "jobid", 0, "make the step one of this job (default $SLURM_JOB_ID)")
}

// fromJob takes the task count of the job that run is in, where none was given
// (srun(1), SLURM_NTASKS).
func (o *runOptions) fromJob(c *cobra.Command) error {
	v := os.Getenv("SLURM_NTASKS")
	if v == "" || os.Getenv("SLURM_JOB_ID") == "" || c.Flags().Changed("ntasks") || o.interactive {
		return nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return fmt.Errorf("SLURM_NTASKS=%q is no number of tasks (--ntasks overrules it)", v)
	}
	o.ntasks = n
	return nil
}

// requestKind tells the verbs' requests apart.
type requestKind int

const (
	stepOfJob  requestKind = iota // run
	allocation                    // alloc
	batchJob                      // batch
)

var nullStream = step.Stream{Kind: step.StreamNull}

// nameOf is the name of a step that was given none: its command's, without what no name
// may have.
func nameOf(command string) string {
	return printable.Line(filepath.Base(command), 0)
}

// request makes the request of the options; what it cannot mean is an error
// that names the option.
func (o *runOptions) request(kind requestKind, argv []string, p *plugins) (*step.Request, error) {
	umask := unix.Umask(0)
	unix.Umask(umask)
	r := &step.Request{
		Schema: step.Schema, Name: o.name, NTasks: o.ntasks, CPUsPerTask: o.cpus,
		Interactive: o.interactive, PreserveEnv: o.preserveEnv,
		Overcommit: o.overcommit, Argv: argv, Umask: uint32(umask), Label: o.label, MPI: o.mpi, NoNewPrivs: o.noNewPrivs,
	}
	if r.Name == "" {
		r.Name = nameOf(argv[0])
	}
	for _, set := range o.setters(kind, p.node) {
		if err := set(r); err != nil {
			return nil, err
		}
	}
	if err := o.setEnv(kind, r, p); err != nil {
		return nil, err
	}
	r.SpankOptions, r.JobControl = p.spankOptions(), p.control()
	r.SubmitHost, _ = os.Hostname()
	return r, nil
}

// setters put the options into a request for the node, each building on those before it.
func (o *runOptions) setters(kind requestKind, node string) (sets []func(*step.Request) error) {
	ofKind := func(set func(requestKind, *step.Request) error) func(*step.Request) error {
		return func(r *step.Request) error { return set(kind, r) }
	}
	sets = append(sets, o.setTasks, o.setIdentity, o.setPlace, o.setFlags, ofKind(o.setAcctgFreq))
	if kind == stepOfJob {
		sets = append(sets, o.setJob)
	}
	sets = append(sets, func(r *step.Request) error { return o.nodes.set(r, node, kind == stepOfJob && r.Job != nil) }, o.programs.set)
	return append(sets, ofKind(o.resources.set), ofKind(o.setIO))
}

// setTasks checks the number of tasks and says where they run.
func (o *runOptions) setTasks(r *step.Request) (err error) {
	if o.ntasks < 1 {
		return fmt.Errorf("--ntasks=%d: a step has at least one task", o.ntasks)
	}
	r.Binding, err = o.place.binding()
	return err
}

// setIO says where the tasks' streams go.
func (o *runOptions) setIO(kind requestKind, r *step.Request) error {
	if kind == allocation {
		r.Stdin, r.Stdout, r.Stderr = nullStream, nullStream, nullStream
		return nil
	}
	if err := o.setStreams(r, os.Stdin); err != nil {
		return err
	}
	if kind == stepOfJob {
		o.files.take(r)
		o.setTerminal(r)
	}
	return nil
}

// setEnv makes the tasks' environment, of which the request has a part already.
func (o *runOptions) setEnv(kind requestKind, r *step.Request, p *plugins) error {
	own, err := o.clientEnv(p, int(r.Umask))
	if err != nil {
		return err
	}
	if kind == batchJob {
		own = append(own, o.place.env()...)
		// Measured: a script has neither; its umask travels by itself.
		own = slices.DeleteFunc(own, func(e string) bool {
			return strings.HasPrefix(e, "SLURM_UMASK=") || strings.HasPrefix(e, "SRUN_DEBUG=")
		})
	}
	r.Env, err = o.environment(p, append(own, r.Env...))
	return err
}

func (o *runOptions) setFlags(r *step.Request) error {
	if o.killOnBadExit == "" {
		return nil // the verb has no such option
	}
	n, err := strconv.ParseUint(o.killOnBadExit, 10, 31)
	if err != nil {
		return fmt.Errorf("--kill-on-bad-exit=%s: want 0 or 1", o.killOnBadExit)
	}
	r.KillOnBadExit = n > 0
	return nil
}

// setAcctgFreq reads --acctg-freq, else the variable that srun or sbatch reads.
func (o *runOptions) setAcctgFreq(kind requestKind, r *step.Request) error {
	name, value := "--acctg-freq", o.acctgFreq
	if value == "" {
		name = map[requestKind]string{stepOfJob: "SLURM_ACCTG_FREQ", batchJob: "SBATCH_ACCTG_FREQ"}[kind]
		value = os.Getenv(name)
	}
	if value == "" {
		return nil
	}
	var err error
	if r.AcctgFreq, err = step.ParseAcctgFreq(value); err != nil {
		return fmt.Errorf("%s=%s: %w", name, value, err)
	}
	return nil
}

func (o *runOptions) setPlace(r *step.Request) error {
	cwd, err := os.Getwd()
	switch {
	case o.chdir != "" && filepath.IsAbs(o.chdir):
		cwd = o.chdir
	case o.chdir != "" && err == nil:
		cwd = filepath.Join(cwd, o.chdir)
	case err != nil:
		return fmt.Errorf("cannot tell the working directory: %w (name one with --chdir)", err)
	}
	r.Cwd = cwd
	return nil
}

// setJob makes the step one of the job that --jobid or the environment names.
func (o *runOptions) setJob(r *step.Request) error {
	job := o.jobid
	if job == 0 {
		if v := os.Getenv("SLURM_JOB_ID"); v != "" {
			n, err := strconv.ParseUint(v, 10, 32)
			if err != nil || n == 0 {
				return fmt.Errorf("SLURM_JOB_ID=%q is no job id", v)
			}
			job = uint32(n)
		}
	}
	if job != 0 {
		r.Job = &job
	}
	return nil
}

// setIdentity turns names into numbers through the C library: a static Go
// program sees only /etc/passwd.
func (o *runOptions) setIdentity(r *step.Request) error {
	for _, id := range []struct {
		option, value, kind string
		to                  **uint32
	}{{"--uid", o.uid, "user", &r.UID}, {"--gid", o.gid, "group", &r.GID}} {
		if id.value == "" {
			continue
		}
		n, err := strconv.ParseUint(id.value, 10, 32)
		if err != nil {
			if n, err = lookup(id.kind, id.value); err != nil {
				return fmt.Errorf("%s=%s: %w", id.option, id.value, err)
			}
		}
		v := uint32(n)
		*id.to = &v
	}
	return nil
}

func (o *runOptions) setStreams(r *step.Request, stdin *os.File) error {
	switch o.openMode {
	case "a", "append":
		o.openMode = "append"
	case "t", "truncate":
		o.openMode = "truncate"
	default:
		return fmt.Errorf("--open-mode=%s: want append or truncate", o.openMode)
	}
	errors := o.errors
	if errors == "" {
		errors = o.output
	}
	for _, s := range []struct {
		option, value string
		to            *step.Stream
	}{{"--input", o.input, &r.Stdin}, {"--output", o.output, &r.Stdout}, {"--error", errors, &r.Stderr}} {
		st, err := stream(s.value, r.NTasks)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", s.option, s.value, err)
		}
		st.Append = o.openMode == "append"
		*s.to = st
	}
	// One file for both: the same open file, so that neither overwrites the other.
	if r.Stderr.Kind == step.StreamFile && r.Stderr.Pattern == r.Stdout.Pattern {
		r.Stderr = step.Stream{Kind: step.StreamSame}
	}
	// What goes to or comes from /dev/null here does so there: no pipe is
	// needed for it.
	for _, s := range []struct {
		file *os.File
		to   *step.Stream
	}{{stdin, &r.Stdin}, {os.Stdout, &r.Stdout}, {os.Stderr, &r.Stderr}} {
		if s.to.Kind == step.StreamClient && stepio.IsNull(s.file) {
			*s.to = step.Stream{Kind: step.StreamNull}
		}
	}
	return nil
}

// stream reads srun's forms: all, none, a rank, or a file name pattern.
func stream(value string, ntasks int) (step.Stream, error) {
	switch strings.ToLower(value) {
	case "all":
		return step.Stream{Kind: step.StreamClient}, nil
	case "none":
		return step.Stream{Kind: step.StreamNull}, nil
	case "":
		return step.Stream{}, fmt.Errorf("it is empty")
	}
	if n, err := strconv.Atoi(value); err == nil && n >= 0 {
		if n >= ntasks {
			return step.Stream{}, fmt.Errorf("there is no task %d: the step has %d", n, ntasks)
		}
		return step.Stream{Kind: step.StreamClient, Rank: &n}, nil
	}
	return step.Stream{Kind: step.StreamFile, Pattern: value}, nil
}

// setTerminal asks for a terminal where --pty was given. As with srun the option is
// disregarded where the client has none itself.
func (o *runOptions) setTerminal(r *step.Request) {
	if !o.pty {
		return
	}
	if !isTerminal(os.Stdin) {
		say("error: standard input is no terminal: --pty is disregarded")
		o.pty = false
		return
	}
	r.Terminal = terminalOf(os.Stdin, os.Stdout)
	r.Stdin, r.Stdout, r.Stderr = nullStream, nullStream, nullStream
	r.Env = append(r.Env,
		fmt.Sprintf("SLURM_PTY_WIN_COL=%d", r.Terminal.Cols),
		fmt.Sprintf("SLURM_PTY_WIN_ROW=%d", r.Terminal.Rows))
}

// takesTerminal tells whether --pty was given and is not disregarded.
func takesTerminal(f *pflag.FlagSet) bool { return wasGiven(f, "pty") && isTerminal(os.Stdin) }
