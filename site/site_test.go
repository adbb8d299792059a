package site

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"stepd/proctrack"
	"stepd/slurmconf"
	"stepd/step"
)

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfFile(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "slurm.conf"), "")
	absent := filepath.Join(dir, "absent.conf")
	for _, tc := range []struct{ name, flag, env, want, says string }{
		{"flag", file, "", file, ""},
		{"flag over environment", file, absent, file, ""},
		{"environment", "", file, file, ""},
		{"absent flag", absent, file, "", absent},
		{"absent environment", "", absent, "", absent},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("SLURM_CONF", tc.env)
			got, err := confFile(tc.flag)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %q, %v; want an error with %q", got, err, tc.says)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestLoadSite(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "slurm.conf"), "ClusterName=c\nNodeName=n7 CPUs=3 RealMemory=100\nSlurmdSpoolDir="+dir+"/d\nLaunchParameters=spank_strict\nPartitionName=p Nodes=ALL\n")
	write(t, filepath.Join(dir, "stepd.conf"), "HookTimeout=2\n")
	s, err := Load(Options{File: file})
	if err != nil || s.Mistakes() != nil {
		t.Fatal(err, s.Mistakes())
	}
	if s.Spool != dir+"/d/stepd" || s.Run != "/run/stepd" || s.conf.Node.Name != "n7" || s.conf.Partition != "p" {
		t.Errorf("got %+v", s)
	}
	if c := s.spank(); !c.Strict || c.HookTimeoutS != 2 || c.Plugstack != filepath.Join(dir, "plugstack.conf") {
		t.Errorf("spank %+v", c)
	}
	s, err = Load(Options{File: file, RunDir: "r", SpoolDir: dir + "/s"})
	wd, _ := os.Getwd()
	if err != nil || s.Spool != dir+"/s" || s.Run != filepath.Join(wd, "r") {
		t.Errorf("with flags: %+v, %v", s, err)
	}
}

// TestSteps: what the files mean for every step.
func TestSteps(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "slurm.conf"), "ClusterName=c\nNodeName=n7 CPUs=3\nPartitionName=p Nodes=ALL\nKillWait=7\nUnkillableStepTimeout=8\n"+
		"PropagateResourceLimits=NOFILE\nPropagatePrioProcess=2\nTaskProlog=/tp\nTaskEpilog=/te\nPrologEpilogTimeout=9\nJobAcctGatherType=jobacct_gather/linux\n"+
		"JobAcctGatherFrequency=10\nTaskPlugin=task/affinity\nTaskPluginParam=cores,verbose\n")
	write(t, filepath.Join(dir, "stepd.conf"), "ReplayBytes=70000\nHookTimeout=2\n")
	write(t, filepath.Join(dir, "mpi.conf"), "PMIxDebug=1\n")
	s, err := Load(Options{File: file})
	if err != nil || s.Mistakes() != nil {
		t.Fatal(err, s.Mistakes())
	}
	log := logrus.New()
	log.SetFormatter(&logrus.JSONFormatter{})
	log.SetLevel(logrus.DebugLevel)
	want := step.Site{
		Cluster: "c", Partition: "p", SlurmConf: file, KillWaitS: 7, UnkillableS: 8, Propagate: []string{"NOFILE"}, PropagatePrio: 2, ReplayBytes: 70000,
		Affinity: &step.AffinityConf{Default: "cores", Verbose: true, Off: "why"}, Acct: step.Accounting{Gather: "linux", FrequencyS: 10},
		Spank: step.SpankConf{Plugstack: filepath.Join(dir, "plugstack.conf"), PluginDirs: s.conf.PluginDir, HookTimeoutS: 2, ExitGraceS: 2, JSONLog: true, Debug: true},
	}
	want.Scripts.Prolog, want.Scripts.Epilog, want.Scripts.TimeoutS = "/tp", "/te", 9
	want.MPIConf.PMIx.Debug = true
	want.MPIConf.PMI2.SpawnTimeout = 2 * time.Minute
	if d := cmp.Diff(want, s.steps("why", log)); d != "" {
		t.Error(d)
	}
}

// TestCPUs: the number of slurm.conf is believed, above the hardware too.
func TestCPUs(t *testing.T) {
	machine, err := machineCPUs()
	if err != nil || len(machine) == 0 {
		t.Fatal(machine, err)
	}
	for _, tc := range []struct {
		conf     int
		want     int
		bindable bool
	}{{0, len(machine), true}, {1, 1, true}, {len(machine), len(machine), true}, {len(machine) + 5, len(machine) + 5, false}} {
		s := &Site{conf: &slurmconf.Config{}}
		s.conf.Node.CPUs = tc.conf
		cpus, bindable, err := s.cpus()
		if err != nil || len(cpus) != tc.want || bindable != tc.bindable || !slices.IsSorted(cpus) {
			t.Errorf("CPUs=%d: %v, %v, %v", tc.conf, cpus, bindable, err)
		}
	}
	if m, err := machineMemory(); err != nil || m < 1<<20 {
		t.Errorf("memory %d, %v", m, err)
	}
}

// TestCheck prints mistakes with file and line, and the keys that are ignored.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name, conf, stack string
		says              []string
		fails             bool
	}{
		{"good", "NodeName=n CPUs=2\n", "", nil, false},
		{"a device that is missing", "GresTypes=gpu\nNodeName=n Gres=gpu:2\n", "", []string{"warning: ", "gres.conf:1: cannot find device \"/dev/not-there1\" of gpu"}, false},
		{"a program that is missing", "NodeName=n\nUnkillableStepProgram=/nonexistent/u\n", "", []string{"warning: ", `UnkillableStepProgram="/nonexistent/u" cannot be run`}, false},
		{"cgroup.conf", "NodeName=n\nTaskPlugin=none\n", "", []string{"cgroup.conf:1: ", "no effect without task/cgroup"}, false},
		{"ignored keys", "NodeName=n\nSchedulerType=sched/backfill\n", "", []string{"the controller's, 1 key:", "SchedulerType:2"}, false},
		{"a doubt", "NodeName=n\nMpiDefault=pmix\n", "", []string{"warning: ", "MpiDefault=pmix"}, false},
		{"mistakes", "NodeName=n CPUs=many\nKillWait=soon\n", "", []string{"error: ", "slurm.conf:1", "slurm.conf:2"}, true},
		{"plugin stack", "NodeName=n\n", "maybe x.so\nrequired /nonexistent/x.so\n", []string{"plugstack.conf:1", "plugstack.conf:2", "/nonexistent/x.so"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := write(t, filepath.Join(dir, "slurm.conf"), tc.conf)
			write(t, filepath.Join(dir, "plugstack.conf"), tc.stack)
			write(t, filepath.Join(dir, "gres.conf"), "Name=gpu File=/dev/null,/dev/not-there1\n")
			write(t, filepath.Join(dir, "cgroup.conf"), "ConstrainCores=yes\n")
			var out bytes.Buffer
			err := Check(&out, Options{File: file}, 10000)
			if (err != nil) != tc.fails {
				t.Errorf("got %v", err)
			}
			for _, says := range tc.says {
				if !strings.Contains(out.String(), says) {
					t.Errorf("%q is not in:\n%s", says, &out)
				}
			}
		})
	}
}

// TestProgram: beside the own program, else in libexec; never anywhere else.
func TestProgram(t *testing.T) {
	root := t.TempDir()
	bin, libexec := filepath.Join(root, "sbin"), filepath.Join(root, "libexec", "stepd")
	for _, d := range []string{bin, libexec} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self := filepath.Join(bin, "noded")
	t.Setenv("PATH", libexec+":/bin")
	if _, err := program(self, "sh"); err == nil || !strings.Contains(err.Error(), bin) || !strings.Contains(err.Error(), libexec) {
		t.Errorf("a program that is only in PATH: %v", err)
	}
	write(t, filepath.Join(libexec, "stepd"), "")
	if _, err := program(self, "stepd"); err == nil {
		t.Error("a file that cannot be executed was taken")
	}
	if err := os.Chmod(filepath.Join(libexec, "stepd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := program(self, "stepd"); err != nil || got != filepath.Join(libexec, "stepd") {
		t.Errorf("in libexec: %q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(bin, "stepd"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := program(self, "stepd"); err != nil || got != filepath.Join(bin, "stepd") {
		t.Errorf("beside: %q, %v", got, err)
	}
}

func TestLog(t *testing.T) {
	if _, err := NewLog(Options{LogFormat: "xml"}); err == nil || !strings.Contains(err.Error(), "xml") {
		t.Errorf("got %v", err)
	}
	for word, level := range map[string]logrus.Level{"quiet": logrus.PanicLevel, "error": logrus.ErrorLevel, "info": logrus.InfoLevel, "debug3": logrus.DebugLevel} {
		if got := levelOf(word); got != level {
			t.Errorf("%s is %v, want %v", word, got, level)
		}
	}
	// An existing log is never truncated.
	path := write(t, filepath.Join(t.TempDir(), "log"), "before\n")
	f, err := openLogFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("after\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if b, err := os.ReadFile(path); err != nil || string(b) != "before\nafter\n" {
		t.Errorf("got %q, %v", b, err)
	}
}

// TestLogTo: where the log has been until then stands where it goes on.
func TestLogTo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "noded.log")
	log := logrus.New()
	var before bytes.Buffer
	log.SetOutput(&before)
	f, err := (&Site{conf: &slurmconf.Config{SlurmdLogFile: path, SlurmdDebug: "error"}}).LogTo(log, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log.Error("after it")
	if text := before.String(); !strings.Contains(text, "the log goes on in") || !strings.Contains(text, path) || strings.Contains(text, "after it") {
		t.Errorf("before: %q", text)
	}
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "after it") {
		t.Errorf("the file: %q, %v", b, err)
	}
}

// TestUnread: a cgroup.conf that is not read is reported.
func TestUnread(t *testing.T) {
	dir := t.TempDir()
	if got := unread(dir); got != nil {
		t.Errorf("of an empty directory: %v", got)
	}
	file := write(t, filepath.Join(dir, "cgroup.conf"), "")
	if got := unread(dir); len(got) != 1 || got[0].File != file || got[0].Severity != slurmconf.SeverityWarning {
		t.Errorf("got %v", got)
	}
}

// TestCheckOrder: keys of one kind stand together, and what is to be mended comes last, counted.
func TestCheckOrder(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "slurm.conf"),
		"KillWait=soon\nHealthCheckProgram=/x\nNodeName=n\nSlurmdPidFile=/run/x\nMpiDefault=pmix\nSchedulerType=sched/backfill\n")
	var out bytes.Buffer
	err := Check(&out, Options{File: file}, 10000)
	if _, mistaken := errors.AsType[*MistakenError](err); !mistaken || err.Error() != "1 mistake in the configuration" {
		t.Errorf("got %v", err)
	}
	at := -1
	for _, says := range []string{
		"the controller's, 1 key:\n", " SchedulerType:6\n", "not supported here, 1 key:\n", " HealthCheckProgram:2\n", "read, not used yet, 1 key:\n", " SlurmdPidFile:4\n",
		"\nwarning: ", "\nerror: ",
	} {
		i := strings.Index(out.String(), says)
		if i <= at {
			t.Errorf("%q is not behind the others:\n%s", says, &out)
		}
		at = i
	}
}

// TestMemoryUnlimited: why a step may use more memory than it asked for.
func TestMemoryUnlimited(t *testing.T) {
	for name, c := range map[string]struct {
		slurm, cgroup, kind, want string
	}{
		"limited":        {"", "ConstrainRAMSpace=yes", proctrack.KindCgroupV2, ""},
		"swap and all":   {"", "ConstrainSwapSpace=yes", proctrack.KindCgroupV2, ""},
		"by accounting":  {"JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherParams=OverMemoryKill", "", proctrack.KindLinuxProc, ""},
		"not asked for":  {"", "", proctrack.KindCgroupV2, "cgroup.conf has no ConstrainRAMSpace=yes"},
		"without plugin": {"TaskPlugin=task/affinity", "ConstrainRAMSpace=yes", proctrack.KindCgroupV2, "TaskPlugin of slurm.conf has no task/cgroup"},
		"no cgroups":     {"", "ConstrainRAMSpace=yes", proctrack.KindPGID, "there are no cgroups here (tracking is pgid)"},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "cgroup.conf"), c.cgroup+"\n")
		conf, _, err := slurmconf.Load(write(t, filepath.Join(dir, "slurm.conf"), c.slurm+"\n"), "n1")
		if err != nil {
			t.Fatal(err)
		}
		if got := memoryUnlimited(conf, c.kind); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
