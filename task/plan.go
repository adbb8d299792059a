package task

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"stepd/step"
)

// Plan is what will happen, decided before anything does: environments,
// streams and names. It is a pure function of the Spec.
type Plan struct {
	Spec *step.Spec
	// Ranks are those of this node's tasks, ascending: a local id is a place in
	// there. What there is one of for each task is counted by local id.
	Ranks []int
	// Env is the job's environment as plugins see it at init.
	Env []string
	// HostEnv is the host's own environ.
	HostEnv []string
	// CommonEnv and TaskEnv[id] are set over the job's environment before
	// task_init.
	CommonEnv []string
	TaskEnv   [][]string
	// Streams are those that are known before a client has attached its own.
	Streams []step.TaskStream
	// NeedClient[fd] tells that a client must attach that stream.
	NeedClient [3]bool
}

// MakePlan plans the step. It fails only on a Spec that noded's validation
// would have refused.
func MakePlan(spec *step.Spec) (*Plan, error) {
	p := &Plan{
		Spec:    spec,
		Ranks:   spec.LocalRanks(),
		HostEnv: hostEnv(spec),
	}
	if isBatch(spec) {
		p.Env, p.CommonEnv = batchEnv(spec), batchCommonEnv(spec)
	} else {
		p.Env, p.CommonEnv = jobEnv(spec), commonEnv(spec, p.Ranks)
	}
	if spec.EnvComplete {
		p.Env = spec.Env
	}
	p.TaskEnv = make([][]string, len(p.Ranks))
	for id, rank := range p.Ranks {
		p.TaskEnv[id] = []string{"SLURM_PROCID=" + strconv.Itoa(rank), "SLURM_LOCALID=" + strconv.Itoa(id)}
	}
	for fd, s := range [3]step.Stream{spec.Stdin, spec.Stdout, spec.Stderr} {
		if err := p.planStream(fd, s); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// localID is the place of a rank among this node's tasks; ours is false where
// another node has it.
func (p *Plan) localID(rank int) (id int, ours bool) { return slices.BinarySearch(p.Ranks, rank) }

// jobEnv is the user's environment with what Slurm tells of the job over it,
// as recorded of srun. What the client alone knows is in the request already.
func jobEnv(s *step.Spec) []string {
	env := newEnvList(s.Env)
	keepLimits(env, s)
	hidePriority(env, s)
	job, stepID := u32(s.ID.Job), u32(s.ID.Step)
	ntasks, nnodes := strconv.Itoa(s.NTasks), strconv.Itoa(s.NodeCount())
	tasksPerNode := step.CountList(s.TaskCounts())
	if s.SlurmConf != "" {
		env.set("SLURM_CONF", s.SlurmConf)
	}
	env.set("SLURM_CLUSTER_NAME", s.Cluster)
	env.set("SLURM_JOB_NAME", cmp.Or(s.JobName, s.Name))
	tellJobNodes(env, s)
	env.set("SLURM_NTASKS", ntasks)
	env.set("SLURM_NPROCS", ntasks)
	if s.CPUsPerTask > 1 {
		env.set("SLURM_CPUS_PER_TASK", strconv.Itoa(s.CPUsPerTask))
	}
	setBinding(env, &s.Binding, s.NTasks, s.NodeCount())
	env.set("SLURM_JOB_ID", job)
	env.set("SLURM_JOBID", job)
	env.set("SLURM_STEP_ID", stepID)
	env.set("SLURM_STEPID", stepID)
	env.set("SLURM_NNODES", nnodes)
	env.set("SLURM_JOB_PARTITION", s.Partition)
	env.set("SLURM_TASKS_PER_NODE", tasksPerNode)
	env.set("SLURM_JOB_UID", u32(s.User.UID))
	env.set("SLURM_JOB_USER", s.User.Name)
	env.set("SLURM_STEP_NODELIST", s.NodeList)
	env.set("SLURM_STEP_NUM_NODES", nnodes)
	env.set("SLURM_STEP_NUM_TASKS", ntasks)
	env.set("SLURM_STEP_TASKS_PER_NODE", tasksPerNode)
	if s.MPI != "" && s.MPI != "none" {
		env.set("SLURM_MPI_TYPE", s.MPI)
	} else {
		env.unset("SLURM_MPI_TYPE")
	}
	tellResources(env, s)
	tellArray(env, s)
	// Inner stepctl commands find this node's daemon.
	env.set("NODED_SOCKET", s.RunDir+"/noded.sock")
	if s.PreserveEnv {
		preserve(env, s.Env)
	}
	return env.list
}

// tellArray sets the job's place in a job array, and how often it has run.
func tellArray(env *envList, s *step.Spec) {
	for _, e := range s.Array.Env() {
		name, value, _ := strings.Cut(e, "=")
		env.set(name, value)
	}
	if s.RestartCount > 0 {
		env.set("SLURM_RESTART_COUNT", u32(s.RestartCount))
	}
}

// preserve gives the numbers of tasks and nodes back that the client had.
func preserve(env *envList, own []string) {
	for _, e := range own {
		switch name, value, _ := strings.Cut(e, "="); name {
		case "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES":
			env.set(name, value)
		}
	}
}

// tellJobNodes tells of the job's nodes, of which the step may have some.
func tellJobNodes(env *envList, s *step.Spec) {
	nodes, cpus := s.JobNodeList, s.JobNodeCPUs
	if nodes == "" {
		nodes = s.NodeList
	}
	if len(cpus) == 0 && jobNodes(s) == 1 {
		cpus = []int{s.NCPUs}
	}
	if len(cpus) > 0 {
		env.set("SLURM_JOB_CPUS_PER_NODE", step.CountList(cpus))
	} else {
		env.unset("SLURM_JOB_CPUS_PER_NODE") // nobody has told of the other nodes'
	}
	env.set("SLURM_JOB_NUM_NODES", strconv.Itoa(jobNodes(s)))
	env.set("SLURM_NODELIST", nodes)
	env.set("SLURM_JOB_NODELIST", nodes)
}

// jobNodes counts the job's nodes.
func jobNodes(s *step.Spec) int { return max(s.JobNNodes, len(s.JobNodeCPUs), s.NodeCount()) }

// setBinding tells what was asked of the place of the tasks. What they got is
// task/affinity's to tell.
func setBinding(env *envList, b *step.Binding, ntasks, nnodes int) {
	if b.Distribution != (step.Distribution{}) {
		env.set("SLURM_DISTRIBUTION", b.Distribution.Text(ntasks, nnodes))
	}
	for _, v := range []struct {
		name string
		n    int
	}{
		{"SLURM_DIST_PLANESIZE", b.Distribution.Plane}, {"SLURM_THREADS_PER_CORE", b.ThreadsPerCore},
		{"SLURM_NTASKS_PER_CORE", b.NTasksPerCore}, {"SLURM_NTASKS_PER_SOCKET", b.NTasksPerSocket},
	} {
		if v.n > 0 {
			env.set(v.name, strconv.Itoa(v.n))
		}
	}
}

// hostEnv is the environ that plugins find in the host: nothing of the user's
// is in it, since they run as root there.
func hostEnv(s *step.Spec) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "SHELL=/bin/sh", "PWD=/"}
	if s.SlurmConf != "" {
		env = append(env, "SLURM_CONF="+s.SlurmConf)
	}
	env = append(env, "SLURMD_NODENAME="+s.NodeName)
	if isBatch(s) {
		return env // a script is no MPI program
	}
	mpi := s.MPI
	if mpi == "" {
		mpi = "none"
	}
	return append(env, "SLURM_MPI_TYPE="+mpi)
}

// maxArgStrlen is what execve(2) takes of one string (MAX_ARG_STRLEN).
const maxArgStrlen = 128 << 10

// commonEnv is what Slurm sets for every task between task_init_privileged and
// task_init; the ranks are beside it, and SLURM_TASK_PID is set by the task.
func commonEnv(s *step.Spec, ranks []int) []string {
	env := []string{
		"SLURM_CPUS_ON_NODE=" + strconv.Itoa(s.NCPUs),
		"SLURM_NODEID=" + u32(s.NodeID),
		"SLURM_LAUNCH_NODE_IPADDR=" + cmp.Or(s.LaunchAddr, "127.0.0.1"),
		"SLURM_JOB_GID=" + u32(s.User.GID),
		"SLURMD_NODENAME=" + s.NodeName,
	}
	// From about 22,000 tasks on no task could be exec'd with this list.
	if gtids := "SLURM_GTIDS=" + rankList(ranks); len(gtids) < maxArgStrlen {
		env = append(env, gtids)
	}
	return env
}

// planStream adds what is known of stream fd.
func (p *Plan) planStream(fd int, s step.Stream) error {
	if s.Rank != nil {
		// One task has the stream; the others read and write nothing.
		p.Streams = append(p.Streams, step.TaskStream{LocalID: step.AllRanks, FD: fd, Kind: step.StreamToNull})
	}
	id := step.AllRanks
	if s.Rank != nil {
		var ours bool
		if id, ours = p.localID(*s.Rank); !ours {
			return nil // another node's
		}
	}
	switch s.Kind {
	case step.StreamNull:
		p.Streams = append(p.Streams, step.TaskStream{LocalID: id, FD: fd, Kind: step.StreamToNull})
	case step.StreamSame:
		p.Streams = append(p.Streams, step.TaskStream{LocalID: id, FD: fd, Kind: step.StreamToStdout})
	case step.StreamClient:
		p.NeedClient[fd] = true
	case step.StreamFile:
		return p.planFile(fd, id, s)
	default:
		return fmt.Errorf("cannot plan stream %d: unknown kind %q", fd, s.Kind)
	}
	return nil
}

// planFile expands the pattern: once where no rank is in it, so that all tasks
// open the same path, else for each task.
func (p *Plan) planFile(fd, id int, s step.Stream) error {
	flags := syscall.O_RDONLY
	if fd != 0 {
		flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_APPEND
		if !s.Append {
			flags |= syscall.O_TRUNC
		}
	}
	kind := step.StreamToPath
	if isBatch(p.Spec) && fd != 0 {
		kind = step.StreamToEarlyPath // it has no client that would hear of failures
	}
	add := func(id, rank int) error {
		path, err := step.ExpandPattern(s.Pattern, p.Spec, rank)
		p.Streams = append(p.Streams, step.TaskStream{LocalID: id, FD: fd, Kind: kind, Path: path, Flags: flags})
		return err
	}
	switch {
	case id != step.AllRanks:
		return add(id, p.Ranks[id])
	case !step.PatternHas(s.Pattern, "t"):
		return add(id, 0)
	}
	for id, rank := range p.Ranks {
		if err := add(id, rank); err != nil {
			return err
		}
	}
	return nil
}

// rankList is "0,1,2".
func rankList(ranks []int) string {
	var b strings.Builder
	for i, rank := range ranks {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(rank))
	}
	return b.String()
}

func u32(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

// envList is an environment in its order, with the last setting of a name
// in the place of its first.
type envList struct {
	list []string
	at   map[string]int
}

func newEnvList(env []string) *envList {
	e := &envList{list: make([]string, 0, len(env)+32), at: make(map[string]int, len(env)+32)}
	for _, v := range env {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			continue // not a variable: execve(2) would pass it, no program reads it
		}
		e.put(name, v)
	}
	return e
}

func (e *envList) set(name, value string) { e.put(name, name+"="+value) }

func (e *envList) put(name, v string) {
	if i, ok := e.at[name]; ok {
		e.list[i] = v
		return
	}
	e.at[name] = len(e.list)
	e.list = append(e.list, v)
}

func (e *envList) unset(name string) {
	i, ok := e.at[name]
	if !ok {
		return
	}
	e.list = append(e.list[:i], e.list[i+1:]...)
	delete(e.at, name)
	for n, j := range e.at {
		if j > i {
			e.at[n] = j - 1
		}
	}
}
