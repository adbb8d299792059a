package step

// Limits on what a user gives to plugins.
const (
	// OptionMax bounds the value of one plugin option, in bytes.
	OptionMax = 1 << 20
	// OptionsMax bounds the options of one step.
	OptionsMax = 1024
	// JobControlMax bounds the job control environment, in bytes. What of it is
	// too long for a script's environment reaches the plugins alone.
	JobControlMax = 4 << 20
	// JobControlEntries bounds its variables, options among them.
	JobControlEntries = 4096
	// VariableMax is the longest NAME=VALUE that a program can be started with
	// (execve(2), MAX_ARG_STRLEN with its NUL).
	VariableMax = 128<<10 - 1
	// ScriptMax bounds a batch script, in bytes (Slurm's max_script_size).
	ScriptMax = 4 << 20
)

// SpankOption is an option of a SPANK plugin that the user gave on the local
// side, on its way to the remote side, to prolog and to epilog.
type SpankOption struct {
	Plugin string `json:"plugin"` // plugin_name
	Name   string `json:"name"`
	// Value is nil where the option was given without one. It is bytes: a file
	// name need not be text.
	Value []byte `json:"value"`
}

// OptionVariable is the variable by which an option travels in an environment:
// _SLURM_SPANK_OPTION_<plugin>_<name>, with all but letters and digits as '_'
// (spank-behaviour §2).
func OptionVariable(plugin, name string) string {
	b := []byte(plugin + "_" + name)
	for i, c := range b { // bytes: what is no ASCII has one '_' for each
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			b[i] = '_'
		}
	}
	return OptionPrefix + string(b)
}

// OptionPrefix begins the variables of OptionVariable.
const OptionPrefix = "_SLURM_SPANK_OPTION_"

// JobEnvPrefix begins the variables by which a job's commands see the job
// control environment, options of the outer command included (spank-behaviour §2).
const JobEnvPrefix = "SLURM_SPANK_"

// ScriptEnvPrefix begins the variables by which prolog and epilog see it.
const ScriptEnvPrefix = "SPANK_"

// JobOrigin says what made a job.
type JobOrigin string

const (
	OriginRun   JobOrigin = "run"   // stepctl run, outside of a job
	OriginAlloc JobOrigin = "alloc" // stepctl alloc
	OriginBatch JobOrigin = "batch" // stepctl batch
)

// LaunchChange is what the local side has changed between Reserve and Launch:
// what slurm_spank_local_user_init did.
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
