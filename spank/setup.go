package spank

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/wire"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// configMax is the largest blob that the host reads (CONFIG_BLOB_MAX there).
const configMax = 64 << 20

// noArrayTask is what S_JOB_ARRAY_TASK_ID gives for a job that is no array (NO_VAL).
const noArrayTask = 0xfffffffe

// Setup reads plugstack.conf, describes the step to the host, and starts reporting
// records of its log channel to sink, on a goroutine that ends with the
// channel. The returned lines are for the administrator and the user: what is
// wrong in the file without being fatal.
func (h *Host) Setup(cfg launch.HostSetup, sink func(launch.HostRecord)) (problems []string, err error) {
	conf := cfg.Spec.Spank
	stack, err := StackOf(conf)
	if err != nil {
		close(h.logDone)
		return nil, err
	}
	left := stack.LeaveOut(&conf)
	h.ranks = cfg.Spec.LocalRanks()
	problems, err = h.prepare(stack, conf.AllowReleases, sink)
	problems = append(problems, left...)
	if err != nil {
		return problems, err
	}
	return problems, h.setup(&cfg)
}

// prepare makes the board, and lets sink hear the log. It returns lines about the bad lines
// of the stack: its warnings are the administrator's, and noded reports them once.
func (h *Host) prepare(stack Stack, allow []string, sink func(launch.HostRecord)) (problems []string, err error) {
	for _, p := range stack.Problems {
		if p.Severity == SeverityError {
			problems = append(problems, p.String())
		}
	}
	h.stack, h.allow = stack.Plugins, allow
	for _, p := range h.stack {
		h.names = append(h.names, filepath.Base(p.Path))
	}
	if h.board, err = newBoard(len(h.ranks), len(h.stack)); err != nil {
		close(h.logDone)
		return problems, err
	}
	h.listen(sink)
	return problems, nil
}

func (h *Host) setup(cfg *launch.HostSetup) error {
	b, err := setupBlob(cfg, h.stack)
	if err != nil {
		return err
	}
	return h.sendSetup(b, cfg.Gate, cfg.Helpers, cfg.Namespaces)
}

// sendSetup sends SETUP; gate and helpers may be nil.
func (h *Host) sendSetup(config []byte, gate, helpers *os.File, spaces launch.Namespaces) error {
	blob, err := memfd("spank-setup", config)
	if err != nil {
		return err
	}
	defer blob.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("cannot open %q: %w", "/dev/null", err)
	}
	defer null.Close()
	if gate == nil {
		gate = null // nothing will wait there
	}
	if helpers == nil {
		helpers = null
	}
	fds := []int{int(blob.Fd()), int(h.board.file.Fd()), int(gate.Fd()), int(null.Fd()), int(helpers.Fd())}
	for _, ns := range []*os.File{spaces.Mount, spaces.PID, spaces.User} {
		if ns != nil {
			fds = append(fds, int(ns.Fd()))
		}
	}
	var w writer
	w.U32(hostProtocolVersion)
	return h.do(cmdSetup, w.B, fds, nil)
}

// setupBlob is the config of SETUP.
func setupBlob(cfg *launch.HostSetup, stack []Plugin) ([]byte, error) {
	s, i := cfg.Spec, itemsOf(cfg.Spec)
	w := &writer{Writer: wire.Writer{B: make([]byte, 0, 8192)}}
	w.tlvU32(tagContext, uint32(ContextRemote))
	w.tlvU32(tagUID, s.User.UID)
	w.tlvU32(tagGID, s.User.GID)
	w.tlvU32s(tagGroups, s.User.Groups)
	w.tlvStr(tagUser, s.User.Name)
	w.tlvU32(tagJobID, s.ID.Job)
	w.tlvU32(tagStepID, s.ID.Step)
	w.tlvU32(tagNNodes, i.nnodes)
	w.tlvU32(tagNodeID, s.NodeID)
	w.tlvStr(tagNodeName, s.NodeName)
	w.tlvU32(tagTotalTasks, i.totalTasks)
	w.tlv(tagGlobalIDs, func(w *writer) {
		for _, rank := range s.LocalRanks() {
			w.U32(uint32(rank))
		}
	})
	w.tlvU32(tagNCPUs, uint32(s.NCPUs))
	w.tlvU32(tagCPUsPerTask, i.cpusPerTask)
	w.tlvStr(tagJobCores, cmp.Or(s.JobCPUs, s.CPUs))
	w.tlvStr(tagStepCores, s.CPUs)
	w.tlvU64(tagStepMem, s.MemoryMB)
	w.tlvU32(tagArrayID, i.arrayID)
	putJob(w, s)
	w.tlvStrs(tagArg, s.Argv)
	w.tlvStrs(tagEnv, cfg.Env)
	w.tlvStrs(tagHostEnv, cfg.HostEnv)
	for _, o := range s.SpankOptions {
		putOption(w, o.Plugin, o.Name, o.Value)
	}
	if err := putOptions(w, cfg.Env, alone(s)); err != nil {
		return nil, err
	}
	w.tlvStr(tagCwd, s.Cwd)
	w.tlvU32(tagUmask, s.Umask)
	w.tlvU32(tagOOMScore, 0) // as in Slurm: what protects the daemons is not for tasks
	w.tlvU32(tagNoNewPrivs, flag(s.NoNewPrivs))
	w.tlvU32(tagJoinNS, joinNS(s))
	putStack(w, stack)
	return w.B, nil
}

// putJob sends what slurm_load_job answers beside the items of spank_get_item, or otherwise:
// what it says is the job's, in each of its steps.
func putJob(w *writer, s *step.Spec) {
	w.tlvStr(tagJobName, cmp.Or(s.JobName, s.Name))
	w.tlvStr(tagPartition, s.Partition)
	w.tlvStr(tagNodeList, cmp.Or(s.JobNodeList, s.NodeList))
	w.tlvStr(tagCluster, s.Cluster)
	w.tlvStr(tagSubmitHost, s.SubmitHost)
	w.tlvU32(tagBatch, flag(s.Origin == step.OriginBatch))
	w.tlvU32(tagJobNNodes, uint32(cmp.Or(max(s.JobNNodes, len(s.JobNodeCPUs)), s.NodeCount())))
	cpus := 0
	for _, n := range s.JobNodeCPUs {
		cpus += n
	}
	if list, err := step.ParseCPUList(s.JobCPUs); cpus == 0 && err == nil {
		cpus = len(list)
	}
	w.tlvU32(tagJobNCPUs, uint32(cmp.Or(cpus, s.NCPUs)))
	w.tlvU32(tagJobNTasks, uint32(cmp.Or(s.JobNTasks, s.NTasks)))
	w.tlvU32(tagJobPerTask, uint32(max(s.CPUsPerTask, 1)))
	w.tlvU64(tagJobMem, s.JobMemoryMB)
	w.tlvU32(tagRestarts, s.RestartCount)
	if s.Array != nil {
		w.tlvU32(tagJobArray, s.Array.Job)
		w.tlvU32(tagArrayTask, s.Array.Task)
	} else {
		w.tlvU32(tagArrayTask, noArrayTask)
	}
	if !s.JobStarted.IsZero() {
		w.tlvU64(tagJobStart, uint64(s.JobStarted.Unix()))
	}
	w.tlvU32(tagJobLimit, uint32((s.JobLimitS+59)/60))
}

// putEnd sends how the job has ended, as slurm.h numbers it; nothing of one that runs.
func putEnd(w *writer, state step.State) {
	for number, end := range map[uint32]step.State{
		3: step.Completed, 4: step.Cancelled, 5: step.Failed, 6: step.Timeout, 7: step.NodeFail, 11: step.OutOfMemory,
	} {
		if state == end {
			w.tlvU32(tagJobEnd, number)
		}
	}
}

func putStack(w *writer, stack []Plugin) {
	for _, p := range stack {
		w.tlv(tagPlugin, func(w *writer) { w.U32(flag(p.Required)); w.Str(p.Path) })
		w.tlvStrs(tagPluginArg, p.Args)
	}
}

func putOption(w *writer, plugin, name string, value []byte) {
	w.tlv(tagOption, func(w *writer) {
		w.U32(flag(value != nil))
		w.Str(plugin)
		w.Str(name)
		w.Str(string(value))
	})
}

// putOptions hands over the options that an environment holds, after the
// request's: so are they called back twice, as measured. Where the plugin's
// name ends and the option's begins is unknown: the host compares both
// together.
//
// The variables in not are left out.
func putOptions(w *writer, env []string, not map[string]bool) error {
	n := 0
	for _, e := range env {
		opt, ok := strings.CutPrefix(e, srunopt.OptionPrefix)
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(opt, "=")
		switch n++; {
		// The host compares each with each: a user must not make that long.
		case n > srunopt.OptionsMax:
			return fmt.Errorf("cannot take the plugins' options of the environment: there are more than %d", srunopt.OptionsMax)
		case len(name) > 2*srunopt.NameMax:
			return fmt.Errorf("cannot take a plugin's option of the environment: its name %.40q... has %d bytes, and %d is the limit", name, len(name), 2*srunopt.NameMax)
		case len(value) > srunopt.OptionMax:
			return fmt.Errorf("cannot take a plugin's option of the environment: the value of %q has %d bytes, and %d is the limit", name, len(value), srunopt.OptionMax)
		}
		if !not[srunopt.OptionPrefix+name] {
			putOption(w, "", name, append([]byte{}, value...))
		}
	}
	return nil
}

// alone are the variables of options that are called back for the request alone.
func alone(s *step.Spec) map[string]bool {
	if !s.Site.Spank.OptionsOnce {
		return nil
	}
	not := make(map[string]bool, len(s.SpankOptions))
	for _, o := range s.SpankOptions {
		not[srunopt.OptionVariable(o.Plugin, o.Name)] = true
	}
	return not
}

// items are the items of spank_get_item that are not as in the request.
type items struct{ nnodes, totalTasks, cpusPerTask, arrayID uint32 }

func itemsOf(s *step.Spec) items {
	i := items{uint32(s.NodeCount()), uint32(s.NTasks), uint32(max(s.CPUsPerTask, 1)), s.ID.Job}
	if s.Overcommit {
		i.cpusPerTask = 1 // spank-abi, items
	}
	// A batch step answers four otherwise than the rest (traces/table_sbatch_items.tsv):
	// it has no nodes and no array, all of the job's tasks in total, and its one task has
	// all of the job's CPUs.
	if s.ID.Step == step.BatchStep {
		i = items{0, uint32(s.JobNTasks), uint32(s.NCPUs), 0}
	}
	if s.Array != nil {
		i.arrayID = s.Array.Job
	}
	return i
}

func joinNS(s *step.Spec) uint32 {
	switch {
	case !s.ContainerNS:
		return joinNever
	case s.EntireStepInNS:
		return joinHost
	default:
		return joinTasks
	}
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Launch describes the tasks' streams and environment to the host.
func (h *Host) Launch(l *launch.Launch) error {
	w := &writer{}
	var fds []int
	base := h.nfds
	seen := make(map[int]uint32)
	putTasks(w, l, func(fd int) uint32 {
		if i, ok := seen[fd]; ok {
			return i
		}
		i := uint32(base + len(fds))
		seen[fd] = i
		fds = append(fds, fd)
		return i
	})
	for _, m := range l.MemPolicies {
		w.tlv(tagMemPolicy, func(w *writer) { putMemPolicy(w, m) })
	}
	w.tlvStrs(tagEnvSet, l.Env)
	w.tlvStrs(tagEnvUnset, l.Unset)
	w.tlvStrs(tagExitEnv, l.ExitEnv)
	if len(w.B) > configMax {
		return fmt.Errorf("cannot describe %d tasks to spankhost: %d bytes, and %d is the limit", len(l.TaskEnv), len(w.B), configMax)
	}
	if err := h.sendFDs(fds); err != nil {
		return err
	}
	blob, err := memfd("spank-step", w.B)
	if err != nil {
		return err
	}
	defer blob.Close()
	return h.do(cmdStep, nil, []int{int(blob.Fd())}, nil)
}

// putTasks writes what each task has of its own. table is the host's number of a
// descriptor.
func putTasks(w *writer, l *launch.Launch, table func(fd int) uint32) {
	for _, s := range l.Streams {
		w.tlv(tagStream, func(w *writer) { putStream(w, s, table) })
	}
	for _, e := range l.CommonEnv {
		w.tlv(tagTaskEnv, func(w *writer) { w.U32(noRank); w.Str(e) })
	}
	for id, env := range l.TaskEnv {
		for _, e := range env {
			w.tlv(tagTaskEnv, func(w *writer) { w.U32(uint32(id)); w.Str(e) })
		}
	}
	for id, files := range l.TaskFDs {
		for _, f := range files {
			w.tlv(tagTaskFD, func(w *writer) { w.U32(uint32(id)); w.U32(table(int(f.File.Fd()))); w.Str(f.Var) })
		}
	}
	for id, argv := range l.TaskArgv {
		for _, a := range argv {
			w.tlv(tagTaskArg, func(w *writer) { w.U32(uint32(id)); w.Str(a) })
		}
	}
	for id, dir := range l.TaskCwd {
		if dir != "" {
			w.tlv(tagTaskCwd, func(w *writer) { w.U32(uint32(id)); w.Str(dir) })
		}
	}
	for _, s := range l.Scripts {
		kind := uint32(scriptProlog)
		if s.Epilog {
			kind = scriptEpilog
		}
		w.tlv(tagTaskScript, func(w *writer) { w.U32(kind); w.U32(uint32(s.TimeoutS)); w.Str(s.Label); w.Str(s.Path) })
	}
}

func putStream(w *writer, s launch.TaskStream, table func(int) uint32) {
	w.task(s.LocalID)
	w.U32(uint32(s.FD))
	w.U32(uint32(s.Kind))
	switch s.Kind {
	case launch.StreamToHandle, launch.StreamToTerminal:
		w.U32(table(s.Handle))
	case launch.StreamToPath, launch.StreamToEarlyPath:
		w.U32(uint32(s.Flags))
	default:
		w.U32(0)
	}
	w.Str(s.Path)
}

// task writes a local id, or launch.AllRanks.
func (w *writer) task(id int) {
	if id == launch.AllRanks {
		w.U32(noRank)
	} else {
		w.U32(uint32(id))
	}
}

func putMemPolicy(w *writer, m launch.MemPolicy) {
	w.task(m.LocalID)
	w.U32(uint32(m.Mode))
	for _, word := range m.Nodes {
		w.U64(word)
	}
}

// memfd holds b for the host to read.
func memfd(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create memfd %q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot write %d bytes to memfd %q: %w", len(b), name, err)
	}
	return f, nil
}
