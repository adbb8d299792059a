package proctrack

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/step"
)

func TestParseEvents(t *testing.T) {
	tests := []struct {
		name, in string
		want     events
		bad      bool
	}{
		{"running", "populated 1\nfrozen 0\n", events{populated: true}, false},
		{"frozen", "populated 1\nfrozen 1\n", events{populated: true, frozen: true}, false},
		{"empty group", "populated 0\nfrozen 0\n", events{}, false},
		{"before Linux 5.2", "populated 1\n", events{populated: true}, false},
		{"a key to come", "populated 1\nfrozen 0\nkilled 7\n", events{populated: true}, false},
		{"nothing", "", events{}, true},
		{"no populated", "frozen 0\n", events{}, true},
		{"no value", "populated\n", events{}, true},
		{"a number", "populated 2\n", events{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseEvents([]byte(tt.in))
			if got != tt.want || (err != nil) != tt.bad {
				t.Errorf("parseEvents(%q) = %+v, %v; want %+v, error: %v", tt.in, got, err, tt.want, tt.bad)
			}
		})
	}
}

func TestParsePIDs(t *testing.T) {
	tests := []struct {
		name, in string
		want     []int
		bad      bool
	}{
		{"cgroup.procs", "1\n4194304\n", []int{1, 4194304}, false},
		{"children", "12 13 ", []int{12, 13}, false},
		{"none", "", []int{}, false},
		{"other pid namespace", "0\n7\n0\n", []int{7}, false},
		{"negative", "-1\n", nil, true},
		{"too large", "4294967296\n", nil, true},
		{"text", "12\nx\n", nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parsePIDs([]byte(tt.in))
			if (err != nil) != tt.bad {
				t.Fatalf("parsePIDs(%q) = %v, want error: %v", tt.in, err, tt.bad)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("parsePIDs(%q) (-want +got):\n%s", tt.in, diff)
			}
		})
	}
}

func TestParseFamily(t *testing.T) {
	const rest = " 0 -1 4194560 29689 28896 0 3 146 32 76 19 20 0 1 0 2971844"
	tests := []struct {
		name, in string
		want     family
		bad      bool
	}{
		{"plain", "893 (sh) S 890 893 700" + rest, family{893, 700}, false},
		{"hostile name", "893 (a) R 1 1 1 (b) Z 890 893 700" + rest, family{893, 700}, false},
		{"newline in the name", "893 (a\nb) S 890 893 700" + rest, family{893, 700}, false},
		{"kernel thread", "2 (kthreadd) S 0 0 0" + rest, family{}, false},
		{"of another pid namespace", "9 (x) S 0 -1 -1" + rest, family{-1, -1}, false},
		{"cut", "893 (sh) S 890 893", family{}, true},
		{"no name", "893 sh S 890 893 700", family{}, true},
		{"no numbers", "893 (sh) S a b c", family{}, true},
		{"nothing", "", family{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseFamily([]byte(tt.in))
			if got != tt.want || (err != nil) != tt.bad {
				t.Errorf("parseFamily(%q) = %+v, %v; want %+v, error: %v", tt.in, got, err, tt.want, tt.bad)
			}
		})
	}
}

func TestNames(t *testing.T) {
	a, err := RootName("/var/spool/stepd")
	if err != nil || len(a) != len("stepd-01234567") {
		t.Fatalf("RootName = %q, %v", a, err)
	}
	if b, err := RootName("/var//spool/stepd/"); a != b || err != nil {
		t.Errorf("RootName = %q, %v for another spelling of one path; want %q", b, err, a)
	}
	if b, err := RootName("/tmp/x/spool"); a == b || err != nil {
		t.Errorf("RootName = %q, %v for another spool", b, err)
	}
	if _, err := RootName("spool"); err == nil {
		t.Error("a relative spool has a root")
	}
	if _, err := NewRoot(RootConfig{Parent: "sys", Spool: "/var/spool/stepd"}); err == nil {
		t.Error("a root has a relative parent")
	}
	v1 := map[string]string{"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct"}
	r, err := NewRoot(RootConfig{Parent: "/sys/fs/cgroup", V1: v1, Spool: "/var/spool/stepd"})
	if err != nil {
		t.Fatal(err)
	}
	id := step.ID{Job: 12, Step: step.BatchStep}
	if got, want := r.StepDir(id), "/sys/fs/cgroup/"+a+"/job_12/step_4294967291"; got != want {
		t.Errorf("StepDir = %q, want %q", got, want)
	}
	if got, want := r.TasksDir(id), r.Dir()+"/job_12/tasks/step_4294967291"; got != want {
		t.Errorf("TasksDir = %q, want %q", got, want)
	}
	places := map[string]string{"cpuacct": "/sys/fs/cgroup/cpu,cpuacct/" + a + "/job_12/step_4294967291"}
	own := StepCgroups{Dir: r.StepDir(id), Tasks: r.TasksDir(id), V1: places}
	if !r.Holds(id, own) || !r.Holds(id, StepCgroups{Dir: own.Dir}) || r.Holds(id, StepCgroups{Dir: r.StepDir(step.ID{})}) ||
		r.Holds(id, StepCgroups{Dir: own.Dir, Tasks: "/x"}) || r.Holds(id, StepCgroups{Dir: own.Dir, V1: map[string]string{"memory": "/x"}}) {
		t.Error("Holds does not know the root's own cgroups")
	}
	back, err := RootOf(id, own)
	if err != nil || back.Dir() != r.Dir() || len(back.hierarchies) != 1 || back.hierarchies[0] != "/sys/fs/cgroup/cpu,cpuacct/"+a {
		t.Errorf("RootOf = %v, %v; want %q", back, err, r.Dir())
	}
	freezer, err := NewRoot(RootConfig{Parent: "/sys/fs/cgroup/freezer", Freezer: true, Spool: "/var/spool/stepd"})
	if err != nil {
		t.Fatal(err)
	}
	back, err = RootOf(id, StepCgroups{Dir: freezer.StepDir(id), Tasks: freezer.TasksDir(id)})
	if err != nil || back.TasksDir(id) != freezer.Dir()+"/job_12/all_tasks/step_4294967291" || freezer.TasksDir(id) != back.TasksDir(id) {
		t.Errorf("RootOf of a v1 root = %+v, %v", back, err)
	}
	if len(r.hierarchies) != 1 {
		t.Errorf("two controllers of one hierarchy have the roots %q", r.hierarchies)
	}
	for _, dir := range []string{"", "/", "/job_12/step_4294967291", "/sys/fs/cgroup/job_12/step_4294967291", "/sys/fs/cgroup/" + a + "/job_12/step_1", a + "/job_12/step_4294967291"} {
		if back, err := RootOf(id, StepCgroups{Dir: dir}); err == nil {
			t.Errorf("RootOf(%q) = %q, want an error", dir, back.Dir())
		}
		if _, err := RootOf(id, StepCgroups{Dir: own.Dir, V1: map[string]string{"memory": dir}}); err == nil {
			t.Errorf("RootOf with the v1 cgroup %q: want an error", dir)
		}
	}
}

func TestCgroupBeforeCreate(t *testing.T) {
	c := NewCgroup(CgroupConfig{Dir: "/nonexistent", Tasks: "/nonexistent"})
	if err := c.Create(); err == nil || !strings.Contains(err.Error(), `"/nonexistent"`) {
		t.Errorf("Create = %v, want an error that names the directory", err)
	}
	if _, ok := c.HostCgroup(); ok {
		t.Error("there is a HostCgroup before Create")
	}
	if err := c.Add(0, 1); !errors.Is(err, errClosed) {
		t.Errorf("Add = %v, want %v", err, errClosed)
	}
	for name, err := range map[string]error{"Kill": c.Kill(t.Context()), "Destroy": c.Destroy(t.Context()), "Signal": c.Signal(15, 0), "Thaw": c.Thaw()} {
		if err != nil {
			t.Errorf("%s of nothing = %v, want nil", name, err)
		}
	}
}

func TestCgroupRefusesOtherFileSystems(t *testing.T) {
	dir := t.TempDir()
	if err := NewCgroup(CgroupConfig{Dir: dir, Tasks: dir}).Create(); err == nil || !strings.Contains(err.Error(), "not on a cgroup file system") {
		t.Errorf("Create in %q = %v, want a refusal", dir, err)
	}
}

func TestSurvivorsErrorText(t *testing.T) {
	one := Survivor{PID: 12, Comm: "nfs\ncopy", State: "D", Grade: step.GradeDisk, Wchan: "nfs_wait_bit_killable"}
	tests := []struct {
		name string
		err  *SurvivorsError
		want string
	}{
		{"one", &SurvivorsError{Where: `cgroup "/x"`, Survivors: []Survivor{one}, Total: 1, Cause: context.DeadlineExceeded},
			`cannot kill all processes of cgroup "/x": 1 left: pid 12 "nfs\ncopy" (state D: uninterruptible sleep in nfs_wait_bit_killable): context deadline exceeded`},
		{"more than are shown", &SurvivorsError{Where: "w", Survivors: []Survivor{one, {PID: 13, Comm: "b", State: "R", Grade: step.GradeRunning}}, Total: 9, Cause: context.Canceled},
			`cannot kill all processes of w: 9 left: pid 12 "nfs\ncopy" (state D: uninterruptible sleep in nfs_wait_bit_killable), pid 13 "b" (state R: still ending), ...: context canceled`},
		{"none left after all", &SurvivorsError{Where: "w", Cause: context.Canceled}, `cannot kill all processes of w: 0 left: context canceled`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.err.Error(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if !errors.Is(tt.err, tt.err.Cause) {
				t.Error("the cause is hidden")
			}
		})
	}
	if e := newSurvivorsError("w", make([]int, 5000), context.Canceled); len(e.Survivors) != survivorsShown || e.Total != 5000 {
		t.Errorf("%d survivors of %d are shown", len(e.Survivors), e.Total)
	}
}

func FuzzParseEvents(f *testing.F) {
	for _, s := range []string{"populated 1\nfrozen 0\n", "populated 0\n", "frozen 1\npopulated 1", "populated"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ev, err := parseEvents(data)
		if err != nil && ev != (events{}) {
			t.Errorf("an error comes with %+v", ev)
		}
		if err == nil && !strings.Contains(string(data), "populated ") {
			t.Errorf("%q was accepted", data)
		}
	})
}

func FuzzParsePIDs(f *testing.F) {
	for _, s := range []string{"1\n2\n", "12 13 ", "", "-1", "0", "99999999999999999999"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		pids, _ := parsePIDs(data)
		for _, pid := range pids {
			if pid <= 0 {
				t.Errorf("%q gives %d: kill(2) would take it for a group", data, pid)
			}
		}
	})
}

func FuzzParseFamily(f *testing.F) {
	for _, s := range []string{"893 (sh) S 890 893 700 0 -1", "893 (a) R 1 1 1 (b) Z 890 893 700", "()", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fam, err := parseFamily(data)
		if err != nil {
			return
		}
		// A name can hold the whole of another line: only what follows counts.
		again, err := parseFamily(append([]byte("1 (x) S 1 2 3 ("), data...))
		if err != nil || again != fam {
			t.Errorf("with a hostile name before it: %+v, %v; want %+v", again, err, fam)
		}
	})
}

func TestEnabledFrom(t *testing.T) {
	for from, want := range map[string]string{
		"":         "/c/a/b /c/a/b/X",
		"/c":       "/c /c/a /c/a/b /c/a/b/X",
		"/c/a/b":   "/c/a/b /c/a/b/X",
		"/c/other": "/c/a/b /c/a/b/X",
	} {
		r, err := NewRoot(RootConfig{Parent: "/c/a/b", EnableFrom: from, Spool: "/spool"})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.ReplaceAll(strings.Join(r.enabledFrom(), " "), filepath.Base(r.Dir()), "X")
		if got != want {
			t.Errorf("from %q: %q, want %q", from, got, want)
		}
	}
}

func TestCgroupOwns(t *testing.T) {
	c := NewCgroup(CgroupConfig{Dir: "/sys/fs/cgroup/a/stepd-0123abcd/job_1/step_2", Tasks: "/sys/fs/cgroup/a/stepd-0123abcd/job_1/tasks/step_2"})
	for in, want := range map[string]bool{
		"/a/stepd-0123abcd/job_1/tasks/step_2":           true,
		"/a/stepd-0123abcd/job_1/tasks/step_2/task_0/x":  true,
		"/a/stepd-0123abcd/job_1/step_2/host":            true,
		"/../stepd-0123abcd/job_1/tasks/step_2":          true,
		"/a/stepd-0123abcd/job_1/tasks/step_2 (deleted)": true,
		"/a/stepd-0123abcd/job_1/tasks/step_21":          false,
		"/a/stepd-0123abcd/job_1/tasks/step_3":           false,
		"/a/stepd-0123abcd/job_1/tasks":                  false,
		"/a/stepd-ffffffff/job_1/tasks/step_2":           false,
		"/user.slice/user-1000.slice/session-3.scope":    false,
		"/": false,
	} {
		if got := c.owns(in); got != want {
			t.Errorf("owns(%q) = %v, want %v", in, got, want)
		}
	}
}

// TestGivenParent holds that a step is known by its cgroups below whatever parent its daemon
// was given, and another step is not.
func TestGivenParent(t *testing.T) {
	const mount = "/sys/fs/cgroup"
	id := step.ID{Job: 7, Step: 1}
	for _, parent := range []string{mount, mount + "/slurmd", mount + "/system.slice/slurmd.service/steps"} {
		r, err := NewRoot(RootConfig{Parent: parent, Spool: "/var/spool/slurmd"})
		if err != nil {
			t.Fatal(err)
		}
		c := NewCgroup(CgroupConfig{Dir: r.StepDir(id), Tasks: r.TasksDir(id)})
		for dir, want := range map[string]bool{
			r.StepDir(id): true, r.TasksDir(id) + "/task_0": true, parent: false,
			r.StepDir(step.ID{Job: 7, Step: 2}): false, r.TasksDir(step.ID{Job: 8, Step: 1}): false,
		} {
			if got := c.owns(strings.TrimPrefix(dir, mount)); got != want {
				t.Errorf("below %q: owns(%q) = %v, want %v", parent, dir, got, want)
			}
		}
	}
}

func FuzzCgroupIn(f *testing.F) {
	for _, s := range []string{"9:name=systemd:/x\n6:freezer:/f\n0::/y\n", "0::/a:b\n", "::\n", ""} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, v1 bool) {
		path := placeIn(data, v1)
		if path != "" && (!strings.HasPrefix(path, "/") || !strings.Contains(string(data), ":"+path)) {
			t.Errorf("%q gives %q", data, path)
		}
	})
}
