package step

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
	// JobControl replaces the job's, where the step is the job's first one.
	JobControl [][]byte `json:"job_control,omitempty"`
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
