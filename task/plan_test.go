package task

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

func testSpec() *step.Spec {
	return &step.Spec{
		Request: step.Request{
			Schema: step.Schema, Name: "echo", NTasks: 3, NNodes: 1, CPUsPerTask: 1,
			Argv: []string{"echo", "x"}, Env: []string{"PATH=/bin", "SLURM_JOB_ID=99", "nonsense", "=x"}, Cwd: "/",
			Stdin: step.Stream{Kind: step.StreamNull}, Stdout: step.Stream{Kind: step.StreamClient},
			Stderr: step.Stream{Kind: step.StreamClient},
		},
		ID: step.ID{Job: 77, Step: 0}, User: step.User{Name: "guser1", UID: 7001, GID: 7001},
		NodeName: "vm", NodeList: "vm", NCPUs: 3, CPUs: "0-2", Site: step.Site{Cluster: "golden", Partition: "p"},
		RunDir: "/run/stepd",
	}
}

func TestPlanEnvironment(t *testing.T) {
	p, err := MakePlan(testSpec())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PATH=/bin", "SLURM_JOB_ID=77", "SLURM_JOBID=77", "SLURM_STEP_NUM_TASKS=3",
		"SLURM_JOB_USER=guser1", "SLURM_STEP_NODELIST=vm", "SLURM_JOB_PARTITION=p", "NODED_SOCKET=/run/stepd/noded.sock"} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("job environment lacks %q", want)
		}
	}
	names := map[string]int{}
	for _, e := range p.Env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			t.Errorf("job environment holds %q, which is no variable", e)
		}
		if names[name]++; names[name] > 1 {
			t.Errorf("job environment holds %s twice", name)
		}
	}
	for _, e := range p.HostEnv {
		if strings.HasPrefix(e, "LD_") || strings.Contains(e, "nonsense") {
			t.Errorf("the host's environ holds the user's %q", e)
		}
	}
	if d := cmp.Diff([]string{"SLURM_PROCID=2", "SLURM_LOCALID=2"}, p.TaskEnv[2]); d != "" {
		t.Errorf("environment of rank 2 (-want +got):\n%s", d)
	}
	want := []string{"SLURM_CPUS_ON_NODE=3", "SLURM_NODEID=0", "SLURM_LAUNCH_NODE_IPADDR=127.0.0.1",
		"SLURM_JOB_GID=7001", "SLURMD_NODENAME=vm", "SLURM_GTIDS=0,1,2"}
	if d := cmp.Diff(want, p.CommonEnv); d != "" {
		t.Errorf("environment of all ranks (-want +got):\n%s", d)
	}
}

// TestPlanEnvComplete holds that a complete environment stays as it is, and that what the
// node alone knows is still set beside it.
func TestPlanEnvComplete(t *testing.T) {
	for _, id := range []uint32{0, step.BatchStep} {
		spec := testSpec()
		spec.ID.Step, spec.EnvComplete = id, true
		spec.JobControl = [][]byte{[]byte("X=1")}
		p, err := MakePlan(spec)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(spec.Env, p.Env); d != "" {
			t.Errorf("step %d: the job's environment (-want +got):\n%s", id, d)
		}
		if !slices.Contains(p.CommonEnv, "SLURMD_NODENAME=vm") || p.TaskEnv[0][0] != "SLURM_PROCID=0" {
			t.Errorf("step %d: the tasks' environment is %q and %q", id, p.CommonEnv, p.TaskEnv)
		}
		spec.Env, spec.PropagatePrio = []string{"A=1", prioVariable + "=5", "B=2"}, prioOn
		if p, err = MakePlan(spec); err != nil || !slices.Equal(p.Env, []string{"A=1", "B=2"}) || len(spec.Env) != 3 {
			t.Errorf("step %d: with the client's nice value used: %q, %v", id, p.Env, err)
		}
	}
}

// TestPlanComponent: tasks see their place in the whole step, also in names of files; all else
// is counted in the component.
func TestPlanComponent(t *testing.T) {
	s := testSpec()
	s.NTasks, s.FirstNode, s.FirstRank, s.AllTasks = 2, 1, 3, 5
	s.Stdout = step.Stream{Kind: step.StreamFile, Pattern: "o.%t"}
	p, err := MakePlan(s)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.Ranks, []int{0, 1}) || p.TaskEnv[1][0] != "SLURM_PROCID=4" || p.TaskEnv[1][1] != "SLURM_LOCALID=1" ||
		!slices.Contains(p.CommonEnv, "SLURM_GTIDS=3,4") || !slices.Contains(p.CommonEnv, "SLURM_NODEID=1") {
		t.Errorf("ranks %v, environment %q and %q", p.Ranks, p.CommonEnv, p.TaskEnv)
	}
	if !slices.ContainsFunc(p.Streams, func(st launch.TaskStream) bool { return st.LocalID == 1 && st.Path == "o.4" }) {
		t.Errorf("the streams are %+v", p.Streams)
	}
}

// TestPlanArray: a step and a script are told their job's place in a job array, and its
// earlier runs.
func TestPlanArray(t *testing.T) {
	for _, id := range []uint32{0, step.BatchStep} {
		s := testSpec()
		s.ID.Step, s.Stdin, s.Stdout, s.Stderr = id, step.Stream{Kind: step.StreamNull}, step.Stream{Kind: step.StreamNull}, step.Stream{Kind: step.StreamNull}
		s.Array, s.RestartCount = &step.ArrayTask{Job: 70, Task: 7, Count: 3, Min: 1, Max: 7, Step: 3}, 2
		p, err := MakePlan(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range append(s.Array.Env(), "SLURM_RESTART_COUNT=2") {
			if !slices.Contains(p.Env, want) {
				t.Errorf("the environment of step %d lacks %q", id, want)
			}
		}
	}
}

// A step on two of the four nodes of its job, by the names that srun(1) gives
// each figure.
func TestPlanEnvironmentOfNodes(t *testing.T) {
	s := testSpec()
	s.NTasks, s.NodeName, s.NodeID, s.NodeList = 7, "n3", 1, "n[2-3]"
	s.Layout = &step.Layout{Nodes: []step.LayoutNode{{Name: "n2", Ranks: "0-1,4-5"}, {Name: "n3", Ranks: "2-3,6"}}}
	s.JobNodeList, s.JobNodeCPUs, s.LaunchAddr = "n[1-4]", []int{8, 8, 8, 4}, "10.1.2.3"
	s.Binding.Distribution = step.Distribution{Nodes: srunopt.DistPlane, Plane: 2, Levels: 1}
	p, err := MakePlan(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"SLURM_NNODES=2", "SLURM_STEP_NUM_NODES=2", "SLURM_JOB_NUM_NODES=4",
		"SLURM_NTASKS=7", "SLURM_NPROCS=7", "SLURM_STEP_NUM_TASKS=7",
		"SLURM_TASKS_PER_NODE=4,3", "SLURM_STEP_TASKS_PER_NODE=4,3",
		"SLURM_STEP_NODELIST=n[2-3]", "SLURM_NODELIST=n[1-4]", "SLURM_JOB_NODELIST=n[1-4]",
		"SLURM_JOB_CPUS_PER_NODE=8(x3),4", "SLURM_DISTRIBUTION=plane", "SLURM_DIST_PLANESIZE=2",
	} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("the job's environment lacks %q", want)
		}
	}
	want := []string{"SLURM_CPUS_ON_NODE=3", "SLURM_NODEID=1", "SLURM_LAUNCH_NODE_IPADDR=10.1.2.3",
		"SLURM_JOB_GID=7001", "SLURMD_NODENAME=n3", "SLURM_GTIDS=2,3,6"}
	if d := cmp.Diff(want, p.CommonEnv); d != "" {
		t.Errorf("environment of all tasks (-want +got):\n%s", d)
	}
	var ids []string
	for _, env := range p.TaskEnv {
		ids = append(ids, strings.Join(env, " "))
	}
	if d := cmp.Diff([]string{"SLURM_PROCID=2 SLURM_LOCALID=0", "SLURM_PROCID=3 SLURM_LOCALID=1", "SLURM_PROCID=6 SLURM_LOCALID=2"}, ids); d != "" {
		t.Errorf("environments of the tasks (-want +got):\n%s", d)
	}
	s.JobNodeList, s.JobNodeCPUs = "", nil // the step is all of its job, and nothing more is known
	s.Env = append(s.Env, "SLURM_JOB_CPUS_PER_NODE=stale")
	if p, err = MakePlan(s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SLURM_JOB_NUM_NODES=2", "SLURM_JOB_NODELIST=n[2-3]"} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("the job's environment lacks %q", want)
		}
	}
	if i := slices.IndexFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "SLURM_JOB_CPUS_PER_NODE=") }); i >= 0 {
		t.Errorf("the job's environment invents %q", p.Env[i])
	}
}

func TestPlanBatchOfNodes(t *testing.T) {
	s := testSpec()
	s.ID.Step, s.NTasks, s.JobNTasks = step.BatchStep, 1, 5
	s.Stdout, s.Stderr = step.Stream{Kind: step.StreamFile, Pattern: "out"}, step.Stream{Kind: step.StreamSame}
	s.JobNodeList, s.JobNodeCPUs = "n[1-2]", []int{4, 4}
	p, err := MakePlan(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SLURM_NNODES=2", "SLURM_JOB_NUM_NODES=2", "SLURM_NODELIST=n[1-2]", "SLURM_JOB_NODELIST=n[1-2]",
		"SLURM_JOB_CPUS_PER_NODE=4(x2)", "SLURM_TASKS_PER_NODE=3,2", "SLURM_NTASKS=5"} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("the script's environment lacks %q", want)
		}
	}
}

// What is told per rank must not grow with their number: a step of 65,533
// tasks would take gigabytes.
func TestPlanIsLinear(t *testing.T) {
	s := testSpec()
	s.NTasks = 60000
	p, err := MakePlan(s)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, env := range append(p.TaskEnv, p.CommonEnv) {
		for _, e := range env {
			size += len(e)
			if len(e) >= maxArgStrlen {
				t.Errorf("%.20s… has %d bytes: no task could be exec'd with it", e, len(e))
			}
		}
	}
	if size > 60000*64 {
		t.Errorf("%d bytes for 60,000 tasks", size)
	}
}

// The job's environment comes from the caller, the host runs as root: nothing
// of the first may reach the second (CVE-2017-15566 is of this kind).
func TestPlanKeepsUserEnvironmentFromHost(t *testing.T) {
	s := testSpec()
	s.Env = []string{"LD_PRELOAD=/tmp/x.so", "LD_LIBRARY_PATH=/tmp", "BASH_ENV=/tmp/x", "PATH=/tmp"}
	p, err := MakePlan(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Env {
		if slices.Contains(p.HostEnv, e) {
			t.Errorf("the host's environ holds the user's %q", e)
		}
		if !slices.Contains(p.Env, e) {
			t.Errorf("the job's environment lacks the user's %q", e)
		}
	}
}

func TestPlanStreams(t *testing.T) {
	one := 1
	tests := []struct {
		name   string
		change func(*step.Spec)
		want   []launch.TaskStream
		client [3]bool
	}{
		{"client", func(s *step.Spec) {},
			[]launch.TaskStream{{LocalID: launch.AllRanks, FD: 0, Kind: launch.StreamToNull}}, [3]bool{false, true, true}},
		{"one file for all", func(s *step.Spec) { s.Stdout = step.Stream{Kind: step.StreamFile, Pattern: "out.%j"} },
			[]launch.TaskStream{{LocalID: launch.AllRanks, FD: 0, Kind: launch.StreamToNull},
				{LocalID: launch.AllRanks, FD: 1, Kind: launch.StreamToPath, Path: "out.77", Flags: 0o1 | 0o100 | 0o2000 | 0o1000}},
			[3]bool{false, false, true}},
		{"a file for each, appended", func(s *step.Spec) {
			s.NTasks = 2
			s.Stdout = step.Stream{Kind: step.StreamFile, Pattern: "o%t", Append: true}
			s.Stderr = step.Stream{Kind: step.StreamSame}
		}, []launch.TaskStream{{LocalID: launch.AllRanks, FD: 0, Kind: launch.StreamToNull},
			{LocalID: 0, FD: 1, Kind: launch.StreamToPath, Path: "o0", Flags: 0o1 | 0o100 | 0o2000},
			{LocalID: 1, FD: 1, Kind: launch.StreamToPath, Path: "o1", Flags: 0o1 | 0o100 | 0o2000},
			{LocalID: launch.AllRanks, FD: 2, Kind: launch.StreamToStdout}}, [3]bool{}},
		{"stdin from the client to one rank", func(s *step.Spec) {
			s.Stdin = step.Stream{Kind: step.StreamClient, Rank: &one}
		}, []launch.TaskStream{{LocalID: launch.AllRanks, FD: 0, Kind: launch.StreamToNull}}, [3]bool{true, true, true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := testSpec()
			tt.change(s)
			p, err := MakePlan(s)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, p.Streams); d != "" {
				t.Errorf("streams (-want +got):\n%s", d)
			}
			if p.NeedClient != tt.client {
				t.Errorf("NeedClient = %v, want %v", p.NeedClient, tt.client)
			}
		})
	}
}

// A batch script sees its job and no step.
func TestPlanBatch(t *testing.T) {
	s := testSpec()
	s.ID.Step, s.NTasks, s.JobNTasks = step.BatchStep, 1, 2
	s.Stdout, s.Stderr = step.Stream{Kind: step.StreamFile, Pattern: "slurm-%j.out"}, step.Stream{Kind: step.StreamSame}
	s.JobControl = [][]byte{[]byte("_SLURM_SPANK_OPTION_p_flag=(null)"), []byte("JC=1")}
	s.Env = append(s.Env, "SLURM_STEP_ID=0", "SLURM_STEPID=0") // of the step that it was submitted in
	p, err := MakePlan(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PATH=/bin", "SLURM_JOB_ID=77", "SLURM_NTASKS=2", "SLURM_TASKS_PER_NODE=2",
		"SLURM_SPANK__SLURM_SPANK_OPTION_p_flag=(null)", "SLURM_SPANK_JC=1", "NODED_SOCKET=/run/stepd/noded.sock"} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("the script's environment lacks %q", want)
		}
	}
	for _, e := range append(p.Env, p.HostEnv...) {
		if strings.HasPrefix(e, "SLURM_STEP") || strings.HasPrefix(e, "SLURM_MPI_TYPE") {
			t.Errorf("the script sees a step: %s", e)
		}
	}
	if !slices.Contains(p.CommonEnv, "SLURM_JOB_USER=guser1") || !slices.Contains(p.CommonEnv, "SLURM_GTIDS=0") || len(p.TaskEnv) != 1 {
		t.Errorf("task environment %q, %q", p.CommonEnv, p.TaskEnv)
	}
	if len(p.Streams) != 3 || p.Streams[1].Path != "slurm-77.out" || p.NeedClient != [3]bool{} {
		t.Errorf("streams %+v", p.Streams)
	}
}
