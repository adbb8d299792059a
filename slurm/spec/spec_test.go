package spec

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/srunopt"
	"stepd/step"
)

func conf() *wire.Conf {
	return &wire.Conf{Release: wire.V2205, Host: "n2", Node: "n2", Threads: 2, BlockMap: []uint16{0, 2, 1, 3}, Spool: "/spool"}
}

// launch is what slurmd says of `srun -n2` on the second of a job's two nodes, with two
// cores of two threads each.
func launch() *wire.Stream {
	bits := []bool{true, true, false, true}
	return &wire.Stream{
		Conf: conf(), ClientRelease: wire.V2205, MPIType: "none",
		Launch: &wire.Launch{
			Step: wire.StepID{Job: 7, Step: 3, HetComp: wire.NoVal}, Tasks: 2, Nodes: 1, CPUsPerTask: 0xfffe,
			Ranks: [][]uint32{{0, 1}}, Srun: netip.MustParseAddrPort("10.0.0.9:0"), Hosts: "n2",
			Env: []string{"A=1", "SLURM_UMASK=0077", "SLURM_MPI_TYPE=none", "SLURM_JOB_NAME=x", "SLURM_PMI2_SRUN_PORT=5", "no variable"},
			Dir: "/work", Argv: []string{"prog", "a"}, Flags: wire.FlagBuffered,
			Cred: &wire.Cred{
				UID: 1000, GID: 100, Name: "u", GIDs: []uint32{4}, JobHosts: "n[1-2]", JobNodes: 2, Partition: "long",
				JobCores: bits, StepCores: []bool{false, false, false, true}, Shape: wire.Shape{{Cores: 2, Sockets: 1, Nodes: 2}},
			},
		},
	}
}

func site1(t *testing.T) *slurmconf.Config {
	t.Helper()
	c, err := slurmconf.LoadSlurmd("", "n2", "n2")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOfLaunch(t *testing.T) {
	s, err := Of(launch(), site1(t))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"A=1", "SLURM_UMASK=0077", "SLURM_JOB_NAME=x"}; !slices.Equal(s.Env, want) {
		t.Errorf("the environment is %q", s.Env)
	}
	if s.ID != (step.ID{Job: 7, Step: 3}) || s.NTasks != 2 || s.CPUsPerTask != 1 || s.Umask != 0o077 || s.JobName != "x" || s.MPI != "none" {
		t.Errorf("got %+v", s)
	}
	if s.User.Name != "u" || !slices.Equal(s.User.Groups, []uint32{100, 4}) {
		t.Errorf("the user is %+v", s.User)
	}
	// Cores 0 and 1 of this node; core 1 has the abstract CPUs 2 and 3, the machine's 1 and 3.
	if s.JobCPUs != "1,3" || s.CPUs != "1,3" || s.NCPUs != 2 || s.JobAllCPUs != 6 {
		t.Errorf("the job has CPUs %q and %d in all, the step %q (%d)", s.JobCPUs, s.JobAllCPUs, s.CPUs, s.NCPUs)
	}
	if s.Layout != nil || s.LaunchAddr != "10.0.0.9" || s.Speaker != "slurmstepd-n2" || !s.EnvComplete || s.RunDir != "/spool/stepd" {
		t.Errorf("got layout %v, address %q, speaker %q", s.Layout, s.LaunchAddr, s.Speaker)
	}
	if s.Partition != "long" {
		t.Errorf("the partition is %q", s.Partition)
	}
	if s.KillWaitS != 30 || s.Stdout.Kind != step.StreamClient {
		t.Errorf("KillWait is %d, stdout %+v", s.KillWaitS, s.Stdout)
	}
}

// TestTerminal: rank 0 has a terminal as large as srun's window, and no task a stream beside it.
func TestTerminal(t *testing.T) {
	l := launch()
	l.Launch.Flags |= wire.FlagPTY
	l.Launch.Env = append(l.Launch.Env, "SLURM_PTY_WIN_COL=99", "SLURM_PTY_WIN_ROW=70000")
	s, err := Of(l, site1(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.Terminal == nil || s.Terminal.Cols != 99 || s.Terminal.Rows != 0 || s.Stdin.Kind != step.StreamNull || s.Stdout.Kind != step.StreamNull || s.Stderr.Kind != step.StreamNull {
		t.Errorf("the terminal is %+v, the streams are %v %v %v", s.Terminal, s.Stdin, s.Stdout, s.Stderr)
	}
}

// TestInteractive: salloc's session has the environment that a job's own srun expects.
func TestInteractive(t *testing.T) {
	for v, env := range map[wire.Release][]string{wire.V2205: nil, wire.V2605: {"SLURM_STEP_ID=-6", "SLURM_STEPID=-6"}} {
		l := launch()
		l.Conf.Release = v
		l.Launch.Step.Step = wire.StepInteractive
		s, err := Of(l, site1(t))
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"A=1", "SLURM_MPI_TYPE=none", "SLURM_JOB_NAME=x"}; !slices.Equal(s.Env, want) || s.Umask != 0o077 {
			t.Errorf("%s: the environment is %q, the umask %o", v, s.Env, s.Umask)
		}
		for _, e := range env {
			if !slices.Contains(s.TaskEnv, e) {
				t.Errorf("%s: a task's environment %q has no %s", v, s.TaskEnv, e)
			}
		}
		if v == wire.V2205 && slices.ContainsFunc(s.TaskEnv, func(e string) bool { return strings.HasPrefix(e, "SLURM_STEP") }) {
			t.Errorf("%s: a task's environment is %q", v, s.TaskEnv)
		}
	}
}

func TestStreams(t *testing.T) {
	null, client := step.Stream{Kind: step.StreamNull}, step.Stream{Kind: step.StreamClient}
	for _, tt := range []struct {
		out, err string
		mode     uint8
		want     [2]step.Stream
	}{
		{"", "", 0, [2]step.Stream{client, client}},
		{"/dev/null", "", 0, [2]step.Stream{null, client}},
		{"1", "", 0, [2]step.Stream{{Kind: step.StreamClient, Rank: new(1)}, client}},
		{"o.%t", "o.%t", 0, [2]step.Stream{{Kind: step.StreamFile, Pattern: "o.%t"}, {Kind: step.StreamSame}}},
		{"o.%t", "e.%t", openAppend, [2]step.Stream{{Kind: step.StreamFile, Pattern: "o.%t", Append: true}, {Kind: step.StreamFile, Pattern: "e.%t", Append: true}}},
	} {
		l := launch()
		l.Launch.Out, l.Launch.Err, l.Launch.OpenMode = tt.out, tt.err, tt.mode
		s, err := Of(l, site1(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]step.Stream{s.Stdout, s.Stderr}; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q and %q are %+v", tt.out, tt.err, got)
		}
	}
}

func TestOptions(t *testing.T) {
	l := launch()
	l.Launch.Options = []wire.SpankOption{{Name: "opt:plug", Value: "v", HasValue: true}, {Name: "flag:plug"}}
	s, err := Of(l, site1(t))
	if err != nil {
		t.Fatal(err)
	}
	if want := []step.SpankOption{{Plugin: "plug", Name: "opt", Value: []byte("v")}, {Plugin: "plug", Name: "flag"}}; !reflect.DeepEqual(s.SpankOptions, want) {
		t.Errorf("got %+v", s.SpankOptions)
	}
	l.Launch.Options[0].Name = "opt"
	if _, err := Of(l, site1(t)); err == nil {
		t.Error("an option without a plugin was taken")
	}
}

func TestLayout(t *testing.T) {
	l := launch()
	l.Launch.Nodes, l.Launch.Tasks, l.Launch.Hosts, l.Launch.Ranks = 2, 4, "n[1-2]", [][]uint32{{0, 2}, {1, 3}}
	s, err := Of(l, site1(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.NodeID != 1 || s.NodeCount() != 2 || !slices.Equal(s.LocalRanks(), []int{1, 3}) {
		t.Errorf("node %d of %d has ranks %v", s.NodeID, s.NodeCount(), s.LocalRanks())
	}
	for _, bad := range []func(*wire.Launch){
		func(l *wire.Launch) { l.Hosts = "n[3-4]" },
		func(l *wire.Launch) { l.Hosts = "n[1-3]" },
		func(l *wire.Launch) { l.Hosts = "n[" },
		func(l *wire.Launch) { l.Tasks = 5 },
	} {
		m := launch()
		m.Launch.Nodes, m.Launch.Tasks, m.Launch.Hosts, m.Launch.Ranks = 2, 4, "n[1-2]", [][]uint32{{0, 2}, {1, 3}}
		bad(m.Launch)
		if _, err := Of(m, site1(t)); err == nil {
			t.Errorf("a step of nodes %q with %d tasks was taken", m.Launch.Hosts, m.Launch.Tasks)
		}
	}
}

// srun says how many tasks there are: memory is taken for those alone whose ranks have come.
// TestComponent: a step of several components is its own component's, whose place the tasks see.
func TestComponent(t *testing.T) {
	het := func(change func(*wire.Launch)) (*step.Spec, error) {
		s := launch()
		l := s.Launch
		l.Het = wire.Het{Job: 6, NodeOffset: 1, Nodes: 2, Tasks: 5, Offset: 1, Steps: 2, TaskOffset: 3, Hosts: "n[1-2]"}
		l.Out, l.Err = "4", "1"
		change(l)
		return Of(s, site1(t))
	}
	s, err := het(func(*wire.Launch) {})
	if err != nil {
		t.Fatal(err)
	}
	if s.ID.Job != 7 || s.NTasks != 2 || s.NodeID != 0 || s.SeenNodeID() != 1 || s.SeenRank(1) != 4 || s.AllTasks != 5 {
		t.Errorf("%+v", s)
	}
	if *s.Stdout.Rank != 1 || *s.Stderr.Rank >= 0 {
		t.Errorf("stdout is rank %d's, stderr %d's", *s.Stdout.Rank, *s.Stderr.Rank)
	}
	if s.MPISpec() != s {
		t.Errorf("a step without MPI has %+v", s.AllLayout)
	}
	for name, change := range map[string]func(*wire.Launch){
		"one component":    func(l *wire.Launch) { l.Het.Steps = 1 },
		"no heterogeneous": func(l *wire.Launch) { l.Het = wire.Het{Job: wire.NoVal, Nodes: wire.NoVal, Steps: wire.NoVal} },
	} {
		if s, err := het(change); err != nil || s.AllTasks != 0 || s.SeenRank(1) != 1 || s.SeenNodeID() != 0 {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	for name, change := range map[string]func(*wire.Launch){
		"too many tasks":    func(l *wire.Launch) { l.Het.Tasks = 4 },
		"too many nodes":    func(l *wire.Launch) { l.Het.Nodes = 1 },
		"a huge rank":       func(l *wire.Launch) { l.Het.TaskOffset = wire.NoVal },
		"a huge node":       func(l *wire.Launch) { l.Het.NodeOffset = wire.NoVal },
		"tasks from 2³¹ on": func(l *wire.Launch) { l.Het.Tasks, l.Het.TaskOffset = wire.NoVal, 1<<31 },
	} {
		if s, err := het(change); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestTasksLimit(t *testing.T) {
	for _, tc := range []struct {
		tasks uint32
		ranks []uint32
	}{{2_000_000_000, []uint32{0, 1}}, {1, []uint32{0, 1}}, {70_000, make([]uint32, 70_000)}} {
		s := launch()
		s.Launch.Tasks, s.Launch.Ranks = tc.tasks, [][]uint32{tc.ranks}
		if _, err := Of(s, site1(t)); err == nil || !strings.Contains(err.Error(), "cannot place the tasks") {
			t.Errorf("%d tasks with %d ranks: %v", tc.tasks, len(tc.ranks), err)
		}
	}
}

func TestMultiProg(t *testing.T) {
	l := launch()
	l.Launch.Flags |= wire.FlagMultiProg
	l.Launch.Argv = []string{"mp.conf", "0 echo zero\n1 echo %t\n"}
	s, err := Of(l, site1(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Apps) != 2 || string(s.Apps[1].Argv[1]) != "%t" || s.Argv[0] != "echo" {
		t.Errorf("got %+v", s.Apps)
	}
	l.Launch.Argv[1] = "0 echo 'x\n"
	if _, err := Of(l, site1(t)); err == nil || !strings.Contains(err.Error(), "mp.conf") {
		t.Errorf("an open quote gives %v", err)
	}
}

func TestBinding(t *testing.T) {
	l := launch()
	l.Launch.CPUBindFlags, l.Launch.CPUBind = cpuMask|cpuVerbose|cpuCores, "0x1,0x2"
	l.Launch.MemBindFlags = memLocal | memPrefer
	s, err := Of(l, site1(t))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(s.Binding)
	if want := `{"cpu":{"verbosity":"verbose","kind":"mask_cpu","list":"0x1,0x2"},"mem":{"verbosity":"quiet","kind":"local","prefer":true},"distribution":{}}`; strings.ReplaceAll(string(got), `,"distribution":{}`, "") != strings.ReplaceAll(want, `,"distribution":{}`, "") {
		t.Errorf("the binding is %s", got)
	}
}

// TestOwnLimits: srun marks the limits that the user has named.
// TestTaskCPUs are a task's by a list that a user may have written.
func TestTaskCPUs(t *testing.T) {
	for _, tc := range []struct {
		kind step.CPUBindKind
		list string
		want []int
	}{
		{srunopt.CPUBindMap, "1,3", []int{3}}, {srunopt.CPUBindMap, "0x10", []int{16}}, {srunopt.CPUBindMask, "1,0x5", []int{0, 2}},
		{srunopt.CPUBindMap, "", nil}, {srunopt.CPUBindMap, "0,-1", nil}, {srunopt.CPUBindMap, "0,a", nil}, {srunopt.CPUBindRank, "0,1", nil},
		{srunopt.CPUBindMap, "0,9223372036854775808", nil}, {srunopt.CPUBindMap, "0,4294967295", nil},
		{srunopt.CPUBindMask, "0," + strings.Repeat("f", machineMax), nil},
	} {
		s := new(step.Spec)
		s.Affinity = new(step.AffinityConf)
		s.Binding.CPU.Kind, s.Binding.CPU.List = tc.kind, tc.list
		if got := TaskCPUs(s, 1); !slices.Equal(got, tc.want) {
			t.Errorf("%s %.30q: %v, want %v", tc.kind, tc.list, got, tc.want)
		}
	}
}

func TestOwnLimits(t *testing.T) {
	l := launch()
	l.Launch.Env = []string{"SLURM_RLIMIT_STACK=U4194304", "SLURM_RLIMIT_CORE=0", "OTHER=U1"}
	s, err := Of(l, site1(t))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"SLURM_RLIMIT_STACK=4194304", "SLURM_RLIMIT_CORE=0", "OTHER=U1"}; !slices.Equal(s.Env, want) {
		t.Errorf("the environment is %q", s.Env)
	}
}

// TestAffinity: only where slurm.conf has task/affinity are tasks bound.
func TestAffinity(t *testing.T) {
	c := site1(t)
	for _, plugins := range [][]string{nil, {"task/cgroup"}, {"task/cgroup", "task/affinity"}} {
		c.TaskPlugin = plugins
		s, err := Of(launch(), c)
		if err != nil {
			t.Fatal(err)
		}
		if has := s.Affinity != nil && s.Affinity.Default == srunopt.CPUBindNone; has != (len(plugins) == 2) {
			t.Errorf("%q: %+v", plugins, s.Affinity)
		}
	}
}

func TestOfBatch(t *testing.T) {
	b := &wire.Batch{
		Job: 9, ArrayJob: 8, ArrayTask: 2, Tasks: 4, Hosts: "n2", Dir: "/w", In: "/dev/null", Argv: []string{"s.sh", "x"}, Env: []string{"A=1"},
		Restarts: 1, Cred: &wire.Cred{UID: 5, GID: 6, JobHosts: "n2", Shape: wire.Shape{{Cores: 1, Sockets: 1, Nodes: 1}}, JobCores: []bool{true}},
	}
	s, err := Of(&wire.Stream{Conf: conf(), Batch: b}, site1(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.ID != (step.ID{Job: 9, Step: step.BatchStep}) || s.Array.Job != 8 || s.Array.Task != 2 || s.RestartCount != 1 || !s.Unattended {
		t.Errorf("got %+v", s)
	}
	if want := []string{"/spool/job00009/slurm_script", "x"}; !slices.Equal(s.Argv, want) {
		t.Errorf("it runs %q", s.Argv)
	}
	// Of a component of a heterogeneous job sbatch does not say it.
	if !slices.Contains(s.Env, "SLURM_NTASKS=4") || !slices.Contains(s.Env, "SLURM_NPROCS=4") {
		t.Errorf("the environment is %q", s.Env)
	}
	if s.Stdin.Kind != step.StreamNull || s.Stdout.Pattern != "slurm-%A_%a.out" || s.Stderr.Kind != step.StreamSame {
		t.Errorf("the streams are %+v %+v %+v", s.Stdin, s.Stdout, s.Stderr)
	}
	b.ArrayTask, b.Out, b.Err, b.OpenMode = wire.NoVal, "o", "e", openAppend
	if s, err = Of(&wire.Stream{Conf: conf(), Batch: b}, site1(t)); err != nil {
		t.Fatal(err)
	}
	if s.Array != nil || s.Stdout.Pattern != "o" || !s.Stderr.Append || s.Stderr.Pattern != "e" {
		t.Errorf("the streams are %+v %+v", s.Stdout, s.Stderr)
	}
	appends := site1(t)
	appends.JobFileAppend = true
	for mode, want := range map[uint8]bool{0: true, openAppend: true, openAppend + 1: false} {
		b.OpenMode = mode
		if s, err = Of(&wire.Stream{Conf: conf(), Batch: b}, appends); err != nil || s.Stdout.Append != want || s.Stderr.Append != want {
			t.Errorf("JobFileAppend, mode %d: %+v %+v, %v", mode, s.Stdout, s.Stderr, err)
		}
	}
}

func TestExtern(t *testing.T) {
	l := launch()
	l.Launch.Step.Step, l.Launch.Argv, l.Launch.Out, l.Launch.Err, l.Launch.In = step.ExternStep, nil, "/dev/null", "/dev/null", "/dev/null"
	s, err := Of(l, site1(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Argv) != 2 || !s.Unattended || s.Stdout.Kind != step.StreamNull {
		t.Errorf("got %+v", s.Request)
	}
}

func TestTaskEnv(t *testing.T) {
	user := []string{"SLURM_JOB_UID=1000", "SLURM_JOB_USER=u"}
	times := []string{"SLURM_JOB_END_TIME=20", "SLURM_JOB_START_TIME=10"}
	oom := []string{"SLURM_OOM_KILL_STEP=1"}
	for _, c := range []struct {
		release     wire.Release
		tasks, ends []string
		once        bool
	}{
		{wire.V2205, user, user, false},
		{wire.V2311, slices.Concat(times, user), user, false},
		{wire.V2405, slices.Concat(times, user), user, true},
		{wire.V2411, slices.Concat(times, user, oom), slices.Concat(user, oom), true},
	} {
		l := launch()
		l.Conf.Release, l.Launch.OOMKillStep = c.release, true
		l.Launch.Cred.Begin, l.Launch.Cred.End = time.Unix(10, 0), time.Unix(20, 0)
		s, err := Of(l, site1(t))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.TaskEnv, c.tasks) || !slices.Equal(s.ExitEnv, c.ends) || s.Site.Spank.OptionsOnce != c.once {
			t.Errorf("%v: tasks %q, their end %q, once %v", c.release, s.TaskEnv, s.ExitEnv, s.Site.Spank.OptionsOnce)
		}
	}
}
