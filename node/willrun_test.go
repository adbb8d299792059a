package node

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/node/selection"
	"stepd/node/state"
	"stepd/step"
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
	s, err := admit(r, 1000, inJob(2))
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := ask(inJob(2)); err != nil || reply.When != api.WhenLater || !strings.Contains(reply.Why, "of 3 CPUs 1 are free") {
		t.Errorf("beside another step: %+v, %v", reply, err)
	}
	r.abandon(s)
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
	if reply, err := ask(func(*step.Request) {}); err != nil || reply.When != api.WhenLater || reply.Why != "1 request waits before it" {
		t.Errorf("behind another: %+v, %v", reply, err)
	}
	w.leave()
	r.gate.Set(state.Drain{Drained: true, Reason: "disk"})
	if _, err := ask(func(*step.Request) {}); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("a drained node: %v", err)
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
