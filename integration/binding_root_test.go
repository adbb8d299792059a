package integration

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"stepd/internal/testkit"
)

// allowed prints a task's rank, CPUs and memory policy, by the kernel's word.
const allowed = `set -- $(grep Cpus_allowed_list /proc/self/status) $(head -n1 /proc/self/numa_maps); echo "$SLURM_PROCID $2 $4"`

// bindingNode is a node with the machine's CPUs, of which there must be two.
func bindingNode(t *testing.T, conf string) *node {
	t.Helper()
	n := startNode(t, site{Real: true, Slurm: conf})
	if runtime.NumCPU() < 2 {
		missing(t, "a machine of two CPUs is needed")
	}
	return n
}

// bound runs a step with the options and returns a line for each rank.
func (n *node) bound(t *testing.T, options ...string) ([]string, result) {
	t.Helper()
	r := n.ctl(t, append(append([]string{"run"}, options...), "/bin/sh", "-c", allowed)...)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	slices.Sort(lines)
	return lines, r
}

func TestRootCPUBind(t *testing.T) {
	n := bindingNode(t, "TaskPlugin=task/affinity\n")
	all := fmt.Sprintf("0-%d", runtime.NumCPU()-1)
	two := runtime.NumCPU() == 2
	for _, c := range []struct {
		options string
		want    []string
		only2   bool // holds where the machine has two cores, and no more
	}{
		{"-n2 --cpu-bind=map_cpu:1,0", []string{"0 1 default", "1 0 default"}, false},
		{"-n2 --cpu-bind=map_cpu:1", []string{"0 1 default", "1 1 default"}, false},
		{"-n2 --cpu-bind=map_cpu:0x1,0,1,0,77", []string{"0 1 default", "1 0 default"}, false},
		{"-n2 --cpu-bind=mask_cpu:2,0x3", []string{"0 1 default", "1 0-1 default"}, false},
		{"-n2 --cpu-bind=rank", []string{"0 0 default", "1 1 default"}, false},
		{"-n2", []string{"0 0 default", "1 1 default"}, true},
		{"-n2 -m block:block --cpu-bind=cores", []string{"0 0 default", "1 1 default"}, true},
		{"-n2 --hint=nomultithread", []string{"0 0 default", "1 1 default"}, true},
		{"-n2 --cpu-bind=none", []string{"0 " + all + " default", "1 " + all + " default"}, true},
		{"-n3 -O --cpu-bind=cores", []string{"0 0-1 default", "1 0-1 default", "2 0-1 default"}, true},
		{"-n1 -c2 --mem-bind=local", []string{"0 0-1 local"}, false},
		{"-n2 --cpu-bind=map_cpu:0,1 --mem-bind=map_mem:0", []string{"0 0 bind:0", "1 1 bind:0"}, false},
		{"-n2 --cpu-bind=map_cpu:0,1 --mem-bind=prefer,mask_mem:0x1", []string{"0 0 prefer:0", "1 1 prefer:0"}, false},
	} {
		if c.only2 && !two {
			continue
		}
		got, r := n.bound(t, strings.Fields(c.options)...)
		if !slices.Equal(got, c.want) || r.code != 0 || r.err != "" {
			t.Errorf("%s: got %q, want %q: %v", c.options, got, c.want, r)
		}
	}
}

// TestRootBindReport: srun's lines, and what the tasks are told.
func TestRootBindReport(t *testing.T) {
	n := bindingNode(t, "TaskPlugin=task/affinity,task/cgroup\nTaskPluginParam=Verbose\n")
	r := n.ctl(t, "run", "-n2", "--cpu-bind=map_cpu:1,0", "--mem-bind=v,map_mem:0", "-m", "block:cyclic", "/bin/sh", "-c", `[ $SLURM_PROCID = 1 ] || env | grep -e _BIND -e DISTRIBUTION | sort`)
	want := `^cpu-bind=MAP  - vm, task  0  0 \[\d+\]: mask 0x2 set
mem-bind=MAP - vm, task  0  0 \[\d+\]: mask 0x1 set
cpu-bind=MAP  - vm, task  1  1 \[\d+\]: mask 0x1 set
mem-bind=MAP - vm, task  1  1 \[\d+\]: mask 0x1 set
$`
	if !regexp.MustCompile(want).MatchString(r.err) {
		t.Errorf("got %q, want %q", r.err, want)
	}
	env := `SLURM_CPU_BIND=verbose,map_cpu:1,0
SLURM_CPU_BIND_LIST=1,0
SLURM_CPU_BIND_TYPE=map_cpu:
SLURM_CPU_BIND_VERBOSE=verbose
SLURM_DISTRIBUTION=block:cyclic
SLURM_MEM_BIND=verbose,map_mem:0
SLURM_MEM_BIND_LIST=0
SLURM_MEM_BIND_TYPE=map_mem:
SLURM_MEM_BIND_VERBOSE=verbose
`
	if r.out != env {
		t.Errorf("got %q, want %q", r.out, env)
	}
	// Quiet where the user says so; a step in a step asks for itself, but for the words.
	r = n.ctl(t, "run", "-n1", "--cpu-bind=quiet,map_cpu:0", n.bin, "run", "-n1", "-Q", "/bin/sh", "-c", allowed)
	if r.code != 0 || r.out != "0 0 default\n" || strings.Count(r.err, "cpu-bind=") != 1 {
		t.Errorf("a step in a step: %v", r)
	}
	for _, option := range []string{"--cpu-bind", "--mem-bind", "--hint"} {
		if r := n.do(t, call{args: []string{"run", option + "=help"}, clean: true}); r.code != 0 || !strings.Contains(r.out, option+"=") || r.err != "" {
			t.Errorf("%s=help: %v", option, r)
		}
	}
}

// TestRootBindEnv: the options of the environment, of a script and of an allocation.
func TestRootBindEnv(t *testing.T) {
	n := bindingNode(t, "TaskPlugin=task/affinity\n")
	r := n.do(t, call{args: []string{"run", "-n2", "/bin/sh", "-c", allowed}, env: []string{"SLURM_CPU_BIND=verbose,map_cpu:1"}})
	if r.code != 0 || strings.Count(r.out, " 1 default\n") != 2 || strings.Count(r.err, "mask 0x2 set") != 2 {
		t.Errorf("SLURM_CPU_BIND: %v", r)
	}
	r = n.do(t, call{args: []string{"run", "-n1", "--cpu-bind=map_cpu:0", "/bin/sh", "-c", allowed}, env: []string{"SLURM_CPU_BIND=map_cpu:1", "SLURM_MEM_BIND=local"}})
	if r.code != 0 || r.out != "0 0 local\n" {
		t.Errorf("the command line goes before: %v", r)
	}
	r = n.ctl(t, "alloc", "-Q", "-n2", "--cpu-bind=map_cpu:1,0", n.bin, "run", "/bin/sh", "-c", allowed)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	slices.Sort(lines)
	if r.code != 0 || !slices.Equal(lines, []string{"0 1 default", "1 0 default"}) {
		t.Errorf("alloc: %v", r)
	}
	r = n.ctl(t, "alloc", "-Q", "-n2", n.bin, "run", "-n1", "--whole", "--cpu-bind=map_cpu:1", "/bin/sh", "-c", allowed)
	if r.code != 0 || r.out != "0 1 default\n" {
		t.Errorf("--whole: %v", r)
	}
	r = n.ctl(t, "alloc", "-Q", "-n2", n.bin, "run", "-n1", "--cpu-bind=map_cpu:1", "/bin/true")
	if r.code != 1 || !strings.Contains(r.err, "CPU 1 is not the step's: it has CPUs 0") {
		t.Errorf("a step of one CPU: %v", r)
	}
	script := n.userFile(t, "bind.sh", "#!/bin/sh\n#SBATCH -n2 --cpu-bind=map_cpu:1,0 -o out --mem-bind=local\n"+allowed+"\n"+n.bin+" run /bin/sh -c '"+strings.ReplaceAll(allowed, "'", `'\''`)+"' >steps\n", 0o755)
	if r := n.ctl(t, "batch", "-W", script); r.code != 0 {
		t.Fatalf("batch: %v", r)
	}
	out, _ := os.ReadFile(n.path("wd", "out"))
	steps, _ := os.ReadFile(n.path("wd", "steps"))
	lines = strings.Split(strings.TrimSpace(string(steps)), "\n")
	slices.Sort(lines)
	// The script is no task: it has all CPUs of its job, and its own memory.
	if !strings.HasSuffix(string(out), " 0-1 default\n") || !slices.Equal(lines, []string{"0 1 local", "1 0 local"}) {
		t.Errorf("the script had %q, its step %q", out, steps)
	}
}

// TestRootBindRefused: bad input says what is wrong, and what there is.
func TestRootBindRefused(t *testing.T) {
	n := bindingNode(t, "TaskPlugin=task/affinity\n")
	for _, c := range []struct{ options, want string }{
		{"-n2 --cpu-bind=map_cpu:0,4000", "cannot bind task 1 (--cpu-bind=map_cpu): CPU 4000 is not the step's: it has CPUs 0-1"},
		{"-n1 --cpu-bind=mask_cpu:8000000001", "cannot bind task 0 (--cpu-bind=mask_cpu): CPU 39 is not the step's: it has CPUs 0"},
		{"-n1 --cpu-bind=map_ldom:63", "the step has no CPU of ldom 63"},
		{"-n1 --mem-bind=map_mem:63", "cannot bind the memory of task 0 (--mem-bind=map_mem): there is no memory node 63"},
		{"-n1 --threads-per-core=900", "cannot use 900 threads of each core (--threads-per-core)"},
		{"-n1 --cpu-bind=map_cpu:x", `"x" is not a number`},
		{"-n1 --cpu-bind=map_cpu:99999", "is not a number below 65536"},
		{"-n1 --cpu-bind=mask_cpu", "the list is empty"},
		{"-n1 --cpu-bind=core", `"core" is no type of binding`},
		{"-n1 --mem-bind=prefer", "prefer needs"},
		{"-n1 -m plane", "the size of a plane"},
		{"-n1 --hint=fast", `"fast" is no hint`},
		{"-n1 --ntasks-per-core=-1", "write a number from 1"},
	} {
		r := n.ctl(t, append(append([]string{"run"}, strings.Fields(c.options)...), "/bin/true")...)
		if r.code != 1 || !strings.Contains(r.err, c.want) || r.out != "" {
			t.Errorf("%.80s: got %v, want %q", c.options, r, c.want)
		}
	}
	r := n.do(t, call{args: []string{"run", "/bin/true"}, env: []string{"SLURM_HINT=fast"}})
	if r.code != 1 || !strings.Contains(r.err, `"fast" is no hint`) {
		t.Errorf("SLURM_HINT: %v", r)
	}
}

// TestRootBindOffline: a CPU that noded had at its start, and that is offline when
// the step comes. Only the guest's CPUs may be switched off.
func TestRootBindOffline(t *testing.T) {
	if !testkit.InGuest() {
		return // it would take a CPU from all who work on this machine
	}
	n := bindingNode(t, "TaskPlugin=task/affinity\n")
	const cpu1 = "/sys/devices/system/cpu/cpu1/online"
	must(t, os.WriteFile(cpu1, []byte("0"), 0))
	t.Cleanup(func() { must(t, os.WriteFile(cpu1, []byte("1"), 0)) })
	if r := n.ctl(t, "run", "-n2", "--cpu-bind=map_cpu:0,1", "/bin/true"); r.code != 1 || !strings.Contains(r.err, "CPU 1 is offline") {
		t.Errorf("named: %v", r)
	}
	got, r := n.bound(t, "-n2", "--cpu-bind=cores", "-O")
	if r.code != 0 || !slices.Equal(got, []string{"0 0 default", "1 0 default"}) {
		t.Errorf("not named: %q, %v", got, r)
	}
}

// TestRootBindInCpuset: with task/cgroup a task comes into its cpuset first, which
// would undo what was bound before; and it cannot leave the step's CPUs.
func TestRootBindInCpuset(t *testing.T) {
	for _, order := range []string{"task/affinity,task/cgroup", "task/cgroup,task/affinity"} {
		n := startNode(t, site{Real: true, Slurm: "TaskPlugin=" + order + "\n", Cgroup: "ConstrainCores=yes\n"})
		if runtime.NumCPU() < 2 {
			missing(t, "a machine of two CPUs is needed")
		}
		if got, r := n.bound(t, "-n2", "--cpu-bind=map_cpu:1,0"); r.code != 0 || !slices.Equal(got, []string{"0 1 default", "1 0 default"}) {
			t.Errorf("%s: got %q, %v", order, got, r)
		}
		r := n.ctl(t, "run", "-n1", "--cpu-bind=none", "/bin/sh", "-c", "taskset -c 1 true && echo left; taskset -c 0 true && echo stayed")
		if r.out != "stayed\n" {
			t.Errorf("%s: a task of a step with CPU 0: %v", order, r)
		}
	}
}

// TestRootBindNodes: on a machine of two sockets with a memory node each, as the
// guest is one, memory is where it was asked for.
func TestRootBindNodes(t *testing.T) {
	if !testkit.InGuest() {
		return // this machine has one node
	}
	n := bindingNode(t, "TaskPlugin=task/affinity\n")
	for options, want := range map[string][]string{
		"-n2":                                  {"0 0 default", "1 1 default"}, // as many sockets as tasks
		"-n2 --cpu-bind=ldoms --mem-bind=rank": {"0 0 bind:0", "1 1 bind:1"},
		"-n2 --cpu-bind=map_ldom:1,0 --mem-bind=map_mem:1,0":      {"0 1 bind:1", "1 0 bind:0"},
		"-n2 -m block:block --mem-bind=prefer,map_mem:1":          {"0 0 prefer:1", "1 1 prefer:1"},
		"-n3 -O --cpu-bind=map_ldom:1*2,0 --mem-bind=map_mem:0*3": {"0 1 bind:0", "1 1 bind:0", "2 0 bind:0"},
	} {
		if got, r := n.bound(t, strings.Fields(options)...); !slices.Equal(got, want) || r.code != 0 {
			t.Errorf("%s: got %q, want %q: %v", options, got, want, r)
		}
	}
	// 4 MB in the shell itself: the kernel counts them by node.
	const fill = `x=$(head -c 4000000 /dev/zero | tr '\0' x); grep -h anon=[0-9][0-9][0-9] /proc/$$/numa_maps; : $x`
	r := n.ctl(t, "run", "-n1", "--cpu-bind=map_cpu:0", "--mem-bind=map_mem:1", "/bin/sh", "-c", fill)
	if r.code != 0 || !strings.Contains(r.out, " N1=") || strings.Contains(r.out, " N0=") {
		t.Errorf("memory of the other node: %v", r)
	}
	if r := n.ctl(t, "run", "-n3", "-O", "--mem-bind=rank", "/bin/true"); r.code != 1 || !strings.Contains(r.err, "there is no memory node 2: there are 0-1") {
		t.Errorf("a task more than nodes: %v", r)
	}
}

// TestRootNotBound: without the plugin nothing is bound or told, and where CPUs=
// is more than exist, a request that insists is refused.
func TestRootNotBound(t *testing.T) {
	for _, c := range []struct {
		name string
		site site
		want string // what --cpu-bind=cores says, "" for nothing
	}{
		{"task none", site{Real: true, Slurm: "TaskPlugin=task/none\n"}, ""},
		{"too many CPUs", site{Slurm: "TaskPlugin=task/affinity\n"}, "cannot bind tasks (--cpu-bind=cores): NodeName CPUs=64 is more than the machine has"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := startNode(t, c.site)
			r := n.ctl(t, "run", "-n2", "/bin/sh", "-c", "nproc; env | grep CPU_BIND; :")
			if want := strings.Repeat(fmt.Sprintf("%d\n", runtime.NumCPU()), 2); r.code != 0 || r.out != want {
				t.Errorf("got %v, want %q", r, want)
			}
			r = n.ctl(t, "run", "-n2", "--cpu-bind=cores", "/bin/true")
			if ok := c.want == "" && r.code == 0 && r.err == "" || c.want != "" && r.code == 1 && strings.Contains(r.err, c.want); !ok {
				t.Errorf("--cpu-bind=cores: %v, want %q", r, c.want)
			}
		})
	}
}
