package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// usedDoc is what a task or step has used; nil is not known.
type usedDoc struct {
	CPU         *float64 `json:"cpu_seconds"`
	MaxRSS      *float64 `json:"max_rss_bytes"`
	RSS         *float64 `json:"rss_bytes"`
	Processes   *int     `json:"processes"`
	Peak        *float64 `json:"peak_memory_bytes"`
	VMSize      *float64 `json:"max_vm_size_bytes"`
	Read        *float64 `json:"read_bytes"`
	Written     *float64 `json:"written_bytes"`
	DiskWritten *float64 `json:"disk_written_bytes"`
	MinorFaults *float64 `json:"minor_faults"`
	CPUStall    *float64 `json:"cpu_stall_us"`

	Gather  string            `json:"gather"`
	Final   bool              `json:"final"`
	Samples int               `json:"samples"`
	Sources map[string]string `json:"sources"`
}

// acctDoc is a step's record as far as it concerns usage.
type acctDoc struct {
	State string `json:"state"`
	Tasks []struct {
		MaxRSS *float64 `json:"max_rss_bytes"`
		CPU    *float64 `json:"cpu_seconds"`
		Usage  usedDoc  `json:"usage"`
	} `json:"tasks"`
	Usage *usedDoc `json:"usage"`
}

// acct asks show or stat for a step, as its owner.
func (n *node) acct(t testing.TB, verb, id string) acctDoc {
	t.Helper()
	r := n.ctl(t, verb, "--json", id)
	var doc struct {
		Schema int     `json:"schema"`
		Step   acctDoc `json:"step"`
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 || doc.Schema != 1 {
		t.Fatalf("stepctl %s --json %s: schema %d, %v, %v", verb, id, doc.Schema, err, r)
	}
	return doc.Step
}

// near compares a figure with what the load says itself. The bound is loose here:
// the benchmark reports how near it is.
func near(t *testing.T, what string, got *float64, want, off float64) {
	t.Helper()
	switch {
	case got == nil:
		t.Errorf("%s is not known, want %g", what, want)
	case math.Abs(*got-want) > off*want:
		t.Errorf("%s: %g, the load says %g", what, *got, want)
	}
}

// loadProgram is the known load (testdata/tasks/load.c).
func (n *node) loadProgram(t *testing.T) string {
	t.Helper()
	program := n.path("load")
	compile(t, "-static", "testdata/tasks/load.c", "-o", program)
	return program
}

// loadWord is what it says of itself.
type loadWord struct {
	CPU    float64 `json:"cpu_seconds"`
	Faults float64 `json:"minor_faults"`
}

// loadWords reads what the tasks' loads reported into PREFIX0, PREFIX1 and so on.
func loadWords(t *testing.T, prefix string, tasks int) []loadWord {
	t.Helper()
	words := make([]loadWord, tasks)
	for rank := range words {
		b, err := os.ReadFile(prefix + strconv.Itoa(rank))
		must(t, err)
		must(t, json.Unmarshal(bytes.TrimRight(b, "\x00"), &words[rank]))
	}
	return words
}

func TestRootAccounting(t *testing.T) {
	n := startNode(t, site{Slurm: "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=0\n"})
	program := n.loadProgram(t)
	const size, memory = 4 << 20, 64 << 20
	r := n.ctl(t, "run", "-n2", "sh", "-c", fmt.Sprintf("exec %s cpu_ms=300 mem=%d write=%d read=%d file=%s/f$SLURM_PROCID report=%s/w$SLURM_PROCID", program, memory, size, size, n.wd, n.wd))
	if r.code != 0 {
		t.Fatal(r)
	}
	n.ended(t, "1.0")
	doc, words := n.acct(t, "show", "1.0"), loadWords(t, filepath.Join(n.wd, "w"), 2)
	for rank, task := range doc.Tasks {
		u := task.Usage
		near(t, fmt.Sprintf("task %d: CPU", rank), task.CPU, words[rank].CPU, 0.1)
		near(t, fmt.Sprintf("task %d: MaxRSS", rank), task.MaxRSS, memory, 0.1)
		near(t, fmt.Sprintf("task %d: read", rank), u.Read, size, 0.1)
		near(t, fmt.Sprintf("task %d: written", rank), u.Written, size, 0.1)
		near(t, fmt.Sprintf("task %d: faults", rank), u.MinorFaults, words[rank].Faults, 0.2)
		if u.CPU == nil || *u.CPU != *task.CPU {
			t.Errorf("task %d: two CPU times: %v, %v", rank, u.CPU, *task.CPU)
		}
	}
	u := doc.Usage
	if u == nil || !u.Final || u.Gather != "linux" || u.Sources["cpu_seconds"] != "wait4" {
		t.Fatalf("usage: %+v", u)
	}
	near(t, "the step: CPU", u.CPU, words[0].CPU+words[1].CPU, 0.1)
	near(t, "the step: written", u.Written, 2*size, 0.1)
	if u.Peak != nil || u.VMSize != nil || u.RSS != nil {
		t.Errorf("figures that nobody has read: %+v", u)
	}
	if r := n.ctl(t, "show", "1.0"); !strings.Contains(r.out, fmt.Sprintf("used     CPU %.2fs (", *u.CPU)) {
		t.Errorf("show:\n%s", r.out)
	}
	if r := n.ctl(t, "events", "1.0"); !strings.Contains(r.out, `"event":"usage"`) {
		t.Errorf("events:\n%s", r.out)
	}
	// stat shows ended steps, too; to its owner and root alone.
	if r := n.ctl(t, "stat", "1.0"); r.code != 0 || !strings.Contains(r.out, "COMPLETED") || !strings.Contains(r.out, "jobacct_gather/linux") {
		t.Errorf("stat: %v", r)
	}
	refused(t, "another user's stat", n.do(t, call{args: []string{"stat", "1.0"}, uid: 7002}), "permission denied")
	refused(t, "an unknown step", n.ctl(t, "stat", "9.0"), `no such step "9.0"`)
}

// A process that no other waits for counts for the step, and is no task's.
func TestRootAccountingDaemon(t *testing.T) {
	n := startNode(t, site{})
	program := n.loadProgram(t)
	r := n.ctl(t, "run", "sh", "-c", fmt.Sprintf("(%s cpu_ms=300 write=1048576 file=%s/f >word &); while [ ! -s word ]; do sleep 0.05; done", program, n.wd))
	if r.code != 0 {
		t.Fatal(r)
	}
	n.ended(t, "1.0")
	doc := n.acct(t, "show", "1.0")
	if task := doc.Tasks[0]; task.CPU == nil || *task.CPU > 0.25 {
		t.Errorf("the task has used %v s of CPU: its daemon is counted", task.CPU)
	}
	if u := doc.Usage; u == nil || u.CPU == nil || *u.CPU < 0.29 || u.Written == nil || *u.Written < 1<<20 {
		t.Errorf("the step's usage is without the daemon: %+v", u)
	}
}

// stat looks at what runs, without samples in between.
func TestRootStat(t *testing.T) {
	n := startNode(t, site{Slurm: "JobAcctGatherType=jobacct_gather/linux\n"})
	program := n.loadProgram(t)
	release, hold, err := os.Pipe()
	must(t, err)
	defer hold.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	p := n.start(t, call{
		args:  []string{"run", "-n2", "--acctg-freq=0", program, "cpu_ms=200", "write=1048576", "file=" + filepath.Join(n.wd, "f"), "hold"},
		files: []*os.File{release, null, null},
	})
	release.Close()
	id := n.running(t).id()
	eventually(t, callTimeout, "200 ms of each task", func() error {
		doc := n.acct(t, "stat", id)
		if doc.State != "RUNNING" || doc.Usage == nil {
			return fmt.Errorf("%+v", doc)
		}
		for rank, task := range doc.Tasks {
			u := task.Usage
			if u.CPU == nil || *u.CPU < 0.18 || u.Written == nil || *u.Written < 1<<20 {
				return fmt.Errorf("task %d: %+v", rank, u)
			}
			if u.RSS == nil || u.VMSize == nil || u.Processes == nil || *u.Processes != 1 || task.MaxRSS == nil {
				t.Errorf("task %d lives, and %+v", rank, u)
			}
		}
		if u := doc.Usage; u.Final || u.Samples < 1 || u.CPU == nil || *u.CPU < 0.36 {
			t.Errorf("the step lives, and %+v", u)
		}
		return nil
	})
	if doc := n.acct(t, "show", id); doc.Usage != nil && doc.Usage.Samples == 0 {
		t.Errorf("show of a running step: %+v", doc.Usage)
	}
	hold.Close()
	if r := p.wait(t); r.code != 0 {
		t.Fatal(r)
	}
	n.ended(t, id)
	if doc := n.acct(t, "stat", id); !doc.Usage.Final || doc.Usage.RSS != nil || doc.Usage.VMSize == nil {
		t.Errorf("after the end: %+v", doc.Usage)
	}
}

// The sampler, by its frequency.
func TestRootAcctgFreq(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=task=30\nJobAcctGatherParams=OverMemoryKill\n"})
	if r := n.ctl(t, "run", "--acctg-freq=task=1", "sleep", "4"); r.code != 0 {
		t.Fatal(r)
	}
	n.ended(t, "1.0")
	if u := n.acct(t, "show", "1.0").Usage; u == nil || u.Samples < 1 || u.VMSize == nil || *u.VMSize == 0 {
		t.Errorf("usage: %+v", u)
	}
	for _, tt := range []struct{ freq, says string }{
		{"often", "--acctg-freq=often: \"often\" is no number of seconds"},
		{"cpu=3", "is none of task, energy, filesystem and network"},
		{"70000", "no number of seconds up to 65533"},
		{"0", "acctg_freq: 0 s: the site samples memory at least every 30 s to enforce limits (JobAcctGatherFrequency, OverMemoryKill)"},
		{"31", "acctg_freq: 31 s: the site samples"},
	} {
		refused(t, "--acctg-freq="+tt.freq, n.ctl(t, "run", "--acctg-freq="+tt.freq, "true"), tt.says)
	}
	r := n.do(t, call{args: []string{"run", "true"}, env: []string{"SLURM_ACCTG_FREQ=never"}})
	refused(t, "SLURM_ACCTG_FREQ", r, "SLURM_ACCTG_FREQ=never: ")
}

// OverMemoryKill: a sample finds that the step uses more than it asked for.
func TestRootOverMemoryKill(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill\n"})
	program := n.loadProgram(t)
	release, hold, err := os.Pipe()
	must(t, err)
	defer hold.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	said, err := os.Create(n.path("said"))
	must(t, err)
	defer said.Close()
	p := n.start(t, call{
		args:  []string{"run", "--mem=50M", program, "mem=67108864", "keep", "hold"},
		files: []*os.File{release, null, said},
	})
	release.Close()
	if r := p.wait(t); r.code != 137 {
		t.Errorf("run: %v", r)
	}
	doc := n.ended(t, "1.0")
	if doc.State != "OUT_OF_MEMORY" {
		t.Errorf("state %s, reason %q", doc.State, doc.Reason)
	}
	text, err := os.ReadFile(said.Name())
	must(t, err)
	for _, s := range []string{doc.Reason, string(text)} {
		// The sample may be taken while it still takes its 64 MB.
		if !regexp.MustCompile(`Step 1\.0 exceeded its memory limit: its one process uses [56]\d\.\d MB of resident memory; the limit of the step is 50\.0 MB \(OverMemoryKill in JobAcctGatherParams\)`).MatchString(s) {
			t.Errorf("what is said: %q", s)
		}
	}
	// One that stays below is left alone.
	if r := n.ctl(t, "run", "--mem=200M", program, "mem=67108864", "keep", "cpu_ms=1300"); r.code != 0 {
		t.Errorf("under the limit: %v", r)
	}
}

// jobacct_gather/cgroup: the kernel's own peak of each task, and pressure.
func TestRootAccountingCgroup(t *testing.T) {
	n := startNode(t, site{Slurm: "JobAcctGatherType=jobacct_gather/cgroup\nJobAcctGatherFrequency=0\n"})
	program := n.loadProgram(t)
	const memory = 64 << 20
	if r := n.ctl(t, "run", "-n2", "sh", "-c", fmt.Sprintf("exec %s cpu_ms=200 mem=$((%d * (SLURM_PROCID + 1))) report=%s/w$SLURM_PROCID", program, memory, n.wd)); r.code != 0 {
		t.Fatal(r)
	}
	n.ended(t, "1.0")
	doc, words := n.acct(t, "show", "1.0"), loadWords(t, filepath.Join(n.wd, "w"), 2)
	for rank, task := range doc.Tasks {
		near(t, fmt.Sprintf("task %d: CPU", rank), task.CPU, words[rank].CPU, 0.1)
		near(t, fmt.Sprintf("task %d: peak", rank), task.Usage.Peak, float64(memory*(rank+1)), 0.1)
		if task.Usage.CPUStall == nil {
			t.Errorf("task %d: no pressure: %+v", rank, task.Usage)
		}
	}
	u := doc.Usage
	near(t, "the step: CPU", u.CPU, words[0].CPU+words[1].CPU, 0.1)
	if u.Peak == nil || *u.Peak < 1.9*memory || *u.Peak > 3.3*memory || u.Sources["peak_memory_bytes"] == "" {
		t.Errorf("the step: %+v", u)
	}
	if r := n.ctl(t, "stat", "1.0"); !strings.Contains(r.out, "waited for CPU ") {
		t.Errorf("stat: %v", r)
	}
	// A stepd that dies leaves what the cgroups know.
	p := n.start(t, call{args: []string{"run", "-n2", "sh", "-c", program + " cpu_ms=600 report=v$SLURM_PROCID; : > ended$SLURM_PROCID; exec sleep 600"}, dir: n.wd})
	id := n.running(t).id()
	eventually(t, callTimeout, "the ends of both loads", func() error {
		_, err := os.Stat(filepath.Join(n.wd, "ended0"))
		if err == nil {
			_, err = os.Stat(filepath.Join(n.wd, "ended1"))
		}
		return err
	})
	words = loadWords(t, filepath.Join(n.wd, "v"), 2)
	own := words[0].CPU + words[1].CPU
	must(t, syscall.Kill(n.show(t, id).StepdPID, syscall.SIGKILL))
	p.wait(t)
	n.ended(t, id)
	doc = n.acct(t, "show", id)
	if u := doc.Usage; u == nil || u.Final || u.CPU == nil || *u.CPU < own || *u.CPU > 1.7*own || u.Peak == nil || u.Read != nil { // not twice; a shell's start takes long in a guest
		t.Errorf("after stepd's death, and %v s of CPU: %s", own, n.ctl(t, "show", "--json", id))
	}
	if r := n.ctl(t, "events", id); !strings.Contains(r.out, `"event":"usage"`) {
		t.Errorf("events:\n%s", r.out)
	}
}
