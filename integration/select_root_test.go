package integration

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// given is what each job has, by its number: its CPUs and gres; and whether others may have them.
type given struct {
	ID       int    `json:"job_id"`
	CPUs     string `json:"cpus"`
	Gres     string `json:"gres"`
	CPUsFree bool   `json:"cpus_free"`
}

// given are the jobs of the node document.
func (n *node) given(t testing.TB) (jobs []given) {
	t.Helper()
	var doc struct {
		Node struct{ Jobs []given }
	}
	r := n.ctlRoot(t, "node", "status", "--json")
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatalf("node status: %v: %v", err, r)
	}
	return doc.Node.Jobs
}

// sleeps submits a job that sleeps, and returns what it has.
func (n *node) sleeps(t testing.TB, options ...string) given {
	t.Helper()
	r := n.ctl(t, append(append([]string{"batch"}, options...), "--wrap=exec sleep 86400")...)
	id, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(r.out, "Submitted batch job ")))
	if err != nil {
		t.Fatalf("batch %v: %v", options, r)
	}
	n.running(t) // a job that noded has accepted and not started yet ends with noded
	for _, j := range n.given(t) {
		if j.ID == id {
			return j
		}
	}
	t.Fatalf("job %d is not in the node document", id)
	return given{}
}

// cancelAll ends all jobs.
func (n *node) cancelAll(t testing.TB) {
	t.Helper()
	for _, j := range n.given(t) {
		n.ctlRoot(t, "cancel", strconv.Itoa(j.ID))
	}
	eventually(t, callTimeout, "the jobs to end", func() error {
		if jobs := n.given(t); len(jobs) > 0 {
			return fmt.Errorf("left: %v", jobs)
		}
		return nil
	})
}

// selectNode is a node of two sockets of four cores of two threads.
const selectNode = "16 Sockets=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=4000"

// TestRootSelectWords: SelectType and each CR word, with two jobs: one of one task and one of three,
// both with three quarters of the memory.
func TestRootSelectWords(t *testing.T) {
	waits(t)
	n := startNode(t, site{Node: "CPUs=" + selectNode})
	full := "it needs 3000 MB of memory on this node: of its 4000 MB 1000 MB are free"
	for _, c := range []struct {
		conf          string
		first, second string // CPUs; of the second without memory where that is refused
		refused       string
	}{
		{"SelectType=select/linear", "0-15", "", "it needs the whole node (SelectType=select/linear)"},
		{"SelectType=select/linear\nSelectTypeParameters=CR_Memory", "0-15", "", "it needs the whole node (SelectType=select/linear)"},
		{"SelectType=select/cons_tres", "0-1", "2-5", full}, // CR_Core_Memory
		{"SelectTypeParameters=CR_CPU", "0-1", "2-5", ""},   // the line has ThreadsPerCore
		{"SelectTypeParameters=CR_CPU_Memory", "0-1", "2-5", full},
		{"SelectTypeParameters=CR_Core", "0-1", "2-5", ""},
		{"SelectTypeParameters=CR_Core_Memory", "0-1", "2-5", full},
		{"SelectTypeParameters=CR_Socket", "0-7", "8-15", ""},
		{"SelectTypeParameters=CR_Socket_Memory", "0-7", "8-15", full},
		{"SelectTypeParameters=CR_Core,CR_ONE_TASK_PER_CORE", "0-1", "2-7", ""},
		{"SelectTypeParameters=CR_CPU,CR_ONE_TASK_PER_CORE", "0-1", "2-7", ""},
		{"SelectTypeParameters=CR_Socket_Memory,CR_ONE_TASK_PER_CORE", "0-7", "8-15", full},
		{"SelectTypeParameters=CR_Memory", "0-1", "2-5", full}, // and CR_CPU
		{"SelectType=select/cons_res\nSelectTypeParameters=CR_Core,CR_CORE_DEFAULT_DIST_BLOCK", "0-1", "2-5", ""},
		{"SelectTypeParameters=CR_Core_Memory,CR_LLN", "0-1", "2-5", full},
		{"SelectTypeParameters=CR_CPU,CR_Pack_Nodes", "0-1", "2-5", ""},
	} {
		n.conf(t, selectNode, c.conf+"\n")
		n.hup(t, "noded: ready")
		if j := n.sleeps(t, "-n1", "--mem=3000"); j.CPUs != c.first {
			t.Errorf("%s: the first job has CPUs %s, want %s", c.conf, j.CPUs, c.first)
		}
		second := []string{"-n3", "--mem=3000"}
		if c.refused != "" {
			refused(t, c.conf, n.ctl(t, append([]string{"batch"}, append(second, "--wrap=true")...)...), c.refused)
			second = second[:1]
		}
		if c.second != "" {
			if j := n.sleeps(t, second...); j.CPUs != c.second {
				t.Errorf("%s: the second job has CPUs %s, want %s", c.conf, j.CPUs, c.second)
			}
		}
		n.cancelAll(t)
	}
	// Jobs that share the CPUs of a node: with CR_Memory they do not share its memory.
	for conf, says := range map[string]string{"SelectType=select/linear": "", "SelectType=select/linear\nSelectTypeParameters=CR_Memory": full} {
		n.conf(t, selectNode, conf+"\n")
		n.hup(t, "noded: ready")
		n.sleeps(t, "--overcommit", "--mem=3000")
		if second := []string{"--overcommit", "--mem=3000"}; says == "" {
			n.sleeps(t, second...)
		} else {
			refused(t, conf, n.ctl(t, append([]string{"batch", "--wrap=true"}, second...)...), says)
		}
		n.cancelAll(t)
	}
	n.logs(t, `flag \"CR_LLN\" has no effect on the choice within one node`, `flag \"CR_Pack_Nodes\" has no effect`)
	n.conf(t, selectNode, "SelectType=select/bogus\n")
	if code, out := runNoded(t, nil, "-f", n.path("slurm.conf"), "--check"); code == 0 || !strings.Contains(out, "select/bogus") {
		t.Errorf("an unknown SelectType: code %d: %s", code, out)
	}
	n.checkClean(t)
}

// TestRootSelectInfo: the node document has what is used and free of the node, and what each job has.
func TestRootSelectInfo(t *testing.T) {
	waits(t)
	n := startNode(t, site{
		Node: "CPUs=" + selectNode + " CoreSpecCount=1 MemSpecLimit=500 Gres=gpu:2,scratch:100", Slurm: "GresTypes=gpu,scratch\n",
		Gres: "Name=gpu File=/dev/zero\nName=gpu File=/dev/full\n",
	})
	n.sleeps(t, "-n3", "--mem=1000")
	n.sleeps(t, "--gres=gpu:1,scratch:30", "--mem=200")
	stands := n.sleeps(t, "-n2", "--mem=300")
	ok(t, "suspend", n.ctl(t, "suspend", strconv.Itoa(stands.ID)))
	var doc struct {
		Schema int
		Node   map[string]json.RawMessage
	}
	var jobs []map[string]any
	r := n.ctl(t, "node", "status", "--json")
	must(t, json.Unmarshal([]byte(r.out), &doc))
	must(t, json.Unmarshal(doc.Node["jobs"], &jobs))
	for key, want := range map[string]string{
		"free_cpus": "8", "memory_usable_mb": "3500", "memory_used_mb": "1500",
		"select": `{"plugin":"select/cons_tres","unit":"core","free_cpu_list":"6-13","spec_cpus":"14-15","cores":7,"free_cores":4}`,
		"gres":   `[{"name":"gpu","type":"","count":2,"used":1,"used_index":"0"},{"name":"scratch","type":"","count":100,"used":30,"used_index":""}]`,
	} {
		if got := string(doc.Node[key]); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	var got []string
	for _, j := range jobs {
		got = append(got, fmt.Sprintf("%v %v %v %v %v %v", j["job_id"], j["cpus"], j["memory_mb"], j["gres"], j["cpus_free"], j["suspended"] != nil))
	}
	want := []string{"1 0-3 1000  false false", "2 4-5 200 gpu:1(IDX:0),scratch:30 false false", "3 6-7 300  true true"}
	if doc.Schema != 1 || !slices.Equal(got, want) {
		t.Errorf("schema %d, jobs %q, want %q", doc.Schema, got, want)
	}
	n.cancelAll(t)
	n.checkClean(t)
}

// TestRootSelectSpec: CPUs that no job gets, and what is wrong with them.
func TestRootSelectSpec(t *testing.T) {
	waits(t)
	n := startNode(t, site{Node: "CPUs=" + selectNode + " CoreSpecCount=2 MemSpecLimit=500"})
	refused(t, "all CPUs", n.ctl(t, "run", "-n16", "true"), "it needs 16 CPUs on this node, which has 12 CPUs")
	refused(t, "all memory", n.ctl(t, "run", "--mem=3501", "true"), "on this node, which has 3500 MB")
	if j := n.sleeps(t, "-n12", "--mem=3500"); j.CPUs != "0-5,8-13" {
		t.Errorf("all that jobs get: CPUs %s", j.CPUs)
	}
	n.cancelAll(t)
	n.conf(t, selectNode+" CpuSpecList=0,15", "")
	n.hup(t, "noded: ready")
	if j := n.sleeps(t, "-n12"); j.CPUs != "2-13" {
		t.Errorf("beside a list: CPUs %s", j.CPUs)
	}
	n.cancelAll(t)
	n.checkClean(t)
}

// TestRootSelectLess: a node that has less after a reload or a restart is drained, and the jobs that
// have what it has not are named; they go on, and what they have is not given again.
func TestRootSelectLess(t *testing.T) {
	waits(t)
	const gpus = "GresTypes=gpu\n"
	n := startNode(t, site{Node: "CPUs=8", Gres: "Name=gpu File=/dev/zero\nName=gpu File=/dev/full\n"})
	for _, c := range []struct {
		what, more    string
		before, after string // the NodeName line after CPUs=
		options       string // of both jobs
		small, big    string // and of each
		says          string // with SMALL and BIG for the two
		beside        string // what is refused while they run, and why
		why           string
		all           string // what there is when they have ended
	}{
		{
			"memory", "", "8 RealMemory=4000", "8 RealMemory=2000", "-n1", "--mem=500", "--mem=3000",
			"BIG has 3000 MB (the node has 2000 MB, its jobs 3500 MB)", "--mem=1", "of its 2000 MB 0 MB are free", "--mem=2000",
		},
		{"CPUs", "", "8", "4", "", "-n3", "-n2", "BIG has CPUs 4 (the node has CPUs 0-3)", "-n1", "of its 4 CPUs 0 are free", "-n4"},
		{
			"CoreSpecCount", "", "8 Sockets=2 CoresPerSocket=4", "8 Sockets=2 CoresPerSocket=4 CoreSpecCount=2", "", "-n3", "-n2",
			"BIG has CPUs 3 (the node has CPUs 0-2,4-6)", "-n3", "of its 6 CPUs 2 are free", "-n6",
		},
		{"CpuSpecList", "", "8 Sockets=2 CoresPerSocket=4", "8 Sockets=2 CoresPerSocket=4 CpuSpecList=2,3,4", "", "-n3", "-n2", "SMALL has CPUs 2 (the node has CPUs 0-1,5-7); BIG has CPUs 3-4 (the node has CPUs 0-1,5-7)", "-n4", "of its 5 CPUs 3 are free", "-n5"},
		{"a device", gpus, "8 Gres=gpu:2", "8 Gres=gpu:1", "--gres=gpu:1", "", "", "BIG has gpu:1(IDX:1) (the node has gpu:1)", "--gres=gpu:1", "of 1 gpu 0 are free", "--gres=gpu:1"},
		{"all devices", gpus, "8 Gres=gpu:2", "8", "--gres=gpu:1", "", "", "SMALL has gpu:1(IDX:0) (the node has none); BIG has gpu:1(IDX:1) (the node has none)", "--gres=gpu:1", "there is no such generic resource", "-n8"},
	} {
		for how, again := range map[string]func(){
			"a reload":  func() { n.hup(t, "noded: ready") },
			"a restart": func() { n.kill9(t); n.boot(t) },
		} {
			when := c.what + " after " + how
			n.conf(t, c.before, c.more)
			n.hup(t, "noded: ready")
			small, big := n.sleeps(t, strings.Fields(c.options+" "+c.small)...), n.sleeps(t, strings.Fields(c.options+" "+c.big)...)
			n.conf(t, c.after, c.more)
			again()
			name := func(j given) string { return fmt.Sprintf("job %d of %s", j.ID, testUser(t).name) }
			want := "the node has less than its jobs have: " + strings.NewReplacer("SMALL", name(small), "BIG", name(big)).Replace(c.says)
			if doc := n.status(t); doc.State != "DRAINING" || doc.Reason != want {
				t.Errorf("%s: the node is %s: %q, want %q", when, doc.State, doc.Reason, want)
			}
			refused(t, "a drained node, "+when, n.ctl(t, "run", "true"), want)
			n.conf(t, c.before, c.more) // the node has all again, and is drained until an administrator has seen that
			n.hup(t, "noded: ready")
			if doc := n.status(t); doc.Reason != want {
				t.Errorf("%s: the drain is %q when the node has all again", when, doc.Reason)
			}
			must(t, n.ctlErrorRoot(t, "node", "resume"))
			n.conf(t, c.after, c.more)
			again()
			must(t, n.ctlErrorRoot(t, "node", "resume"))
			if jobs := n.given(t); len(jobs) != 2 || jobs[0] != small || jobs[1] != big {
				t.Errorf("%s: the jobs are %v, and were %v and %v", when, jobs, small, big)
			}
			refused(t, "beside them, "+when, n.ctl(t, "run", c.beside, "true"), c.why)
			n.cancelAll(t)
			if r := n.ctl(t, "run", c.all, "true"); r.code != 0 {
				t.Errorf("%s, when they have ended: %v", when, r)
			}
		}
	}
	n.checkClean(t)
}

// TestRootSelectSuspend: another job gets the CPUs of a suspended one, and not its memory; its resume
// is refused as long; a restart of noded changes nothing of it.
func TestRootSelectSuspend(t *testing.T) {
	waits(t)
	n := startNode(t, site{Node: "CPUs=4 RealMemory=4000", Slurm: "SelectTypeParameters=CR_CPU_Memory\n"})
	first := n.sleeps(t, "-n4", "--mem=3000")
	id := strconv.Itoa(first.ID)
	refused(t, "beside the job", n.ctl(t, "run", "true"), "of its 4 CPUs 0 are free")
	if r := n.ctl(t, "suspend", id); r.code != 0 {
		t.Fatalf("suspend: %v", r)
	}
	refused(t, "its memory", n.ctl(t, "run", "--mem=1001", "true"), "of its 4000 MB 1000 MB are free")
	second := n.sleeps(t, "-n2", "--mem=1000")
	held := fmt.Sprintf("cannot resume job %d: its CPUs 0-1 were given to other jobs while it was suspended: job %d", first.ID, second.ID)
	for _, when := range []string{"while another job has its CPUs", "after a restart"} {
		refused(t, when, n.ctl(t, "resume", id), held)
		refused(t, "a step, "+when, n.ctl(t, "resume", id+".batch"), held)
		if s := n.suspension(t, id+".batch"); s.Suspended == nil {
			t.Errorf("%s: a resume that was refused has resumed the job", when)
		}
		if jobs := n.given(t); len(jobs) != 2 || !jobs[0].CPUsFree || jobs[1].CPUsFree || second.CPUs != "0-1" {
			t.Errorf("%s: the jobs are %v", when, jobs)
		}
		if r := n.ctl(t, "run", "-n2", "true"); r.code != 0 {
			t.Errorf("%s: the other two CPUs: %v", when, r)
		}
		n.kill9(t)
		n.boot(t)
	}
	n.ctl(t, "cancel", strconv.Itoa(second.ID))
	eventually(t, callTimeout, "the resume", func() error {
		if r := n.ctl(t, "resume", id); r.code != 0 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	if s := n.suspension(t, id+".batch"); s.Suspended != nil {
		t.Errorf("the resumed job is %+v", s)
	}
	refused(t, "beside the resumed job", n.ctl(t, "run", "true"), "of its 4 CPUs 0 are free")
	if r := n.ctlRoot(t, "suspend", id); r.code != 0 {
		t.Fatalf("suspend by root: %v", r)
	}
	if r := n.ctl(t, "run", "-n4", "true"); r.code != 0 {
		t.Errorf("the CPUs of a job that root has suspended: %v", r)
	}
	n.cancelAll(t) // the suspended job gives back what it has, and no more
	if r := n.ctl(t, "run", "-n4", "--mem=4000", "true"); r.code != 0 {
		t.Errorf("the whole node: %v", r)
	}
	n.checkClean(t)
}

// TestRootSelectTestOnly: --test-only answers now, later and never, and takes nothing.
func TestRootSelectTestOnly(t *testing.T) {
	waits(t)
	n := startNode(t, site{Node: "CPUs=4 RealMemory=4000", Slurm: "SelectTypeParameters=CR_CPU_Memory\nKillWait=5\n"})
	verbs := [][]string{{"run", "--test-only"}, {"alloc", "--test-only"}, {"batch", "--test-only", "--wrap=true"}}
	answers := func(code int, says string, options ...string) {
		t.Helper()
		for _, verb := range verbs {
			if verb[0] != "run" && slices.Contains(options, "--jobid=1") {
				continue
			}
			args := append(append([]string{}, verb...), options...)
			if verb[0] != "batch" {
				args = append(args, "true")
			}
			if r := n.ctl(t, args...); r.code != code || r.out != "" || !strings.Contains(r.err, says) {
				t.Errorf("%v: %v, want code %d and %q", args, r, code, says)
			}
		}
	}
	answers(0, "stepctl: it would start now, with CPUs 0-1, 100 MB\n", "-n2", "--mem=100")
	answers(1, "stepctl: error: it would never start: the step does not fit: it needs 5 CPUs on this node, which has 4 CPUs", "-n5")
	answers(1, "it would never start: the step does not fit: it needs 5000 MB of memory", "--mem=5000")
	began := time.Now()
	limited := n.sleeps(t, "-n3", "--time=10")
	if limited.ID != 1 {
		t.Errorf("the questions have spent numbers: the first job is %d", limited.ID)
	}
	answers(0, "stepctl: it would start now, with CPUs 3")
	answers(0, fmt.Sprintf("stepctl: job 1 of %s has CPUs 0-2, until ", testUser(t).name), "-n2")
	r := n.ctl(t, "run", "--test-only", "-n2", "true")
	_, at, _ := strings.Cut(r.err, "it would start at ")
	when, err := time.ParseInLocation("2006-01-02T15:04:05", at[:min(len(at), 19)], time.Local)
	if early, late := began.Add(10*time.Minute), time.Now().Add(10*time.Minute+10*time.Second); err != nil || when.Before(early) || when.After(late) {
		t.Errorf("when: %v, %v: %v; want %v to %v", when, err, r, early, late)
	}
	n.sleeps(t, "-n1")
	answers(0, "it would start at ", "-n2")
	answers(0, "it would start when these jobs have ended, at a time that is not known: ", "-n4")
	answers(0, fmt.Sprintf("job 2 of %s has CPUs 3, without a known end", testUser(t).name), "-n4")
	answers(0, "it would start now, with CPUs 0", "-n1", "--overcommit")
	// A step of the job of three CPUs: of its steps, 1.0 ends by its limit, and the script has none of the CPUs.
	holds := n.start(t, call{args: []string{"run", "--jobid=1", "-n2", "--time=5", "-J", "holds", "sleep", "86400"}})
	n.runs(t, "holds")
	began = time.Now()
	answers(0, "it would start now, with CPUs 2", "--jobid=1")
	answers(1, "it would never start: the step does not fit: it needs 4 CPUs in job 1, which has 3 CPUs", "--jobid=1", "-n4")
	answers(0, fmt.Sprintf("stepctl: step 1.0 of %s has CPUs 0-1, until ", testUser(t).name), "--jobid=1", "-n2")
	r = n.ctl(t, "run", "--test-only", "--jobid=1", "-n2", "true")
	_, at, _ = strings.Cut(r.err, "it would start at ")
	when, err = time.ParseInLocation("2006-01-02T15:04:05", at[:min(len(at), 19)], time.Local)
	if early, late := began.Add(4*time.Minute), began.Add(5*time.Minute+10*time.Second); err != nil || when.Before(early) || when.After(late) {
		t.Errorf("when a step: %v, %v: %v; want %v to %v", when, err, r, early, late)
	}
	// Behind a step that waits, and behind a job that does: whose they are, and what they wait for.
	next := n.start(t, call{args: []string{"run", "--jobid=1", "-n3", "-J", "next", "true"}})
	big := n.start(t, call{args: []string{"run", "--immediate=600", "-n4", "-J", "big", "true"}})
	eventually(t, callTimeout, "the two to wait", func() error {
		if doc := n.ctlRoot(t, "node", "status", "--json"); !strings.Contains(doc.out, `"next"`) || !strings.Contains(doc.out, `"big"`) {
			return fmt.Errorf("%v", doc)
		}
		return nil
	})
	answers(0, fmt.Sprintf("stepctl: next of %s waits before it since ", testUser(t).name), "--jobid=1")
	answers(0, ", for 3 CPUs of job 1: free at ", "--jobid=1")
	answers(0, fmt.Sprintf("stepctl: it would start later: 1 request waits before it\nstepctl: big of %s waits before it since ", testUser(t).name), "-n1", "--overcommit")
	answers(0, "stepctl: it would start later: the step does not fit: it needs 2 CPUs", "-n2")
	n.ctl(t, "cancel", "1.0")
	holds.wait(t)
	if r := next.wait(t); r.code != 0 {
		t.Errorf("the step that has waited: %v", r)
	}
	must(t, n.ctlErrorRoot(t, "node", "drain", "disk"))
	answers(1, "node is drained: disk")
	if r := big.wait(t); r.code != 1 || !strings.Contains(r.err, "node is drained: disk") {
		t.Errorf("the job that has waited: %v", r)
	}
	must(t, n.ctlErrorRoot(t, "node", "resume"))
	if jobs := n.given(t); len(jobs) != 2 {
		t.Errorf("the questions have made jobs: %v", jobs)
	}
	n.cancelAll(t)
	n.checkClean(t)
}

// TestRootSelectGresCores: a job gets the cores near its devices, and devices whose cores are free.
func TestRootSelectGresCores(t *testing.T) {
	waits(t)
	n := startNode(t, site{
		Node: "CPUs=" + selectNode + " Gres=gpu:2", Slurm: "GresTypes=gpu\nSelectTypeParameters=CR_Core\n",
		Gres: "Name=gpu File=/dev/zero Cores=4-7\nName=gpu File=/dev/full Cores=0-3\n",
	})
	for _, c := range []struct {
		what       string
		options    []string
		cpus, gres string
	}{
		{"no device", []string{"-n1"}, "0-1", ""},
		{"the device with the lowest free cores", []string{"--gres=gpu:1"}, "2-3", "gpu:1(IDX:1)"},
		{"the cores of the other device", []string{"--gres=gpu:1"}, "8-9", "gpu:1(IDX:0)"},
	} {
		if j := n.sleeps(t, c.options...); j.CPUs != c.cpus || j.Gres != c.gres {
			t.Errorf("%s: %+v, want CPUs %s, %s", c.what, j, c.cpus, c.gres)
		}
	}
	n.cancelAll(t)
	n.sleeps(t, "-n8") // all cores of the second device
	if j := n.sleeps(t, "--gres=gpu:1"); j.CPUs != "8-9" || j.Gres != "gpu:1(IDX:0)" {
		t.Errorf("a device whose cores are free: %+v", j)
	}
	if j := n.sleeps(t, "--gres=gpu:1"); j.CPUs != "10-11" || j.Gres != "gpu:1(IDX:1)" {
		t.Errorf("a device whose cores have been given: %+v", j)
	}
	n.cancelAll(t)
	n.checkClean(t)
}

// TestRootSelectAffinity: the tasks of noded's steps have the CPUs that Slurm's have, but for the
// differences that the table names with their reason; each of these is one.
func TestRootSelectAffinity(t *testing.T) {
	if runtime.NumCPU() != 2 {
		missing(t, "the table is of a machine of two CPUs")
	}
	const real = " Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000"
	text := readFile(t, "../node/selection/testdata/affinity.tsv")
	n := startNode(t, site{Real: true, Node: "CPUs=2" + real})
	rows, differ, site := 0, 0, ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := append(strings.Split(strings.TrimSuffix(line, "\n"), "\t"), "", "")
		want := f[3]
		if f[4] != "" {
			want = f[4]
			differ++
		}
		if (f[4] == "") != (f[5] == "") || f[4] == f[3] {
			t.Errorf("%s: a difference has another answer and a reason", f[2])
		}
		if rows++; f[0] != site {
			site = f[0]
			conf := "SelectTypeParameters=" + site
			if site == "linear" {
				conf = "SelectType=select/linear\nSelectTypeParameters=CR_Memory"
			}
			n.conf(t, "2"+real, conf+"\nTaskPlugin=task/affinity\nDefMemPerCPU=10\n")
			n.hup(t, "noded: ready")
		}
		for before := range strings.SplitSeq(f[1], " + ") {
			if before != "-" {
				n.sleeps(t, strings.Fields(before)...)
			}
		}
		got, r := n.bound(t, strings.Fields(f[2])...)
		for i, task := range got { // "RANK CPUs POLICY"
			if words := strings.Fields(task); r.code == 0 && len(words) == 3 {
				got[i] = words[0] + ":" + words[1]
			}
		}
		said := strings.Join(got, " ")
		switch {
		case r.code == 1 && strings.Contains(r.err, "the step does not fit"):
			said = "busy"
		case r.code == 1 && strings.Contains(r.err, "cannot bind task 0"):
			said = "refused"
		}
		if said != want {
			t.Errorf("%s: %s after %q: %q, want %q: %v", f[0], f[2], f[1], said, want, r)
		}
		if f[1] != "-" {
			n.cancelAll(t)
		}
	}
	if rows < 30 || differ > rows/4 {
		t.Errorf("%d requests, %d differ by intent", rows, differ)
	}
	n.checkClean(t)
}

// TestRootSelectLinear: with select/linear a job has the node for itself, unless CPUs are shared;
// a reload changes what later jobs get, and running ones keep what they have.
func TestRootSelectLinear(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "SelectType=select/linear\n"})
	p, step := startStubborn(t, n)
	whole := "the step does not fit: it needs the whole node (SelectType=select/linear), and of its 64 CPUs 0 are free"
	refused(t, "a second job", n.ctl(t, "run", "true"), whole)
	if r := n.ctl(t, "run", "--overcommit", "true"); r.code != 0 {
		t.Errorf("a job that shares CPUs: %v", r)
	}
	if r := n.ctl(t, "run", "--jobid", strconv.Itoa(int(step.JobID)), "sh", "-c", "echo $SLURM_CPUS_ON_NODE"); r.code != 0 || r.out != "1\n" {
		t.Errorf("a step of the job: %v", r)
	}
	n.conf(t, "64", "SelectTypeParameters=CR_CPU\n")
	n.hup(t, "noded: ready")
	refused(t, "beside a job that has all", n.ctl(t, "run", "true"), "of its 64 CPUs 0 are free")
	if r := n.ctl(t, "cancel", step.id()); r.code != 0 {
		t.Errorf("cancel %s: %v", step.id(), r)
	}
	p.wait(t)
	n.ended(t, step.id()) // its client may know of its end before noded, which has its CPUs until then
	p, step = startStubborn(t, n)
	if r := n.ctl(t, "run", "true"); r.code != 0 {
		t.Errorf("a second job with CR_CPU: %v", r)
	}
	n.conf(t, "64", "SelectType=select/linear\n")
	n.hup(t, "noded: ready")
	refused(t, "beside a job of two CPUs", n.ctl(t, "run", "true"), "and of its 64 CPUs 62 are free")
	if r := n.ctl(t, "cancel", step.id()); r.code != 0 {
		t.Errorf("cancel %s: %v", step.id(), r)
	}
	p.wait(t)
	n.checkClean(t)
}
