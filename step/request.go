package step

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Schema is the version of every JSON document of this package.
const Schema = 1

// Request is a client's request to noded for a job or a step. All of it is under a user's
// control: nothing in it is trusted before srunopt.Validate and noded's own checks.
type Request struct {
	Schema int `json:"schema"`

	// Job makes the step one of a running job; nil asks for a job of its own.
	Job *uint32 `json:"job,omitempty"`
	// UID and GID name another user; only root may set them.
	UID *uint32 `json:"uid,omitempty"`
	GID *uint32 `json:"gid,omitempty"`

	Name        string `json:"name"`          // -J; shown by ps
	NTasks      int    `json:"ntasks"`        // -n; at least 1
	NNodes      int    `json:"nnodes"`        // at least 1; noded takes 1 alone: several are Slurm's (docs/slurm.md)
	CPUsPerTask int    `json:"cpus_per_task"` // -c; at least 1
	Overcommit  bool   `json:"overcommit,omitempty"`
	// Overlap lets a step share CPUs with the other steps of its job: it waits for none of
	// them.
	Overlap bool `json:"overlap,omitempty"`
	// ImmediateS is how long noded lets a request wait that does not fit, in seconds: nil and 0
	// are not at all, -1 is as long as the client stays connected.
	ImmediateS *int `json:"immediate_s,omitempty"`
	// Interactive makes it the interactive step of an allocation: one task, which may use
	// all of the job's resources and keeps none of them from other steps.
	Interactive bool `json:"interactive,omitempty"`
	// PreserveEnv leaves the numbers of tasks and nodes in Env as they are, for commands
	// that the step starts (srun --preserve-env).
	PreserveEnv bool `json:"preserve_env,omitempty"`
	// Binding is where on the node the tasks are to run.
	Binding Binding `json:"binding,omitzero"`

	// Mem is --mem in MB: 0 is all of the node's or of the job's, nil is the
	// default. MemPerCPU is --mem-per-cpu in MB, nil without it.
	Mem       *uint64 `json:"mem_mb,omitempty"`
	MemPerCPU *uint64 `json:"mem_per_cpu_mb,omitempty"`
	// Gres is --gres: nil is the default, which is none for a job and all of the
	// job's for a step of it; empty is none.
	Gres []GresRequest `json:"gres,omitzero"`
	// OOMKillStep ends the whole step when its memory runs out; nil is the site's default.
	OOMKillStep *bool `json:"oom_kill_step,omitempty"`

	Argv []string `json:"argv"`
	Env  []string `json:"env"` // NAME=VALUE, SLURM_RLIMIT_* included
	// ArgvBinary and EnvBinary hold entries that are no text; see Pack.
	ArgvBinary map[int]string `json:"argv_binary,omitempty"`
	EnvBinary  map[int]string `json:"env_binary,omitempty"`
	Cwd        string         `json:"cwd"`
	// Apps are the commands where the step has several, whose ranks follow each
	// other; Argv is then the first one's.
	Apps []App `json:"apps,omitempty"`
	// Umask of the caller, 0 to 0777.
	Umask uint32 `json:"umask"`

	Stdin  Stream `json:"stdin"`
	Stdout Stream `json:"stdout"`
	Stderr Stream `json:"stderr"`
	Label  bool   `json:"label,omitempty"` // -l: the client labels lines, the tasks know by SLURM_LABELIO
	// Unattended says that no client connects to stepd as the launcher: the tasks do not wait
	// for one, and no stream is a StreamClient.
	Unattended bool `json:"unattended,omitempty"`
	// Terminal is rank 0's; nil is none. With a terminal the three streams are StreamNull.
	Terminal *Terminal `json:"terminal,omitempty"`

	MPI           string `json:"mpi,omitempty"` // --mpi; empty is MpiDefault
	KillOnBadExit bool   `json:"kill_on_bad_exit,omitempty"`
	// TimeLimitS is how long the step may run, in seconds, without the time of its suspensions
	// (--time); 0 is no limit. In the request of a batch job or an allocation it is the job's
	// limit, which bounds all of its steps.
	TimeLimitS int `json:"time_limit_s,omitempty"`
	// Warn is sent before the time is over; nil is nothing.
	Warn *Warning `json:"warn,omitempty"`
	// OwnLimits: Env has the SLURM_RLIMIT_* variables that the user chose (--propagate).
	// Without it the site chooses among them (PropagateResourceLimits).
	OwnLimits bool `json:"own_limits,omitempty"`
	// TaskProlog and TaskEpilog are the user's, absolute; "" is none.
	TaskProlog string `json:"task_prolog,omitempty"`
	TaskEpilog string `json:"task_epilog,omitempty"`
	NoNewPrivs bool   `json:"no_new_privs,omitempty"`

	// AcctgFreq is the time between two samples of the tasks' accounting, in
	// seconds; 0 is never, nil JobAcctGatherFrequency.
	AcctgFreq *int `json:"acctg_freq,omitempty"`

	SubmitHost string `json:"submit_host,omitempty"`

	// SpankOptions were given to the local side. Their callbacks run on the remote side, in
	// this order.
	SpankOptions []SpankOption `json:"spank_options,omitempty"`
	// JobControl are the variables that plugins set with spank_job_control_setenv, and the
	// options by their srunopt.OptionVariable: NAME=VALUE, for prolog and epilog. It has an
	// effect in a request that makes a job.
	JobControl [][]byte `json:"job_control,omitempty"`
	// Script makes the request one of a batch job: NTasks and CPUsPerTask are
	// the job's, whose batch step is one task that runs this script. Argv is
	// then its name, as the user gave it, and its arguments.
	Script []byte `json:"script,omitempty"`
	// Array is the job's place in a job array, nil without one. RestartCount counts the
	// earlier runs of the job. A controller sets both, as root, for the tasks' environment,
	// the plugins and the file name patterns. A step of a running job has the job's.
	Array        *ArrayTask `json:"array_task,omitempty"`
	RestartCount uint32     `json:"restart_count,omitempty"`
	// As are the numbers that the job and the step get; nil is the next free ones. Only root
	// may set it.
	As *Numbers `json:"id,omitempty"`
}

// Numbers are the numbers that a controller gives to a job and a step of it.
type Numbers struct {
	// Job is the number of the job that the request makes, or of the running one that it
	// names.
	Job uint32 `json:"job"`
	// Step is the step's number; nil is the next one. Batch steps and jobs without a step
	// have none to choose.
	Step *uint32 `json:"step,omitempty"`
}

// TasksMax is the highest number of tasks that a request may name.
const TasksMax = 65533

// VariableMax is the longest NAME=VALUE that a program can be started with
// (execve(2), MAX_ARG_STRLEN with its NUL).
const VariableMax = 128<<10 - 1

// SpankOption is an option of a SPANK plugin that the user gave on the local
// side, on its way to the remote side, to prolog and to epilog.
type SpankOption struct {
	Plugin string `json:"plugin"` // plugin_name
	Name   string `json:"name"`
	// Value is nil where the option was given without one. It is bytes: a file
	// name need not be text.
	Value []byte `json:"value"`
}

// LaunchChange is the change that slurm_spank_local_user_init made on the local side,
// between Reserve and Launch.
type LaunchChange struct {
	// Env replaces the request's; see Pack for EnvBinary.
	Env       []string       `json:"env"`
	EnvBinary map[int]string `json:"env_binary,omitempty"`
	// JobControl replaces the job's, where the step is the job's first one. In an allocation it is
	// put over the job's, of which the names of JobControlUnset go.
	JobControl      [][]byte `json:"job_control,omitempty"`
	JobControlUnset [][]byte `json:"job_control_unset,omitempty"`
}

// Pack prepares the change for JSON, as Request.Pack.
func (c *LaunchChange) Pack() { c.Env, c.EnvBinary = pack(c.Env) }

// Unpack undoes Pack. An index out of range is a *FieldError.
func (c *LaunchChange) Unpack() error {
	if err := unpack("env_binary", c.Env, c.EnvBinary); err != nil {
		return err
	}
	c.EnvBinary = nil
	return nil
}

// StreamKind is the kind of destination of one of a task's three standard streams.
type StreamKind string

const (
	// StreamClient: descriptors that the client attaches to stepd's socket.
	StreamClient StreamKind = "client"
	// StreamNull: /dev/null.
	StreamNull StreamKind = "null"
	// StreamFile: a file that each task opens as the user, by Pattern.
	StreamFile StreamKind = "file"
	// StreamSame: stderr only: the same open file as stdout.
	StreamSame StreamKind = "same"
)

// Stream describes one standard stream of all tasks.
type Stream struct {
	Kind StreamKind `json:"kind"`
	// Pattern is srun's file name pattern (%j %J %s %t %n %N %u %x %A %a %%).
	Pattern string `json:"pattern,omitempty"`
	// Rank restricts the stream to one task; the others get /dev/null.
	Rank *int `json:"rank,omitempty"`
	// Append opens with O_APPEND alone; without it the file is truncated first.
	Append bool `json:"append,omitempty"`
}

// Terminal asks for a terminal for rank 0 (--pty): its three streams are that
// terminal, which belongs to stepd and outlives the client. The other ranks have
// /dev/null, as in Slurm.
type Terminal struct {
	// Rows and Cols are the window's size in the beginning; 0 is not known.
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
	// Chars are the control characters of the client's terminal, as c_cc of termios(3)
	// has them on Linux; empty are the kernel's.
	Chars []byte `json:"chars,omitempty"`
	// UTF8 says that it erases characters, not bytes (IUTF8).
	UTF8 bool `json:"utf8,omitempty"`
}

// StreamTerminal is the Kind of an OutputPlace that is a terminal of the step's.
const StreamTerminal StreamKind = "terminal"

// OutputPlace is the destination of one of the tasks' streams, in a Record.
type OutputPlace struct {
	// Kind is the Stream's, or StreamTerminal.
	Kind StreamKind `json:"kind"`
	// Pattern is the files', absolute.
	Pattern string `json:"pattern,omitempty"`
	// Rank is the one task that has the stream, nil is all.
	Rank *int `json:"rank,omitempty"`
}

// OutputPlaces returns the destinations of the tasks' stdout and stderr.
func (s *Spec) OutputPlaces() (stdout, stderr *OutputPlace) {
	if s.Terminal != nil {
		zero := 0
		return &OutputPlace{Kind: StreamTerminal, Rank: &zero}, &OutputPlace{Kind: StreamTerminal, Rank: &zero}
	}
	place := func(st Stream) *OutputPlace {
		p := &OutputPlace{Kind: st.Kind, Pattern: st.Pattern, Rank: st.Rank}
		if p.Pattern != "" && p.Pattern[0] != '/' {
			p.Pattern = s.Cwd + "/" + p.Pattern
		}
		return p
	}
	return place(s.Stdout), place(s.Stderr)
}

// Binding is the client's wish for the place of its tasks on the node's CPUs and memory:
// srun's options with these names. With the zero value the site's TaskPluginParam and the
// automatic binding decide.
type Binding struct {
	CPU          CPUBind      `json:"cpu,omitzero"`          // --cpu-bind
	Mem          MemBind      `json:"mem,omitzero"`          // --mem-bind
	Distribution Distribution `json:"distribution,omitzero"` // -m
	Hint         Hint         `json:"hint,omitempty"`        // --hint
	// ThreadsPerCore uses at most so many threads of each core; 0 is all.
	ThreadsPerCore int `json:"threads_per_core,omitempty"`
	// NTasksPerCore and NTasksPerSocket are the most tasks for each; 0 is no limit.
	NTasksPerCore   int `json:"ntasks_per_core,omitempty"`
	NTasksPerSocket int `json:"ntasks_per_socket,omitempty"`
	// Whole gives a step of a job all of the job's CPUs, and not only the number that its
	// tasks need (--whole).
	Whole bool `json:"whole,omitempty"`
}

// Verbosity says whether the binding of each task is reported on its stderr.
type Verbosity string

// CPUBindKind is the type of a --cpu-bind, in srun's words.
type CPUBindKind string

// CPUBind is a --cpu-bind.
type CPUBind struct {
	Verbosity Verbosity   `json:"verbosity,omitempty"`
	Kind      CPUBindKind `json:"kind,omitempty"`
	// List belongs to the map_ and mask_ kinds: see srunopt.CPUItems and MemItems.
	List string `json:"list,omitempty"`
}

// MemBindKind is the type of a --mem-bind, in srun's words.
type MemBindKind string

// MemBind is a --mem-bind.
type MemBind struct {
	Verbosity Verbosity   `json:"verbosity,omitempty"`
	Kind      MemBindKind `json:"kind,omitempty"`
	List      string      `json:"list,omitempty"` // of map_mem and mask_mem
	// Prefer takes the first node where it has room, and others where not.
	Prefer bool `json:"prefer,omitempty"`
	// Sort is passed to the tasks and has no other effect: the sort of free pages
	// belongs to one processor, Intel's KNL.
	Sort bool `json:"sort,omitempty"`
}

// Hint is a --hint, in srun's words; "" is none.
type Hint string

// Distribution is a -m, --distribution: how tasks are dealt to nodes, and their
// CPUs to the tasks. An empty word is "*", the default.
type Distribution struct {
	// Nodes is "block", "cyclic", "plane" or "arbitrary" (DealRanks). "plane" makes
	// the default of Sockets "block".
	Nodes string `json:"nodes,omitempty"`
	Plane int    `json:"plane,omitempty"` // tasks of a plane; 0 without one
	// Sockets and Cores are "block", "cyclic" or "fcyclic".
	Sockets string `json:"sockets,omitempty"`
	Cores   string `json:"cores,omitempty"`
	Pack    string `json:"pack,omitempty"` // "pack" or "nopack"

	// Levels counts the levels that the user wrote: the tasks' variable has as many.
	Levels int `json:"levels,omitempty"`
}

// App is one command of a step that has several (--multi-prog,
// MPI_Comm_spawn_multiple). Its words may be any bytes but NUL.
type App struct {
	NTasks int      `json:"ntasks"` // at least 1
	Argv   [][]byte `json:"argv"`
	Env    [][]byte `json:"env,omitempty"` // NAME=VALUE, set over the step's for these tasks
	// Cwd is the tasks' working directory, relative to the step's; empty is the step's.
	Cwd []byte `json:"cwd,omitempty"`
	// Offset is not nil where Argv has %t for a task's rank and %o for its place among
	// the tasks of its line of --multi-prog. Offset is the first task's place.
	Offset *int `json:"offset,omitempty"`
}

// Words is the command of the app's nth task, from 0, which has this rank. common is
// Words(a.Argv): a command without %t and %o is common itself, not a copy.
func (a *App) Words(common []string, rank, nth int) []string {
	own := func(w string) bool { return strings.IndexByte(w, '%') >= 0 }
	if a.Offset == nil || !slices.ContainsFunc(common, own) {
		return common
	}
	words := slices.Clone(common)
	for i, w := range words {
		words[i] = expandTask(w, rank, *a.Offset+nth)
	}
	return words
}

// expandTask replaces %t and %o; %% is one %, and any other % stays as it is.
func expandTask(word string, rank, offset int) string {
	if strings.IndexByte(word, '%') < 0 {
		return word
	}
	var b strings.Builder
	b.Grow(len(word) + 16)
	for i := 0; i < len(word); i++ {
		if word[i] != '%' || i+1 == len(word) {
			b.WriteByte(word[i])
			continue
		}
		i++
		switch word[i] {
		case 't':
			b.WriteString(strconv.Itoa(rank))
		case 'o':
			b.WriteString(strconv.Itoa(offset))
		case '%':
			b.WriteByte('%')
		default:
			b.WriteByte('%')
			b.WriteByte(word[i])
		}
	}
	return b.String()
}

// AppOf is the index in Apps of the command that a rank runs: 0 where the step has
// one command for all.
func (r *Request) AppOf(rank int) int {
	for i := range r.Apps {
		if rank -= r.Apps[i].NTasks; rank < 0 {
			return i
		}
	}
	return 0
}

// Words are byte strings as Go strings, with bytes that are no text kept as they are.
func Words(list [][]byte) []string {
	if list == nil {
		return nil
	}
	words := make([]string, len(list))
	for i, b := range list {
		words[i] = string(b)
	}
	return words
}

// Raw is the opposite of Words.
func Raw(words []string) [][]byte {
	if words == nil {
		return nil
	}
	list := make([][]byte, len(words))
	for i, w := range words {
		list[i] = []byte(w)
	}
	return list
}

// ErrEnded is the answer to a client that wants to see the output of an ended step.
var ErrEnded = errors.New("the step has ended")

// FieldError names the field of a Request or Spec that is wrong, by its JSON name, and
// the problem with it.
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }
