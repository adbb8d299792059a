package check

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"stepd/slurm/wire"
)

// write makes files of a site, and returns slurm.conf's path.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "slurm.conf")
}

// TestSite lists each setting once, and what is done not at all.
func TestSite(t *testing.T) {
	const log = "SlurmdLogFile=/var/log/slurmd.log\n"
	for _, tc := range []struct {
		name, conf string
		want       []string // what the lines begin with
	}{
		{"nothing", log, nil},
		{"what is done", log + "ClusterName=c\nAuthType=auth/munge\nProctrackType=proctrack/cgroup\nTaskPlugin=task/affinity,task/cgroup\n" +
			"SwitchType=switch/none\nJobAcctGatherType=jobacct_gather/cgroup\nMpiDefault=pmix_v4\nPrologFlags=Alloc,Contain\nUsePAM=0\nHashPlugin=hash/k12\n" +
			"JobContainerType=job_container/tmpfs\nLaunchParameters=send_gids\nTLSType=tls/none\nSlurmdUser=root\n", nil},
		{"no log", "ClusterName=c\n", []string{"slurm.conf: SlurmdLogFile"}},
		{"measuring", log + "AcctGatherEnergyType=acct_gather_energy/rapl\nAcctGatherProfileType=acct_gather_profile/hdf5\nAcctGatherFilesystemType=acct_gather_filesystem/lustre\n",
			[]string{"slurm.conf:2: AcctGatherEnergyType=acct_gather_energy/rapl: energy", "slurm.conf:3: ", "slurm.conf:4: "}},
		{"flags in a list", log + "PrologFlags=Alloc,X11,RunInJob\n", []string{"slurm.conf:2: PrologFlags=Alloc,X11,RunInJob: Prolog and Epilog"}},
		{"a word with a value", log + "SlurmctldParameters=idle_on_node_suspend,enable_stepmgr\nLaunchParameters=slurmstepd_memlock,enable_nss_slurm\n",
			[]string{"slurm.conf:2: ", "slurm.conf:3: "}},
		{"case", log + "usepam=YES\nswitchtype=Switch/HPE_Slingshot\n", []string{"slurm.conf:2: usepam=YES: of a step's PAM", "slurm.conf:3: "}},
		{"the last one counts", log + "UsePAM=1\nUsePAM=0\n", nil},
		{"keys and authentication", log + "AuthType=auth/slurm\nTLSType=tls/s2n\n", []string{"slurm.conf:2: AuthType", "slurm.conf:3: TLSType"}},
		{"MPI", log + "MpiDefault=cray_shasta\n", []string{"slurm.conf:2: MpiDefault"}},
		{"this node", log + "NodeName=DEFAULT MemSpecLimit=0\nNodeName=n[1-3] CPUs=4 CoreSpecCount=1 CpuSpecList=0\nNodeName=m1 CoreSpecCount=2\nUsePAM=1\n",
			[]string{"slurm.conf:3: CoreSpecCount=1: ", "slurm.conf:3: CpuSpecList=0: ", "slurm.conf:5: UsePAM"}},
		{"included", log + "Include more.conf\n", []string{"more.conf:2: NamespaceType"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := write(t, map[string]string{"slurm.conf": tc.conf, "more.conf": "# more\nNamespaceType=namespace/linux\n"})
			gaps, err := Site(path, "n2")
			if err != nil {
				t.Fatal(err)
			}
			ok := len(gaps) == len(tc.want)
			for i := range tc.want {
				ok = ok && strings.HasPrefix(gaps[i].String(), tc.want[i])
			}
			if !ok {
				t.Errorf("%v\nwant %q", gaps, tc.want)
			}
		})
	}
}

// TestBeside: files beside slurm.conf count as well.
func TestBeside(t *testing.T) {
	path := write(t, map[string]string{"slurm.conf": "SlurmdLogFile=/l\n", "oci.conf": ""})
	gaps, err := Site(path, "n1")
	if err != nil || len(gaps) != 1 || gaps[0].Where != "oci.conf" {
		t.Errorf("%v, %v", gaps, err)
	}
	if _, err := Site(filepath.Join(t.TempDir(), "slurm.conf"), "n1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestText is what an administrator reads.
func TestText(t *testing.T) {
	if got := Text(nil); got != "all that is configured for a step daemon is done\n" {
		t.Errorf("%q", got)
	}
	got := Text([]Gap{{"slurm.conf:2: UsePAM=1", "no PAM session is opened"}})
	if want := "slurm.conf:2: UsePAM=1: no PAM session is opened\n1 setting is not done"; !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNote logs once for each change, whatever number of steps begin at the same time.
func TestNote(t *testing.T) {
	path := write(t, map[string]string{"slurm.conf": "SlurmdLogFile=/l\nUsePAM=1\nAuthType=auth/jwt\n"})
	dir := filepath.Join(t.TempDir(), "stepd")
	var mu sync.Mutex
	var lines []string
	note := func(digest string) {
		t.Helper()
		if err := Note(dir, digest, path, "n1", func(line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		}); err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { note("first") })
	}
	wg.Wait()
	if len(lines) != 2 {
		t.Errorf("after the first steps: %q", lines)
	}
	note("first")
	note("a longer one, the second")
	note("a longer one, the second")
	if len(lines) != 4 {
		t.Errorf("after a change: %q", lines)
	}
	note("3rd") // a shorter one leaves nothing of the one before
	note("3rd")
	if len(lines) != 6 {
		t.Errorf("after another: %q", lines)
	}
}

// TestNoteOfABrokenSpool is an error, and no loop.
func TestNoteOfABrokenSpool(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Note(filepath.Join(file, "stepd"), "d", "/none", "n1", func(string) {}); err == nil {
		t.Error("no error")
	}
}

// TestRefuse has the steps that would run otherwise than was asked for.
func TestRefuse(t *testing.T) {
	launch := func(change func(*wire.Launch)) *wire.Stream {
		l := &wire.Launch{Nodes: 1, Cred: new(wire.Cred), Het: wire.Het{Steps: 1}}
		change(l)
		return &wire.Stream{Launch: l, MPIType: "none"}
	}
	mpi := func(kind string, nodes uint32) *wire.Stream {
		s := launch(func(l *wire.Launch) { l.Nodes = nodes })
		s.MPIType = kind
		return s
	}
	het := func(kind string) *wire.Stream {
		s := mpi(kind, 1)
		s.Launch.Het = wire.Het{Steps: 2, Nodes: 2}
		return s
	}
	for _, tc := range []struct {
		name string
		s    *wire.Stream
		code syscall.Errno // 0 runs
	}{
		{"a step", launch(func(*wire.Launch) {}), 0},
		{"several nodes", mpi("", 3), 0},
		{"several nodes without MPI", mpi("none", 3), 0},
		{"MPI on one", mpi("pmix", 1), 0},
		{"MPI on several", mpi("pmix_v4", 2), 0},
		{"PMI-2 on several", mpi("pmi2", 2), 0},
		{"a bundle", launch(func(l *wire.Launch) { l.Container = "/b" }), 0},
		{"SELinux", launch(func(l *wire.Launch) { l.Cred.SELinux = "u:r:t" }), 2036},
		{"TLS", launch(func(l *wire.Launch) { l.TLSCert = "-----BEGIN" }), 2036},
		{"a terminal", launch(func(l *wire.Launch) { l.Flags = wire.FlagPTY }), 0},
		{"two components", launch(func(l *wire.Launch) { l.Het.Steps = 2 }), 0},
		{"MPI on two components", het("pmi2"), 0},
		{"two components without MPI", het("none"), 0},
		{"an extern step", launch(func(l *wire.Launch) { l.Step.Step, l.Het.Steps = wire.StepExtern, 0 }), 0},
		{"a batch job", &wire.Stream{Batch: &wire.Batch{Cred: new(wire.Cred)}}, 0},
		{"a batch job in a bundle", &wire.Stream{Batch: &wire.Batch{Container: "/b", Cred: new(wire.Cred)}}, 0},
		{"a batch job with SELinux", &wire.Stream{Batch: &wire.Batch{Cred: &wire.Cred{SELinux: "u:r:t"}}}, 2036},
	} {
		err := Refuse(tc.s)
		var code syscall.Errno
		errors.As(err, &code)
		if code != tc.code || (err != nil) != (tc.code != 0) {
			t.Errorf("%s: %v, %d; want %d", tc.name, err, code, tc.code)
		}
	}
}

// TestRefuseCaptured: nothing of what real slurmds have sent is refused.
func TestRefuseCaptured(t *testing.T) {
	files, err := filepath.Glob("../wire/testdata/*/*.stream")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d streams, %v", len(files), err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := wire.ReadStream(f)
		f.Close()
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if err := Refuse(s); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestIgnored has what runs all the same.
func TestIgnored(t *testing.T) {
	unset := wire.Launch{Debug: debugError, CPUFreqMin: wire.NoVal, CPUFreqMax: wire.NoVal, CPUFreqGov: wire.NoVal}
	freq, gpu, debug := unset, unset, unset
	freq.CPUFreqGov, gpu.GresFreq, debug.Debug = 0x80000002, "gpu:high", 4
	for name, tc := range map[string]struct {
		s    wire.Stream
		want string
	}{
		"nothing":     {wire.Stream{Launch: &unset}, ""},
		"a batch job": {wire.Stream{Batch: new(wire.Batch)}, ""},
		"frequencies": {wire.Stream{Launch: &freq}, "--cpu-freq: "},
		"of GPUs":     {wire.Stream{Launch: &gpu}, "--gpu-freq: "},
		"debug":       {wire.Stream{Launch: &debug}, "--slurmd-debug: "},
	} {
		got := Ignored(&tc.s)
		if len(got) != map[bool]int{true: 1}[tc.want != ""] || !strings.HasPrefix(strings.Join(got, ""), tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
