// Package options is the command line of run, alloc and batch, with srun's letters and
// meanings: flags, variables and #SBATCH lines in, a step.Request out. It refuses options
// that exclude each other and options that stepctl does not do. It asks noded nothing.
//
// Begin with Run and its method Request.
package options

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/internal/printable"
	"stepd/srunopt"
	"stepd/step"
	"stepd/stepio"
)

// Run are the options of run: srun's letters and meanings. alloc and batch have a part of
// them. The zero value has to be bound to a command's flags before its line is parsed.
type Run struct {
	NTasks, CPUs    int    // of the step; for each task
	Name            string // --job-name
	Verbose         int    // how often --verbose was given
	Quiet           bool
	QuitOnInterrupt bool
	DisableStatus   bool   // Ctrl-C goes to the tasks at once
	KillCommand     string // alloc: the signal for the command of a job that is over
	DryRun, JSON    bool
	TestOnly        bool
	// Interactive makes the step the shell of a job of alloc.
	Interactive bool
	MPI         string // --mpi
	// What the client itself does with the streams.
	Label, Unbuffered bool
	OpenMode          string // "append" or "truncate"
	DetachKeys        string
	// Files are the files that the client opens itself; Request fills it in.
	Files     Files
	Binding   Binding
	Programs  Programs
	Immediate Immediate

	unused                unused
	nodes                 Nodes
	resources             Resources
	chdir                 string
	input, output, errors string
	pty                   bool
	killOnBadExit         string
	export                string
	overcommit            bool
	uid, gid              string
	jobid                 uint32
	noNewPrivs            bool
	acctgFreq             string
	exportFile            string
	preserveEnv           bool
}

// BindJob binds what run, alloc and batch have in common.
func (o *Run) BindJob(c *cobra.Command) {
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	f.SortFlags = false
	f.IntVarP(&o.NTasks, "ntasks", "n", 1, "number of tasks")
	o.nodes.bind(c)
	f.IntVarP(&o.CPUs, "cpus-per-task", "c", 1, "CPUs for each task")
	f.StringVarP(&o.Name, "job-name", "J", "", "name of the job and step (default: the command's)")
	f.StringVarP(&o.chdir, "chdir", "D", "", "working directory (default: this one)")
	f.BoolVarP(&o.overcommit, "overcommit", "O", false, "more tasks than CPUs")
	o.resources.bind(c)
	f.StringVar(&o.uid, "uid", "", "as another user (root)")
	f.StringVar(&o.gid, "gid", "", "with another group (root)")
	f.BoolVarP(&o.Quiet, "quiet", "Q", false, "no messages but errors")
	f.CountVarP(&o.Verbose, "verbose", "v", "say more; may be repeated")
	o.Binding.bind(c)
	o.Programs.bindJob(f)
	o.Immediate.bind(f)
	f.BoolVar(&o.TestOnly, "test-only", false, "say whether it would start now, when at the latest, or never, and start nothing")
	f.StringVar(&o.acctgFreq, "acctg-freq", "", "seconds between samples of what the tasks use: SECONDS or task=SECONDS, 0 for none")
	bindRefused(f, refusedOptions...)
	o.unused.bind(f)
}

// BindAlloc binds all options of alloc.
func (o *Run) BindAlloc(c *cobra.Command) {
	o.BindJob(c)
	c.Flags().StringVarP(&o.KillCommand, "kill-command", "K", "HUP", "the signal that the command gets when its job is over")
	c.Flags().Lookup("kill-command").NoOptDefVal = "TERM" // salloc's, where it is no shell
}

// bindOutput binds what run and batch have in common beyond that.
func (o *Run) bindOutput(c *cobra.Command, input, output string) {
	f := c.Flags()
	f.StringVarP(&o.input, "input", "i", input, "stdin: all, none, a rank, or a file name pattern")
	f.StringVarP(&o.output, "output", "o", output, "stdout: all, none, a rank, or a file name pattern")
	f.StringVarP(&o.errors, "error", "e", "", "stderr: as --output (default: as stdout goes)")
	f.StringVar(&o.OpenMode, "open-mode", "truncate", "output files: append or truncate")
	f.StringVar(&o.export, "export", "ALL", "environment: ALL, NONE, or NAME[=VALUE],...")
	o.Programs.bindOutput(f)
	f.BoolVar(&o.noNewPrivs, "no-new-privs", false, "set no_new_privs for the tasks")
}

// Bind binds all options of run.
func (o *Run) Bind(c *cobra.Command) {
	o.BindJob(c)
	o.bindOutput(c, "all", "all")
	f := c.Flags()
	f.BoolVarP(&o.Label, "label", "l", false, "put the rank before each line of output")
	f.BoolVarP(&o.Unbuffered, "unbuffered", "u", false, "pass output on as it comes, not by lines")
	f.BoolVar(&o.pty, "pty", false, "run task 0 in a terminal of its own, which outlives this command; the other tasks have /dev/null")
	f.StringVar(&o.DetachKeys, "detach-keys", terminal.DefaultDetachKeys, "with --pty: keys that leave the step running; none for none")
	f.StringVarP(&o.killOnBadExit, "kill-on-bad-exit", "K", "0", "end the step when a task exits non-zero")
	f.Lookup("kill-on-bad-exit").NoOptDefVal = "1"
	f.BoolVar(&o.QuitOnInterrupt, "quit-on-interrupt", false, "one Ctrl-C ends the step")
	f.BoolVarP(&o.DisableStatus, "disable-status", "X", false, "Ctrl-C is the tasks' at once, and shows nothing")
	o.Programs.bindStep(f)
	o.Binding.bindStep(c)
	f.StringVar(&o.MPI, "mpi", "", "kind of MPI (default $SLURM_MPI_TYPE, then MpiDefault of slurm.conf); list shows them")
	f.BoolVar(&o.DryRun, "dry-run", false, "print what would be started, bound and limited, and start nothing")
	f.BoolVar(&o.JSON, "json", false, "with --dry-run: print it as one JSON document")
	f.BoolVar(&o.Interactive, "interactive", false, "be the shell of a job of alloc: one task with all that the job has, which other steps may use too")
	f.BoolVarP(&o.preserveEnv, "preserve-env", "E", false, "leave SLURM_NTASKS, SLURM_NPROCS, SLURM_NNODES and SLURM_JOB_NUM_NODES as they are")
	bindRefused(f, ofRunAlone)
	f.Uint32Var(&o.jobid, "jobid", 0, "make the step one of this job (default $SLURM_JOB_ID)")
}

// FromJob takes the task count of the job that run is in, where none was given
// (srun(1), SLURM_NTASKS).
func (o *Run) FromJob(c *cobra.Command) error {
	v := os.Getenv("SLURM_NTASKS")
	if v == "" || os.Getenv("SLURM_JOB_ID") == "" || c.Flags().Changed("ntasks") || o.Interactive {
		return nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return fmt.Errorf("SLURM_NTASKS=%q is no number of tasks (--ntasks overrules it)", v)
	}
	o.NTasks = n
	return nil
}

// Kind distinguishes the verbs' requests.
type Kind int

const (
	StepOfJob  Kind = iota // run
	Allocation             // alloc
	BatchJob               // batch
)

var nullStream = step.Stream{Kind: step.StreamNull}

// NameOf is the name of a step that was given none: its command's, without what no name
// may have.
func NameOf(command string) string { return printable.Line(filepath.Base(command), 0) }

// Request makes the request of the options; what it cannot mean is an error
// that names the option.
func (o *Run) Request(kind Kind, argv []string, p *plugins.Host) (*step.Request, error) {
	umask := unix.Umask(0)
	unix.Umask(umask)
	r := &step.Request{
		Schema: step.Schema, Name: o.Name, NTasks: o.NTasks, CPUsPerTask: o.CPUs,
		Interactive: o.Interactive, PreserveEnv: o.preserveEnv,
		Overcommit: o.overcommit, Argv: argv, Umask: uint32(umask), Label: o.Label, MPI: o.MPI, NoNewPrivs: o.noNewPrivs,
	}
	r.Name = cmp.Or(r.Name, NameOf(argv[0]))
	for _, set := range o.setters(kind, p.Node) {
		if err := set(r); err != nil {
			return nil, err
		}
	}
	if err := o.setEnv(kind, r, p); err != nil {
		return nil, err
	}
	r.SpankOptions, r.JobControl = p.SpankOptions(), p.Control()
	r.SubmitHost, _ = os.Hostname()
	return r, nil
}

// setters put the options into a request for the node, each building on those before it.
func (o *Run) setters(kind Kind, node string) (sets []func(*step.Request) error) {
	ofKind := func(set func(Kind, *step.Request) error) func(*step.Request) error {
		return func(r *step.Request) error { return set(kind, r) }
	}
	sets = append(sets, o.setTasks, o.setIdentity, o.setPlace, o.setFlags, ofKind(o.setAcctgFreq))
	if kind == StepOfJob {
		sets = append(sets, o.setJob)
	}
	sets = append(sets, func(r *step.Request) error { return o.nodes.set(r, node, kind == StepOfJob && r.Job != nil) }, o.setGPUs, o.Programs.set)
	return append(sets, ofKind(o.resources.set), ofKind(o.setIO))
}

// setTasks checks the number of tasks and says where they run.
func (o *Run) setTasks(r *step.Request) (err error) {
	if o.NTasks < 1 {
		return fmt.Errorf("--ntasks=%d: a step has at least one task", o.NTasks)
	}
	r.Binding, err = o.Binding.binding()
	return err
}

// setIO says where the tasks' streams go.
func (o *Run) setIO(kind Kind, r *step.Request) error {
	if kind == Allocation {
		r.Stdin, r.Stdout, r.Stderr = nullStream, nullStream, nullStream
		return nil
	}
	if err := o.setStreams(r, os.Stdin); err != nil {
		return err
	}
	if kind == StepOfJob {
		o.Files.take(r)
		o.setTerminal(r)
	}
	return nil
}

// setEnv makes the tasks' environment, of which the request has a part already.
func (o *Run) setEnv(kind Kind, r *step.Request, p *plugins.Host) error {
	own, err := o.ClientEnv(p, int(r.Umask))
	if err != nil {
		return err
	}
	if kind == BatchJob {
		own = append(own, o.Binding.Env()...)
		// Measured: a script has neither; its umask travels by itself.
		own = slices.DeleteFunc(own, func(e string) bool {
			return strings.HasPrefix(e, "SLURM_UMASK=") || strings.HasPrefix(e, "SRUN_DEBUG=")
		})
	}
	r.Env, err = o.Environment(p, append(own, r.Env...))
	return err
}

func (o *Run) setFlags(r *step.Request) error {
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

// setAcctgFreq reads --acctg-freq, else the variable that srun, sbatch or salloc reads.
func (o *Run) setAcctgFreq(kind Kind, r *step.Request) error {
	name, value := "--acctg-freq", o.acctgFreq
	if value == "" {
		name = map[Kind]string{StepOfJob: "SLURM_ACCTG_FREQ", BatchJob: "SBATCH_ACCTG_FREQ", Allocation: "SALLOC_ACCTG_FREQ"}[kind]
		value = os.Getenv(name)
	}
	if value == "" {
		return nil
	}
	var err error
	if r.AcctgFreq, err = srunopt.ParseAcctgFreq(value); err != nil {
		return fmt.Errorf("%s=%s: %w", name, value, err)
	}
	return nil
}

func (o *Run) setPlace(r *step.Request) error {
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
func (o *Run) setJob(r *step.Request) error {
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
func (o *Run) setIdentity(r *step.Request) error {
	for _, id := range []struct {
		option, value, kind string
		to                  **uint32
	}{{"--uid", o.uid, "user", &r.UID}, {"--gid", o.gid, "group", &r.GID}} {
		if id.value == "" {
			continue
		}
		n, err := plugins.Lookup(id.kind, id.value)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", id.option, id.value, err)
		}
		*id.to = &n
	}
	return nil
}

func (o *Run) setStreams(r *step.Request, stdin *os.File) error {
	switch o.OpenMode {
	case "a", "append":
		o.OpenMode = "append"
	case "t", "truncate":
		o.OpenMode = "truncate"
	default:
		return fmt.Errorf("--open-mode=%s: want append or truncate", o.OpenMode)
	}
	for _, s := range []struct {
		option, value string
		to            *step.Stream
	}{{"--input", o.input, &r.Stdin}, {"--output", o.output, &r.Stdout}, {"--error", cmp.Or(o.errors, o.output), &r.Stderr}} {
		st, err := stream(s.value, r.NTasks)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", s.option, s.value, err)
		}
		st.Append = o.OpenMode == "append"
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
func (o *Run) setTerminal(r *step.Request) {
	if !o.pty {
		return
	}
	if !terminal.IsTerminal(os.Stdin) {
		terminal.Say("error: standard input is no terminal: --pty is disregarded")
		o.pty = false
		return
	}
	r.Terminal = terminal.TerminalOf(os.Stdin, os.Stdout)
	r.Stdin, r.Stdout, r.Stderr = nullStream, nullStream, nullStream
	r.Env = append(r.Env,
		fmt.Sprintf("SLURM_PTY_WIN_COL=%d", r.Terminal.Cols),
		fmt.Sprintf("SLURM_PTY_WIN_ROW=%d", r.Terminal.Rows))
}

// TakesTerminal reports whether --pty was given and is not disregarded.
func TakesTerminal(f *pflag.FlagSet) bool { return wasGiven(f, "pty") && terminal.IsTerminal(os.Stdin) }

// Peeked is what must be known of a command line before it can be parsed.
type Peeked struct {
	Socket     string // --socket
	Standalone bool   // --standalone
	Help       bool   // --help or -h
	Topic      string // an option whose value is "help"
	Job        uint32 // --jobid, else of $SLURM_JOB_ID; 0: none
}

// Peek reads the options that are known. Behind a long option that is not, a
// word that begins with a dash is the next option; at any other it stops: that
// may be the option's argument or the command.
func Peek(c *cobra.Command, args []string) (seen Peeked) {
	job := os.Getenv("SLURM_JOB_ID")
	defer func() {
		n, _ := strconv.ParseUint(job, 10, 32) // what is no number is refused when the options are parsed
		seen.Job = uint32(n)
	}()
	for i := 0; i < len(args); i++ {
		word, long := strings.CutPrefix(args[i], "--")
		switch {
		case word == "" || !strings.HasPrefix(args[i], "-") || args[i] == "-":
			return seen
		case !long:
			more, help := short(c, args[i][1:])
			i, seen.Help = i+more, seen.Help || help
			continue
		}
		name, text, set := strings.Cut(word, "=")
		f := c.Flag(name)
		switch {
		case name == "help":
			seen.Help = true
			continue
		case f == nil && (set || i+1 < len(args) && strings.HasPrefix(args[i+1], "-")):
			continue
		case f == nil:
			return seen
		case !set && f.NoOptDefVal != "":
			text = f.NoOptDefVal
		case !set:
			if i++; i == len(args) {
				return seen
			}
			text = args[i]
		}
		switch name {
		case "socket":
			seen.Socket = text
		case "jobid":
			job = text
		case "standalone":
			seen.Standalone = text == "true"
		default:
			if strings.EqualFold(text, "help") && HelpOn(name) != "" {
				seen.Topic = name
				return seen
			}
		}
	}
	return seen
}

// short reads a cluster of short options: how many words behind it are its last
// one's argument, and whether -h is among them.
func short(c *cobra.Command, cluster string) (more int, help bool) {
	for i := range len(cluster) {
		f := c.Flags().ShorthandLookup(cluster[i : i+1])
		switch {
		case f == nil:
			help = help || cluster[i] == 'h'
		case f.NoOptDefVal != "":
		case i+1 < len(cluster):
			return 0, help
		default:
			return 1, help
		}
	}
	return 0, help
}

// WrittenOut writes out the arguments that hang on a short option which may be
// without one: -K1 is --kill-on-bad-exit=1, as in srun. What is behind the options
// stays as it is.
func WrittenOut(c *cobra.Command, args []string) []string {
	out := slices.Clone(args)
	for i := 0; i < len(out); i++ {
		word := out[i]
		if word == "--" || word == "-" || !strings.HasPrefix(word, "-") {
			return out // the command, or an option's argument that is not known here
		}
		if name, long := strings.CutPrefix(word, "--"); long {
			name, _, set := strings.Cut(name, "=")
			f := c.Flag(name)
			if f != nil && !set && f.NoOptDefVal == "" {
				i++
			}
			continue
		}
		f := c.Flags().ShorthandLookup(word[1:2])
		if f != nil && f.NoOptDefVal != "" && f.Value.Type() == "string" && len(word) > 2 {
			out[i] = "--" + f.Name + "=" + strings.TrimPrefix(word[2:], "=")
			continue
		}
		more, _ := short(c, word[1:])
		i += more
	}
	return out
}

// setFlags are the flags that a command line has set, in the order of their names.
func setFlags(c *cobra.Command) (set []*pflag.Flag) {
	c.Flags().Visit(func(f *pflag.Flag) { set = append(set, f) })
	return set
}
