package node

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/node/selection"
	"stepd/node/state"
	"stepd/step"
	"stepd/step/launch"
)

// TestWillRun: when a job of its own, and a step of a job, would start; and that the question takes
// nothing.
func TestWillRun(t *testing.T) {
	r := testRegistry([]int{0, 1, 2, 3}, selection.Memory{MB: 1000, Consumable: true}, nil)
	a, err := admit(r, 1000, func(req *step.Request) { req.NTasks = 3 })
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(time.Hour)
	r.newJob(a, state.Job{ID: 7, UID: 1000, User: "u", Origin: step.OriginAlloc, Deadline: &end})
	r.open(a.job)
	ask := func(change func(*step.Request)) (*api.WillRunReply, error) {
		req := request("x")
		change(&req)
		before := r.usage()
		reply, err := r.seek(&req, step.User{UID: 1000, Name: "u"}, false).willRun()
		if after := r.usage(); after.FreeCPUList != before.FreeCPUList || after.UsedMB != before.UsedMB || len(after.jobs) != len(before.jobs) || len(r.line) > 1 {
			t.Errorf("the question has changed %+v to %+v", before, after)
		}
		return reply, err
	}
	inJob := func(n int) func(*step.Request) {
		return func(req *step.Request) { req.Job, req.NTasks = new(uint32(7)), n }
	}
	lots := uint64(2000)
	cases := []struct {
		name   string
		change func(*step.Request)
		when   api.When
		words  string // of why, or of what it would get
	}{
		{"now", func(*step.Request) {}, api.WhenNow, "3"},
		{"later", func(req *step.Request) { req.NTasks = 4 }, api.WhenLater, "of its 4 CPUs 1 are free"},
		{"never: CPUs", func(req *step.Request) { req.NTasks = 5 }, api.WhenNever, "which has 4 CPUs"},
		{"never: memory", func(req *step.Request) { req.Mem = &lots }, api.WhenNever, "2000 MB"},
		{"a step now", inJob(3), api.WhenNow, "0-2"},
		{"a step never", inJob(4), api.WhenNever, "in job 7, which has 3 CPUs"},
	}
	for _, c := range cases {
		reply, err := ask(c.change)
		if err != nil || reply.When != c.when || !strings.Contains(reply.Why+reply.CPUs, c.words) {
			t.Errorf("%s: %+v, %v", c.name, reply, err)
			continue
		}
		want := end.Add(timeGrace)
		if later := c.name == "later"; later != (len(reply.Holders) == 1) || later && (!reply.At.Equal(want) || reply.Holders[0].JobID != 7 || reply.Holders[0].User != "u" || reply.Holders[0].CPUs != "0-2") {
			t.Errorf("%s: %+v at %v, want %v", c.name, reply.Holders, reply.At, want)
		}
	}
	if _, err := ask(func(req *step.Request) { req.Job = new(uint32(8)) }); api.CodeOf(err) != api.NotFound {
		t.Errorf("a step of no job: %v", err)
	}
	// Behind a request that waits.
	four := request("x")
	four.NTasks = 4
	w := patient(r, &four)
	if _, _, err := w.try(); err == nil || !w.waits() {
		t.Fatalf("it does not wait: %v", err)
	}
	if reply, err := ask(func(*step.Request) {}); err != nil || reply.When != api.WhenLater || reply.Why != "1 request waits before it" || reply.At != nil ||
		len(reply.Holders) > 0 || len(reply.Ahead) != 1 || reply.Ahead[0].UID != 1000 || !strings.Contains(reply.Ahead[0].For, "of its 4 CPUs 1 are free") {
		t.Errorf("behind another: %+v, %v", reply, err)
	}
	// Job 7 ends in an hour, and then the other request comes first.
	if reply, err := ask(func(req *step.Request) { req.NTasks = 2 }); err != nil || reply.When != api.WhenLater || reply.At != nil || len(reply.Holders) != 1 || len(reply.Ahead) != 1 {
		t.Errorf("behind another, and without room: %+v, %v", reply, err)
	}
	w.leave()
	r.gate.Set(state.Drain{Drained: true, Reason: "disk"})
	if _, err := ask(func(*step.Request) {}); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("a drained node: %v", err)
	}
}

// TestWillRunInJob: when a step of a job would start, and which of the job's steps hold what it needs.
func TestWillRunInJob(t *testing.T) {
	r := testRegistry([]int{0, 1, 2, 3}, selection.Memory{}, []selection.Gres{{Name: "gpu", Count: 2, Files: [][]string{{"/dev/g0"}, {"/dev/g1"}}}})
	a, err := admit(r, 1000, func(req *step.Request) { req.NTasks, req.Gres = 4, wantGres(t, "gpu:2") })
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	end := now.Add(time.Hour)
	r.newJob(a, state.Job{ID: 7, UID: 1000, User: "u", Origin: step.OriginAlloc, Deadline: &end, Gres: a.Gres})
	r.open(a.job)
	in := func(n int, gres string, change func(*step.Request)) func(*step.Request) {
		return func(req *step.Request) {
			if req.Job, req.NTasks = new(uint32(7)), n; gres != "" {
				req.Gres = wantGres(t, gres)
			}
			if change != nil {
				change(req)
			}
		}
	}
	// Three steps: 7.0 and 7.1 end in 20 and 10 minutes, 7.2 with the job.
	for i, has := range []struct {
		n       int
		gres    string
		minutes int
	}{{2, "gpu:1", 20}, {1, "", 10}, {1, "gpu:1", 0}} {
		s, err := admit(r, 1000, in(has.n, has.gres, nil))
		if err != nil {
			t.Fatal(err)
		}
		r.add(&follower{id: step.ID{Job: 7, Step: uint32(i)}, job: a.job, share: s.Share, rec: step.Record{Submitted: now, TimeLimitS: has.minutes * 60}})
	}
	overlap := func(req *step.Request) { req.Overlap = true }
	in10, in20, last := now.Add(10*time.Minute), now.Add(20*time.Minute), end.Add(timeGrace)
	ask := func(change func(*step.Request)) *api.WillRunReply {
		t.Helper()
		req := request("x")
		change(&req)
		free := a.job.has.FreeAlone()
		reply, err := r.seek(&req, step.User{UID: 1000, Name: "u"}, false).willRun()
		if err != nil {
			t.Fatal(err)
		}
		if after := a.job.has.FreeAlone(); after != free {
			t.Errorf("the question has taken CPUs: %d were free, and %d are", free, after)
		}
		return reply
	}
	for _, c := range []struct {
		name    string
		change  func(*step.Request)
		when    api.When
		at      *time.Time
		holders []string
	}{
		{"beside the others", in(1, "", overlap), api.WhenNow, nil, nil},
		{"one CPU", in(1, "", nil), api.WhenLater, &in10, []string{"7.1 2"}},
		{"two CPUs", in(2, "", nil), api.WhenLater, &in20, []string{"7.0 0-1 gpu:1(IDX:0)"}},
		{"a CPU and a device", in(1, "gpu:1", nil), api.WhenLater, &in20, []string{"7.0 0-1 gpu:1(IDX:0)"}},
		{"all CPUs", in(4, "", nil), api.WhenLater, &last, []string{"7.1 2", "7.0 0-1 gpu:1(IDX:0)", "7.2 3 gpu:1(IDX:1)"}},
		{"a device alone", in(1, "gpu:1", overlap), api.WhenLater, &in20, []string{"7.0 0-1 gpu:1(IDX:0)"}},
		{"both devices", in(1, "gpu:2", overlap), api.WhenLater, &last, []string{"7.0 0-1 gpu:1(IDX:0)", "7.2 3 gpu:1(IDX:1)"}},
		{"three devices", in(1, "gpu:3", nil), api.WhenNever, nil, nil},
	} {
		reply := ask(c.change)
		var holders []string
		for _, h := range reply.Holders {
			holders = append(holders, strings.TrimSpace(h.ID+" "+h.CPUs+" "+h.Gres))
			if h.JobID != 7 || h.User != "u" {
				t.Errorf("%s: %+v", c.name, h)
			}
		}
		same := (reply.At == nil) == (c.at == nil) && (c.at == nil || reply.At.Equal(*c.at))
		if reply.When != c.when || !same || !slices.Equal(holders, c.holders) || len(reply.Ahead) > 0 {
			t.Errorf("%s: %s at %v, holders %q: %s", c.name, reply.When, reply.At, holders, reply.Why)
		}
	}
	// Behind a step that waits: after it, at a time that is not known.
	four := request("x")
	in(4, "", nil)(&four)
	w := patient(r, &four)
	if _, _, err := w.try(); err == nil || !w.waits() {
		t.Fatalf("it does not wait: %v", err)
	}
	reply := ask(in(1, "", nil))
	if reply.When != api.WhenLater || reply.At != nil || len(reply.Holders) != 1 || len(reply.Ahead) != 1 || *reply.Ahead[0].JobID != 7 || reply.Ahead[0].For != "4 CPUs of job 7: "+byTime(last, time.Now()) {
		t.Errorf("behind another step: %+v", reply)
	}
	if reply := ask(in(1, "", overlap)); reply.When != api.WhenNow {
		t.Errorf("a step that overlaps waits for no CPUs: %+v", reply)
	}
	if reply := ask(in(1, "gpu:3", nil)); reply.When != api.WhenNever || !strings.Contains(reply.Why, "there are 2 gpu in all") {
		t.Errorf("what the job has never, behind another step: %+v", reply)
	}
	w.leave()
}

// TestWillRunHolders: a job that is being started has no number, and a suspended one has no CPUs that
// it holds; the text says the same.
func TestWillRunHolders(t *testing.T) {
	r := testRegistry([]int{0, 1, 2, 3}, selection.Memory{MB: 1000, Consumable: true}, nil)
	mem := func(n int, mb uint64) func(*step.Request) {
		return func(req *step.Request) { req.NTasks, req.Mem = n, &mb }
	}
	a, err := admit(r, 1000, mem(2, 400))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(text string, want api.Holder) {
		t.Helper()
		req := request("x")
		mem(1, 700)(&req)
		s := r.seek(&req, step.User{UID: 1000}, false)
		reply, err := s.willRun()
		if err != nil || len(reply.Holders) != 1 || *reply.Holders[0].MemoryMB != 400 {
			t.Fatalf("%+v, %v", reply, err)
		}
		h := reply.Holders[0]
		if h.MemoryMB = nil; h != want {
			t.Errorf("held by %+v, want %+v", h, want)
		}
		if _, _, err := s.try(); err == nil || !strings.HasSuffix(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	ask("when is not known: a job is being started", api.Holder{ID: "0", CPUs: "0-1"})
	r.newJob(a, state.Job{ID: 7, UID: 1000, User: "u"})
	ask("when is not known: job 7 has no time limit", api.Holder{JobID: 7, ID: "7", User: "u", CPUs: "0-1"})
	r.setSuspended(a.job, &state.Suspension{CPUsFree: true})
	ask("when is not known: job 7 is suspended", api.Holder{JobID: 7, ID: "7", User: "u"})
}

// refusingLimits confine no step, and drain the node for it.
type refusingLimits struct{}

func (refusingLimits) Plan(*step.Spec) (*launch.LimitPlan, error) {
	return nil, &launch.FaultError{Err: errors.New("no such controller")}
}
func (refusingLimits) Apply([]step.CgroupWrite) error { return nil }
func (refusingLimits) Devices() bool                  { return false }

// TestWillRunAsRun: what run refuses would not start now, and the question drains no node.
func TestWillRunAsRun(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		words  string // "" is now
	}{
		{"as it is", nil, ""},
		{"limits", func(c *Config) { c.Limits = refusingLimits{} }, "no such controller"},
		{"programs", func(c *Config) { c.Programs = []string{"/no/such/program"} }, "cannot start steps: cannot execute"},
	} {
		tn := start(t, t.TempDir(), c.change)
		req := request("x")
		reply, err := tn.API().WillRun(t.Context(), api.Peer{UID: 1000}, &api.RunRequest{Request: &req})
		if c.words == "" && (err != nil || reply.When != api.WhenNow) || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %+v, %v", c.name, reply, err)
		}
		if d := tn.doc(); d.State != "IDLE" {
			t.Errorf("%s: the question has made the node %s: %s", c.name, d.State, d.Reason)
		}
		tn.stop()
	}
}

// TestWillRunInteractive: an allocation's shell would start beside all else of the job, once.
func TestWillRunInteractive(t *testing.T) {
	tn := fresh(t)
	c := newClient(t, 1000)
	job, err := tn.alloc(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	tn.until(tn.stepOf(job, 1000, "wait"), step.Running)
	other := tn.run(1000, request("wait"))
	ask := func(job uint32) (*api.WillRunReply, error) {
		req := request("wait")
		req.Job, req.Interactive = &job, true
		return tn.API().WillRun(t.Context(), api.Peer{UID: 1000}, &api.RunRequest{Request: &req})
	}
	if reply, err := ask(job); err != nil || reply.When != api.WhenNow {
		t.Errorf("the shell: %+v, %v", reply, err)
	}
	if reply, err := ask(other.Job); err == nil || !strings.Contains(err.Error(), "was not made by alloc") {
		t.Errorf("in a job of run: %+v, %v", reply, err)
	}
	shell := request("wait")
	shell.Job, shell.Interactive = &job, true
	tn.run(1000, shell)
	if reply, err := ask(job); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("a second shell: %+v, %v", reply, err)
	}
}

// TestSavedOf: what a job's record has of its resources, also the record of an older noded, whose
// suspended jobs have kept their CPUs.
func TestSavedOf(t *testing.T) {
	for doc, want := range map[string]selection.Saved{
		`{"id":1,"cpus":"0-1","memory_mb":5,"suspended":{"since":"2026-01-02T03:04:05Z","by":7}}`:  {Share: selection.Share{CPUs: []int{0, 1}, MB: 5}},
		`{"id":1,"cpus":"2","suspended":{"since":"2026-01-02T03:04:05Z","by":7,"cpus_free":true}}`: {Share: selection.Share{CPUs: []int{2}}, Suspended: true},
		`{"id":1,"cpus":"2","cpus_shared":true}`:                                                   {Share: selection.Share{CPUs: []int{2}, Shared: true}},
	} {
		var rec state.Job
		if err := json.Unmarshal([]byte(doc), &rec); err != nil {
			t.Fatal(err)
		}
		got, err := savedOf(&rec)
		if err != nil || !slices.Equal(got.CPUs, want.CPUs) || got.MB != want.MB || got.Shared != want.Shared || got.Suspended != want.Suspended {
			t.Errorf("%s: %+v, %v; want %+v", doc, got, err, want)
		}
	}
}
