// Package spec makes of what slurmd says to a step daemon the step.Spec that package task
// runs. It is pure: it reads no file and asks no service. Begin with Of.
package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/srunopt"
	"stepd/step"
)

// Of is the Spec of a step. Its Proctrack and Confine are still to be filled in, and User
// where the credential has no name. An error says why the step cannot run.
func Of(s *wire.Stream, c *slurmconf.Config) (*step.Spec, error) {
	switch {
	case s.Launch != nil:
		return ofLaunch(s, c)
	case s.Batch != nil:
		return ofBatch(s, c)
	}
	return nil, fmt.Errorf("cannot make a step of a message that has none")
}

// ofLaunch is the Spec of a step of srun's.
func ofLaunch(s *wire.Stream, c *slurmconf.Config) (*step.Spec, error) {
	l := s.Launch
	out := common(s, c, l.Cred, l.Env, l.Hosts)
	out.ID = step.ID{Job: l.Step.Job, Step: l.Step.Step}
	out.NTasks, out.NNodes = int(l.Tasks), int(l.Nodes)
	out.CPUsPerTask = cpusPerTask(l.CPUsPerTask)
	out.Overcommit = l.Flags&wire.FlagOvercommit != 0
	out.Argv, out.Cwd, out.Label = l.Argv, l.Dir, l.Flags&wire.FlagLabel != 0
	out.Stdin, out.Stdout, out.Stderr = stream(l.In, false), stream(l.Out, l.OpenMode == openAppend), stream(l.Err, l.OpenMode == openAppend)
	same(out)
	if l.Flags&wire.FlagPTY != 0 {
		terminal(out)
	}
	out.MPI = s.MPIType
	taskEnv(out, s.Conf.Release, l.Cred, l.OOMKillStep)
	if l.Step.Step == wire.StepInteractive {
		interactiveEnv(out, s.Conf.Release)
	}
	out.TaskProlog, out.TaskEpilog = l.TaskProlog, l.TaskEpilog
	if l.Step.Step == step.ExternStep {
		extern(out)
	}
	var err error
	if out.SpankOptions, err = options(l.Options); err != nil {
		return nil, err
	}
	out.JobControl = step.Raw(l.JobControl)
	out.LaunchAddr = address(s)
	out.MemoryMB, out.JobMemoryMB = l.StepMemory, l.JobMemory
	if l.OOMKillStep {
		out.OOMKillStep = &l.OOMKillStep
	}
	out.AcctgFreq = taskFrequency(l.AcctFreq)
	bind(out, l)
	if err := layout(out, l); err != nil {
		return nil, err
	}
	if err := component(out, l); err != nil {
		return nil, err
	}
	if l.Flags&wire.FlagMultiProg != 0 {
		err = multiProg(out)
	}
	spawned(out, s)
	return out, err
}

// ofBatch is the Spec of a job's script. Argv has its place in the spool, and the script is
// to be written there.
func ofBatch(s *wire.Stream, c *slurmconf.Config) (*step.Spec, error) {
	b := s.Batch
	out := common(s, c, b.Cred, b.Env, b.Hosts)
	out.ID = step.ID{Job: b.Job, Step: step.BatchStep}
	out.Origin, out.NNodes, out.NTasks = step.OriginBatch, 1, 1
	out.NodeList = s.Conf.Node
	out.JobNTasks = int(b.Tasks)
	out.CPUsPerTask = cpusPerTask(b.CPUsPerTask)
	bindCPUs(out, b.CPUBindFlags, b.CPUBind)
	out.Cwd = b.Dir
	out.Argv = []string{ScriptPath(s.Conf.Spool, b.Job)}
	if len(b.Argv) > 1 {
		out.Argv = append(out.Argv, b.Argv[1:]...)
	}
	if b.ArrayTask != wire.NoVal {
		out.Array = &step.ArrayTask{Job: b.ArrayJob, Task: b.ArrayTask}
	}
	out.RestartCount = uint32(b.Restarts)
	out.Env = batchEnv(out.Env, s, c)
	batchTaskEnv(out, s, c)
	appends := b.OpenMode == openAppend || b.OpenMode == 0 && c.JobFileAppend
	name := "slurm-%j.out"
	if out.Array != nil {
		name = "slurm-%A_%a.out"
	}
	out.Stdin, out.Stdout, out.Stderr = file(b.In, "/dev/null", false), file(b.Out, name, appends), step.Stream{Kind: step.StreamSame}
	if b.Err != "" && b.Err != b.Out {
		out.Stderr = file(b.Err, "", appends)
	}
	out.JobControl = step.Raw(b.JobControl)
	out.Unattended = true
	out.MemoryMB, out.JobMemoryMB = b.JobMemory, b.JobMemory
	if b.OOMKillStep {
		out.OOMKillStep = &b.OOMKillStep
	}
	out.AcctgFreq = taskFrequency(b.AcctFreq)
	return out, nil
}

// openAppend is --open-mode=append (slurm.h).
const openAppend = 1

// common is what every step has.
func common(s *wire.Stream, c *slurmconf.Config, cred *wire.Cred, env []string, hosts string) *step.Spec {
	out := &step.Spec{
		EnvComplete: true, Speaker: "slurmstepd-" + s.Conf.Node, NodeName: s.Conf.Node, NodeList: hosts,
		JobNodeList: cred.JobHosts, JobNNodes: int(cred.JobNodes), JobNTasks: int(cred.JobTasks),
		User:      step.User{Name: cred.Name, UID: cred.UID, GID: cred.GID, Groups: groups(cred)},
		Container: "none", RunDir: s.Conf.Spool + "/stepd", Site: site(c), JobStarted: cred.Begin,
	}
	out.Schema = step.Schema
	out.Site.Spank.OptionsOnce = s.Conf.Release >= wire.V2405
	out.Env = append(environment(env, s), topology(s.Conf)...)
	out.OwnLimits, out.Umask = true, 0o022
	for _, e := range env {
		switch name, value, _ := strings.Cut(e, "="); name {
		case "SLURM_UMASK":
			if mask, err := strconv.ParseUint(value, 8, 9); err == nil {
				out.Umask = uint32(mask)
			}
		case "SLURM_JOB_NAME":
			out.JobName, out.Name = value, value
		case "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID":
			array(out, name, value)
		}
	}
	out.Partition, out.RestartCount = cred.Partition, uint32(cred.Restarts)
	cpus(out, s.Conf, cred)
	return out
}

// array notes the job's place in an array, which a step has from its environment alone.
func array(out *step.Spec, name, value string) {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return
	}
	if out.Array == nil {
		out.Array = new(step.ArrayTask)
	}
	if name == "SLURM_ARRAY_JOB_ID" {
		out.Array.Job = uint32(n)
	} else {
		out.Array.Task = uint32(n)
	}
}

// groups are all of the user's groups, the primary one included.
func groups(cred *wire.Cred) []uint32 {
	if slices.Contains(cred.GIDs, cred.GID) {
		return cred.GIDs
	}
	return append([]uint32{cred.GID}, cred.GIDs...)
}

// extern makes the step one process that waits for the end of the job.
func extern(out *step.Spec) {
	out.Argv, out.Unattended = []string{"/bin/sleep", "infinity"}, true
	out.Cwd, out.NTasks, out.NNodes = "/", 1, 1
	// No script of the site's and no binding is for it.
	out.Scripts, out.Affinity = step.Site{}.Scripts, nil
	out.TaskProlog, out.TaskEpilog = "", ""
}

// stream is srun's name of a stream: "" is srun itself, a number one task's.
func stream(name string, appends bool) step.Stream {
	if name == "" {
		return step.Stream{Kind: step.StreamClient}
	}
	if rank, err := strconv.ParseUint(name, 10, 31); err == nil {
		return step.Stream{Kind: step.StreamClient, Rank: new(int(rank))}
	}
	return file(name, "", appends)
}

func file(name, byDefault string, appends bool) step.Stream {
	if name == "" {
		name = byDefault
	}
	if name == "/dev/null" {
		return step.Stream{Kind: step.StreamNull}
	}
	return step.Stream{Kind: step.StreamFile, Pattern: name, Append: appends}
}

// terminal gives rank 0 a terminal as large as srun's window, and the other ranks no streams.
func terminal(out *step.Spec) {
	out.Terminal = &step.Terminal{Rows: size(out.Env, "SLURM_PTY_WIN_ROW"), Cols: size(out.Env, "SLURM_PTY_WIN_COL")}
	null := step.Stream{Kind: step.StreamNull}
	out.Stdin, out.Stdout, out.Stderr = null, null, null
}

// size is a number of the environment; 0 is not known.
func size(env []string, name string) uint16 {
	n, err := strconv.ParseUint(Variable(env, name), 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// same joins stderr to stdout where both are one file.
func same(out *step.Spec) {
	if out.Stdout.Kind == step.StreamFile && out.Stderr.Kind == step.StreamFile && out.Stdout.Pattern == out.Stderr.Pattern {
		out.Stderr = step.Stream{Kind: step.StreamSame}
	}
}

// options are the plugins' options, each named "OPTION:PLUGIN".
func options(list []wire.SpankOption) (out []step.SpankOption, err error) {
	for _, o := range list {
		at := strings.LastIndexByte(o.Name, ':')
		if at < 0 {
			return nil, fmt.Errorf("cannot read option %q: it names no plugin", o.Name)
		}
		s := step.SpankOption{Name: o.Name[:at], Plugin: o.Name[at+1:]}
		if o.HasValue {
			s.Value = []byte(o.Value)
		}
		out = append(out, s)
	}
	return out, nil
}

// address is the host that srun runs on.
func address(s *wire.Stream) string {
	for _, a := range []string{s.Launch.Srun.Addr().String(), s.Client.Addr().String()} {
		if a != "invalid IP" {
			return a
		}
	}
	return ""
}

// cpusPerTask is at least 1: 0 and NO_VAL16 say nothing.
func cpusPerTask(n uint16) int {
	if n == 0 || n >= 0xfffe {
		return 1
	}
	return int(n)
}

// taskFrequency is the task= of --acctg-freq in seconds, nil where it is not given.
func taskFrequency(text string) *int {
	for _, word := range strings.Split(text, ",") {
		word = strings.TrimPrefix(word, "task=")
		if n, err := strconv.Atoi(word); err == nil && n >= 0 {
			return &n
		}
	}
	return nil
}

// tasksMax is the most tasks of a step on a node: Slurm counts them in 16 bits.
const tasksMax = 1<<16 - 1

// layout says where the tasks of a step of several nodes are. srun says how many they are: what
// it says must agree with the ranks that it has sent.
func layout(out *step.Spec, l *wire.Launch) error {
	if out.ID.Step == step.ExternStep {
		return nil
	}
	if l.Nodes <= 1 {
		if n := len(slices.Concat(l.Ranks...)); n != out.NTasks || n > tasksMax {
			return fmt.Errorf("cannot place the tasks: the launch says that there are %d, and has ranks for %d; %d is the limit", out.NTasks, n, tasksMax)
		}
		return nil
	}
	hosts, err := slurmconf.ExpandHosts(l.Hosts)
	if err != nil {
		return fmt.Errorf("cannot read the step's nodes %q: %w", l.Hosts, err)
	}
	if len(hosts) != len(l.Ranks) {
		return fmt.Errorf("cannot place the tasks: %q are %d nodes, and the launch has ranks for %d", l.Hosts, len(hosts), len(l.Ranks))
	}
	at := slices.Index(hosts, out.NodeName)
	if at < 0 {
		return fmt.Errorf("cannot find node %q in the step's nodes %q", out.NodeName, l.Hosts)
	}
	out.NodeID = uint32(at)
	out.Layout = new(layoutOf(hosts, l.Ranks))
	return out.Layout.Check(out.NodeID, out.NTasks)
}

// component says where the step stands in one that several components of a heterogeneous job run.
// Slurm gives no node to two of them, so that this node has one.
func component(out *step.Spec, l *wire.Launch) error {
	h := &l.Het
	if !h.Several() {
		return nil
	}
	if uint64(h.NodeOffset)+uint64(l.Nodes) > uint64(h.Nodes) || uint64(h.TaskOffset)+uint64(l.Tasks) > min(uint64(h.Tasks), tasksMax) {
		return fmt.Errorf("cannot place the component: it has %d tasks on %d nodes, from rank %d on node %d on, and the step has %d on %d; %d tasks are the limit",
			l.Tasks, l.Nodes, h.TaskOffset, h.NodeOffset, h.Tasks, h.Nodes, tasksMax)
	}
	out.FirstNode, out.FirstRank, out.AllTasks = h.NodeOffset, int(h.TaskOffset), int(h.Tasks)
	if out.MPI != "" && out.MPI != "none" {
		if err := whole(out, h); err != nil {
			return err
		}
	}
	for _, s := range []*step.Stream{&out.Stdin, &out.Stdout, &out.Stderr} {
		if s.Rank != nil { // srun names a task of the whole step; below 0 it is another component's
			s.Rank = new(*s.Rank - int(h.TaskOffset))
		}
	}
	return nil
}

// whole says where the tasks of all components are, which the ranks of MPI must know.
func whole(out *step.Spec, h *wire.Het) error {
	hosts, err := slurmconf.ExpandHosts(h.Hosts)
	if err != nil {
		return fmt.Errorf("cannot read the nodes of all components %q: %w", h.Hosts, err)
	}
	if len(hosts) != len(h.Ranks) {
		return fmt.Errorf("cannot place the components: %q are %d nodes, and the launch has ranks for %d", h.Hosts, len(hosts), len(h.Ranks))
	}
	at := slices.Index(hosts, out.NodeName) // they are sorted by name, and not by component
	if at < 0 {
		return fmt.Errorf("cannot find node %q in the nodes of all components %q", out.NodeName, h.Hosts)
	}
	all := layoutOf(hosts, h.Ranks)
	if err := all.Check(uint32(at), out.AllTasks); err != nil {
		return fmt.Errorf("cannot place the components: %w", err)
	}
	var own []int
	for _, rank := range out.LocalRanks() {
		own = append(own, out.SeenRank(rank))
	}
	if ranks := all.Nodes[at].Ranks; ranks != step.FormatCPUList(own) {
		return fmt.Errorf("cannot place the component: node %q has the ranks %q of all components, and %q by its own", out.NodeName, ranks, step.FormatCPUList(own))
	}
	out.AllLayout, out.AllNodeID, out.AllID = &all, uint32(at), out.ID
	if h.Job != wire.NoVal { // the components are jobs
		out.AllID.Job = h.Job
	}
	// No credential says which job is the first component: with the user's number, which it does
	// say, no user comes near another one's step.
	out.AllKey = fmt.Sprintf("%s.%d", out.AllID.Key(), out.User.UID)
	return nil
}

// layoutOf has the ranks of each of the nodes.
func layoutOf(hosts []string, ranks [][]uint32) (l step.Layout) {
	for i, of := range ranks {
		list := make([]int, len(of))
		for j, r := range of {
			list[j] = int(r)
		}
		slices.Sort(list)
		l.Nodes = append(l.Nodes, step.LayoutNode{Name: hosts[i], Ranks: step.FormatCPUList(list)})
	}
	return l
}

// multiProg gives each task its own command: argv is the file's name and its text.
func multiProg(out *step.Spec) error {
	if len(out.Argv) < 2 {
		return fmt.Errorf("cannot run --multi-prog: the launch has no text of the file")
	}
	apps, err := srunopt.ParseMultiProg(out.Argv[0], out.Argv[1], out.NTasks)
	if err != nil {
		return err
	}
	out.Apps, out.Argv = apps, step.Words(apps[0].Argv)
	return nil
}

// ScriptPath is where a batch job's script lies while it runs.
func ScriptPath(spool string, job uint32) string {
	return fmt.Sprintf("%s/job%05d/slurm_script", spool, job)
}

// seconds rounds up: a limit below a second must not become 0, which is none or a default.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
