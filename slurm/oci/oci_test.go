package oci

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"stepd/step/launch"
)

// TestMain is the program of a task as well.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Mode {
		os.Exit(Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

const start = "RunTimeCreate=c\nRunTimeStart=s\nRunTimeQuery=q\nRunTimeKill=k\nRunTimeDelete=d\n"

const run = "RunTimeRun=\"crun run %n.%t -b %b\"\n"

func load1(t testing.TB, text string) (*Conf, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "oci.conf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Load(filepath.Join(dir, "slurm.conf"))
}

func TestLoad(t *testing.T) {
	got, err := load1(t, run+"# a comment\nruntimequery=\"crun state %t\"\nEnvExclude=\"^(SLURM_CONF|A B)=\"\nCreateEnvFile=true\nDisableHooks=prestart,poststop\n"+
		"IgnoreFileConfigJson=true\nDisableCleanup=no\nContainerPath=/run/%U/%j\nMountSpoolDir=/s\nFileDebug=debug\nSrunPath=/bin/srun\nRunTimeEnvExclude=^X\nRunTimeKill=k\nRunTimeDelete=d\n")
	want := &Conf{
		Run: "crun run %n.%t -b %b", Query: "crun state %t", EnvExclude: "^(SLURM_CONF|A B)=", EnvFile: "null", DisableHooks: []string{"prestart", "poststop"},
		IgnoreConfig: true, ContainerPath: "/run/%U/%j", MountSpoolDir: "/s", Ignored: []string{"FileDebug"}, RunEnvExclude: "^X", Kill: "k", Delete: "d",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "slurm.conf")); !errors.Is(err, ErrNone) {
		t.Errorf("no file: %v", err)
	}
	for text, why := range map[string]string{
		"":                                  "RunTimeRun is not set",
		"RunTimeCreate=c\nRunTimeStart=s\n": "without RunTimeRun there must be",
		start[strings.Index(start, "\n"):]:  "without RunTimeRun there must be",
		start + "IgnoreFileConfigJson=1\n":  "IgnoreFileConfigJson is for RunTimeRun alone",
		run + "NoSuchKey=1\n":               `oci.conf:2: there is no key "NoSuchKey"`,
		run + "CreateEnvFile=maybe\n":       "neither true nor false",
		run + "DisableCleanup=maybe\n":      "neither true nor false",
		run + "EnvExclude=\"(\"\n":          "cannot read the expression",
		run + "RunTimeEnvExclude=\"[\"\n":   "cannot read the expression",
		"RunTimeRun=\"crun %q\"\n":          "%q stands for nothing",
		"RunTimeRun=\"crun 100%\"\n":        "stands for nothing",
		run + "IgnoreFileConfigJson=on\n":   "neither true nor false",
		run + "ContainerPath=/a/%x\n":       "%x stands for nothing",
	} {
		if _, err := load1(t, text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %q", text, err, why)
		}
	}
}

func TestExpand(t *testing.T) {
	p := &place{
		Step: &Step{Node: "n1", User: "alice", UID: 7, Job: 12, StepID: 3, Cwd: "/w"}, rank: 5, argv: []string{"a b", "it's", "$x"},
		bundle: "/s/task-5", spool: "/s", envFile: "/s/env", root: "/b/rootfs", pid: 99,
	}
	got := p.expand("%% %@ %b %e %j %m %n %p %r %s %t %u %U %Z.")
	if want := `% 'a b' 'it'\''s' '$x' /s/task-5 /s/env 12 /s n1 99 /b/rootfs 3 5 alice 7 /w.`; got != want {
		t.Errorf("%s\n%s", got, want)
	}
}

// apply reads a config.json, changes it and returns what it is then.
func apply(t *testing.T, text string, ch changes) map[string]any {
	t.Helper()
	c, err := parseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.apply(&ch)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestApply(t *testing.T) {
	got := apply(t, `{"ociVersion":"1.0.0","process":{"user":{"uid":18446744073709551615},"args":["sh"],"env":["OWN=1","PATH=/bin","SLURM_PROCID=9"],"terminal":true},
		"root":{"path":"fs","readonly":true},"hooks":{"prestart":[],"poststop":[]},"mounts":[{"destination":"/proc"}],"x":{"y":[1]}}`,
		changes{bundle: "/b", args: []string{"a"}, env: []string{"PATH=/usr/bin", "SLURM_PROCID=0"}, mounts: []mount{bind("/s", "/d", "ro")}, noHooks: []string{"Prestart"}})
	want := apply(t, `{}`, changes{})
	if err := json.Unmarshal([]byte(`{"ociVersion":"1.0.0","process":{"user":{"uid":18446744073709551615},"args":["a"],"env":["PATH=/bin","SLURM_PROCID=0","OWN=1"],"terminal":false},
		"root":{"path":"/b/fs","readonly":true},"hooks":{"poststop":[]},
		"mounts":[{"destination":"/proc"},{"destination":"/d","type":"none","source":"/s","options":["bind","ro"]}],"x":{"y":[1]}}`), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%v", got, want)
	}
	if got := environment([]string{"A=1"}, []string{"A=2", "B=3"}, true); !slices.Equal(got, []string{"A=2", "B=3", "A=1"}) {
		t.Errorf("22.05: %q", got)
	}
	// A number that no float64 holds stays what it is.
	c, _ := parseConfig([]byte(`{"process":{"n":18446744073709551615}}`))
	if out, err := c.apply(&changes{args: []string{"<&>"}}); err != nil || !strings.Contains(string(out), "18446744073709551615") || !strings.Contains(string(out), "<&>") {
		t.Errorf("%s %v", out, err)
	}
}

func TestReadConfig(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	refused := func(name, why string, errno error) {
		t.Helper()
		_, err := readConfig(dir)
		if err == nil || !strings.Contains(err.Error(), why) || errno != nil && !errors.Is(err, errno) {
			t.Errorf("%s: %v", name, err)
		}
		_ = os.Remove(path)
	}
	refused("none", "config.json", syscall.ENOENT)
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	refused("a FIFO", "is no regular file", nil)
	_ = os.Mkdir(path, 0o755)
	refused("a directory", "is no regular file", nil)
	if f, err := os.Create(path); err != nil || f.Truncate(1<<30) != nil {
		t.Fatal(err)
	}
	refused("1 GB", "has more than 4 MiB", nil)
	_ = os.Symlink(path, path)
	refused("a loop of links", "config.json", syscall.ELOOP)
	for _, text := range []string{"", "{", "null", "[]", `{"process":1}`, `{"process":{"env":[1]}}`, `{"root":[]}`, `{"mounts":{}}`, `{"hooks":3}`} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		refused(text, "cannot read the bundle", nil)
	}
}

func TestPlugin(t *testing.T) {
	p := &Plugin{Step: &Step{Dir: "/s", Conf: Conf{Query: "q"}}, Program: "/stepd", Ranks: []int{4, 7}, Argv: []string{"a"}}
	l := &launch.Launch{TaskArgv: [][]string{nil, {"b", "c"}}}
	if err := p.PreLaunch(l); err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"/stepd", "container", "run", "/s", "4", "a"}, {"/stepd", "container", "run", "/s", "7", "b", "c"}}
	if !reflect.DeepEqual(l.TaskArgv, want) || len(l.Scripts) != 1 || l.Scripts[0].Path != "/s/end" || !l.Scripts[0].Epilog {
		t.Errorf("%q %+v", l.TaskArgv, l.Scripts)
	}
	p.Conf.Query, l = "", new(launch.Launch)
	if err := p.PreLaunch(l); err != nil || len(l.Scripts) != 0 || len(l.TaskArgv) != 2 {
		t.Errorf("%v %+v", err, l)
	}
}

// TestPrepare replaces what a killed step daemon has left, and removes what it has made without
// following a link that the user has put there.
func TestPrepare(t *testing.T) {
	dir, kept := t.TempDir(), t.TempDir()
	s := &Step{Dir: filepath.Join(dir, "oci-job1-0"), UID: uint32(os.Getuid()), Speaker: "slurmstepd-n1", Conf: Conf{Run: "r", RunEnvExclude: "^SECRET="}, Env: []string{"A=1", "SECRET=1"}}
	_ = os.MkdirAll(filepath.Join(s.Dir, "old"), 0o755)
	if err := s.Prepare([]int{0, 3}, uint32(os.Getgid())); err != nil {
		t.Fatal(err)
	}
	list, _ := filepath.Glob(s.Dir + "/*")
	for i := range list {
		list[i] = filepath.Base(list[i])
	}
	if got := strings.Join(list, " "); got != "end step.json task-0 task-3" {
		t.Errorf("%s", got)
	}
	if text, err := os.ReadFile(s.Dir + "/step.json"); err != nil || strings.Contains(string(text), "SECRET=1") {
		t.Errorf("the user reads %s: %v", text, err)
	}
	if got, err := load(s.Dir); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%+v %v", got, err)
	}
	// Deeper than there are descriptors, one directory in the other.
	lowerFiles(t, 64)
	for i, dir := 0, s.Dir+"/task-0"; i < 300; i++ {
		dir += "/d"
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(kept+"/f", nil, 0o644), os.Symlink(kept, s.Dir+"/task-0/link"), s.Remove()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept + "/f"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// lowerFiles bounds the descriptors of the test's process.
func lowerFiles(t *testing.T, most uint64) {
	t.Helper()
	var was syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was)
	if err == nil {
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: was.Max})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
}

// TestEnd asks the runtime once, and kills and deletes what it knows.
func TestEnd(t *testing.T) {
	for _, tc := range []struct{ query, want, err string }{
		{`echo '{"status":"running"}'`, "kill 0 41\ndelete 0 41\n", ""},
		{`echo '{"status":"stopped"}'`, "delete 0 41\n", ""},
		{"exit 1", "", ""},
		{"echo no", "", "cannot read the answer of RunTimeQuery"},
		{"head -c 3000000 /dev/zero", "", ""},
	} {
		dir := t.TempDir()
		log := filepath.Join(dir, "log")
		s := &Step{Dir: dir, Env: []string{"PATH=/usr/bin:/bin"}, Conf: Conf{
			Query: tc.query, Kill: "echo kill %t %p >> " + log, Delete: "echo delete %t %p$X >> " + log, IgnoreConfig: true,
		}}
		t.Setenv("SLURM_PROCID", "0")
		if err := s.end(); err != nil { // no runtime has run
			t.Errorf("%s: %v", tc.query, err)
		}
		if err := os.WriteFile(filepath.Join(dir, pidFile+".0"), []byte("41"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := s.end()
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: %v", tc.query, err)
		}
		if got, _ := os.ReadFile(log); string(got) != tc.want {
			t.Errorf("%s: %q", tc.query, got)
		}
	}
}

func FuzzConf(f *testing.F) {
	f.Add("RunTimeRun=\"crun run %n.%t -b %b\"\nEnvExclude=\"^(A|B)=\"\nCreateEnvFile=newline\n")
	f.Add("runtimerun=a%%b%@\nContainerPath=/%u/%j\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := load1(t, text)
		if err != nil {
			return
		}
		p := &place{Step: &Step{}, argv: []string{"'"}}
		for _, pattern := range []string{c.Run, c.Query, c.Kill, c.Delete, c.ContainerPath, c.MountSpoolDir} {
			if strings.Count(pattern, "%") == 0 && p.expand(pattern) != pattern {
				t.Errorf("%q became %q", pattern, p.expand(pattern))
			}
		}
		if _, err := excluder(c.EnvExclude); err != nil {
			t.Errorf("%q was accepted: %v", c.EnvExclude, err)
		}
	})
}

// FuzzConfig holds that what is written is a config.json again, with the task's arguments.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"process":{"args":["sh"],"env":["A=1"]},"root":{"path":"r"},"mounts":[{}],"hooks":{"a":[]}}`), "A=2")
	f.Add([]byte(`{"root":null,"process":null,"mounts":null,"hooks":null}`), "B")
	f.Fuzz(func(t *testing.T, text []byte, env string) {
		c, err := parseConfig(text)
		if err != nil {
			return
		}
		out, err := c.apply(&changes{bundle: "/b", args: []string{"x"}, env: []string{env}, mounts: []mount{bind("/a", "/c")}, noHooks: []string{"a"}})
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseConfig(out)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		var process struct{ Args []string }
		if err := again.read("process", &process); err != nil || !slices.Equal(process.Args, []string{"x"}) {
			t.Errorf("%q %v", process.Args, err)
		}
	})
}
