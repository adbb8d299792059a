package step

// SpankOption is an option of a SPANK plugin that the user gave on the local
// side, on its way to the remote side, to prolog and to epilog.
type SpankOption struct {
	Plugin string `json:"plugin"` // plugin_name
	Name   string `json:"name"`
	// Value is nil where the option was given without one. It is bytes: a file
	// name need not be text.
	Value []byte `json:"value"`
}

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

// VariableMax is the longest NAME=VALUE that a program can be started with
// (execve(2), MAX_ARG_STRLEN with its NUL).
const VariableMax = 128<<10 - 1
