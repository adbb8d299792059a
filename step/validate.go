package step

import (
	"fmt"
	"math"
	"strings"
	"unicode"
)

// Limits on what a client may ask for. They bound what noded stores and what
// stepd and the tasks must carry; none is a site's policy.
const (
	// NameMax bounds a step's name, in bytes.
	NameMax = 255
	// PathMax bounds a path or a file name pattern, in bytes (PATH_MAX with its NUL).
	PathMax = 4095
	// TasksMax is the highest number of tasks that a request may name.
	TasksMax = 65533
	// AcctgFreqMax is the longest time between samples, in seconds, as in Slurm.
	AcctgFreqMax = 65533
)

// A FieldError says which field of a Request or Spec is wrong, by its JSON
// name, and why.
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

func bad(field, format string, args ...any) error {
	return &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Validate checks all that can be told from the request alone. It returns a
// *FieldError for the first bad field. What depends on the node or the caller
// (who may name a user, how many CPUs there are) is noded's to check.
func (r *Request) Validate() error {
	for _, check := range []func() error{
		r.checkIdentity, r.checkCounts, r.checkMemory, r.checkGres, r.checkArgv, r.checkApps, r.checkEnv, r.checkPlace, r.checkStreams, r.checkTerminal, r.checkWords, r.checkSpank, r.checkBinding, r.checkTime, r.checkTaskScripts, r.checkInteractive, r.checkNumbers,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Request) checkIdentity() error {
	if r.Schema != Schema {
		return bad("schema", "%d is not supported: this side speaks %d", r.Schema, Schema)
	}
	if r.Job != nil && *r.Job == 0 {
		return bad("job", "0 is not a job id: they begin at 1")
	}
	// (uid_t)-1 means "leave as it is" to setresuid(2): it must never get there.
	const none = ^uint32(0)
	if r.UID != nil && *r.UID == none {
		return bad("uid", "%d is not a user id", none)
	}
	if r.GID != nil && *r.GID == none {
		return bad("gid", "%d is not a group id", none)
	}
	return nil
}

func (r *Request) checkCounts() error {
	switch {
	case r.NTasks < 1:
		return bad("ntasks", "%d tasks: at least 1 is needed", r.NTasks)
	case r.NTasks > TasksMax:
		return bad("ntasks", "%d tasks: the limit is %d", r.NTasks, TasksMax)
	case r.NNodes < 1:
		return bad("nnodes", "%d nodes: at least 1 is needed", r.NNodes)
	case r.NNodes > NodesMax:
		return bad("nnodes", "%d nodes: the limit is %d", r.NNodes, NodesMax)
	case r.CPUsPerTask < 1:
		return bad("cpus_per_task", "%d CPUs: at least 1 is needed", r.CPUsPerTask)
	case r.CPUsPerTask > TasksMax:
		return bad("cpus_per_task", "%d CPUs: the limit is %d", r.CPUsPerTask, TasksMax)
	case r.ImmediateS != nil && (*r.ImmediateS < WaitForever || *r.ImmediateS > math.MaxInt32): // a Duration holds more
		return bad("immediate_s", "%d s: want 0 to %d, or %d for no limit", *r.ImmediateS, math.MaxInt32, WaitForever)
	case r.AcctgFreq != nil && (*r.AcctgFreq < 0 || *r.AcctgFreq > AcctgFreqMax):
		return bad("acctg_freq", "%d s: want 0 to %d", *r.AcctgFreq, AcctgFreqMax)
	}
	return nil
}

func (r *Request) checkMemory() error {
	switch {
	case r.Mem != nil && r.MemPerCPU != nil:
		return bad("mem_mb", "--mem and --mem-per-cpu exclude each other")
	case r.Mem != nil && *r.Mem > MemoryMax:
		return bad("mem_mb", "%d MB is more than any machine has", *r.Mem)
	case r.MemPerCPU != nil && *r.MemPerCPU > MemoryMax/(1<<16):
		return bad("mem_per_cpu_mb", "%d MB is more than any machine has", *r.MemPerCPU)
	}
	return nil
}

func (r *Request) checkGres() error {
	if err := CheckGres(r.Gres); err != nil {
		return bad("gres", "%v", err)
	}
	return nil
}

// checkArgv leaves lengths alone: what the kernel takes depends on the task's
// own limits, and E2BIG of its execve is the answer. noded's limit for the
// whole request bounds them here.
func (r *Request) checkArgv() error {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return bad("argv", "no command is given")
	}
	for i, a := range r.Argv {
		if strings.IndexByte(a, 0) >= 0 {
			return bad("argv", "argument %d holds a NUL byte", i)
		}
	}
	return nil
}

func (r *Request) checkEnv() error { return checkEnv(r.Env) }

func checkEnv(env []string) error {
	for i, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return bad("env", "entry %d (%.40q) is not NAME=VALUE", i, e)
		}
		if strings.IndexByte(e, 0) >= 0 {
			return bad("env", "variable %.80q holds a NUL byte", name)
		}
	}
	return nil
}

func (r *Request) checkPlace() error {
	if !strings.HasPrefix(r.Cwd, "/") {
		return bad("cwd", "%.80q is not an absolute path", r.Cwd)
	}
	if err := checkPath("cwd", r.Cwd); err != nil {
		return err
	}
	if r.Umask > 0o777 {
		return bad("umask", "%#o is more than 0777", r.Umask)
	}
	return nil
}

func (r *Request) checkStreams() error {
	for _, s := range []struct {
		field  string
		stream Stream
	}{{"stdin", r.Stdin}, {"stdout", r.Stdout}, {"stderr", r.Stderr}} {
		if err := s.stream.check(s.field, r.NTasks); err != nil {
			return err
		}
		if r.Unattended && s.stream.Kind == StreamClient {
			return bad(s.field, "kind %q needs a launcher, and the step is unattended", s.stream.Kind)
		}
	}
	return nil
}

func (s Stream) check(field string, ntasks int) error {
	switch s.Kind {
	case StreamClient, StreamNull:
	case StreamSame:
		if field != "stderr" {
			return bad(field, "kind %q is for stderr only", s.Kind)
		}
	case StreamFile:
		if s.Pattern == "" {
			return bad(field, "kind %q needs a pattern", s.Kind)
		}
	default:
		return bad(field, "unknown kind %.40q", string(s.Kind))
	}
	if s.Pattern != "" && s.Kind != StreamFile {
		return bad(field, "a pattern goes with kind %q, not %q", StreamFile, s.Kind)
	}
	if s.Rank != nil && (*s.Rank < 0 || *s.Rank >= ntasks) {
		return bad(field, "there is no task %d: ranks go from 0 to %d", *s.Rank, ntasks-1)
	}
	return checkPath(field, s.Pattern)
}

// checkWords checks what appears in logs and listings: a newline in it would
// forge a line there.
func (r *Request) checkWords() error {
	for _, w := range []struct{ field, value string }{
		{"name", r.Name}, {"submit_host", r.SubmitHost}, {"mpi", r.MPI},
	} {
		if len(w.value) > NameMax {
			return bad(w.field, "%d bytes: the limit is %d", len(w.value), NameMax)
		}
		if i := strings.IndexFunc(w.value, unicode.IsControl); i >= 0 {
			return bad(w.field, "control character at byte %d", i)
		}
	}
	return nil
}

func checkPath(field, path string) error {
	if strings.IndexByte(path, 0) >= 0 {
		return bad(field, "holds a NUL byte")
	}
	if len(path) > PathMax {
		return bad(field, "%d bytes: the limit is %d", len(path), PathMax)
	}
	return nil
}

// Validate checks the request in the spec and what noded decided about it. A
// failure of the latter is noded's bug, never the user's mistake.
func (s *Spec) Validate() error {
	if err := s.Request.Validate(); err != nil {
		return err
	}
	switch {
	case s.ID.Job == 0:
		return bad("id", "step %s has no job", s.ID)
	case s.User.UID == ^uint32(0) || s.User.GID == ^uint32(0):
		return bad("user", "uid %d, gid %d cannot be taken on", s.User.UID, s.User.GID)
	case s.NodeName == "":
		return bad("node_name", "is empty")
	case s.Proctrack.Kind == "":
		return bad("proctrack", "has no kind")
	}
	if s.Layout != nil {
		if err := s.Layout.Check(s.NodeID, s.NTasks); err != nil {
			return bad("layout", "%v", err)
		}
	}
	cpus, err := ParseCPUList(s.CPUs)
	if err != nil {
		return bad("cpus", "%v", err)
	}
	if len(cpus) != s.NCPUs {
		return bad("ncpus", "%d, but cpus %q names %d", s.NCPUs, s.CPUs, len(cpus))
	}
	return nil
}

// checkInteractive: an allocation's shell is one process, beside all else of the job.
func (r *Request) checkInteractive() error {
	switch {
	case !r.Interactive:
		return nil
	case r.Job == nil:
		return bad("interactive", "it is a step of a job, and none is named")
	case r.NTasks != 1 || len(r.Apps) > 1:
		return bad("interactive", "%d tasks: it has one", r.NTasks)
	case r.Mem != nil || r.MemPerCPU != nil || len(r.Gres) > 0:
		return bad("interactive", "it has all memory and generic resources of its job, and none of its own")
	}
	return nil
}

// checkNumbers checks the numbers that a controller gives; whether they are free is noded's
// to tell.
func (r *Request) checkNumbers() error {
	as := r.As
	switch {
	case as == nil:
		return nil
	case as.Job == 0 || as.Job >= JobsEnd:
		return bad("id", "%d is no number of a job: want 1 to %d", as.Job, uint32(JobsEnd-1))
	case r.Job != nil && *r.Job != as.Job:
		return bad("id", "job %d, and the step is to be one of job %d", as.Job, *r.Job)
	case as.Step != nil && len(r.Script) > 0:
		return bad("id", "a batch step has a number of its own")
	case as.Step != nil && r.Interactive:
		return bad("id", "an interactive step has a number of its own")
	case as.Step != nil && *as.Step >= StepsEnd:
		return bad("id", "%d is no number of a step: want 0 to %d", *as.Step, uint32(StepsEnd-1))
	}
	return nil
}
