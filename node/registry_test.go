package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/node/selection"
	"stepd/node/state"
	"stepd/srunopt"
	"stepd/step"
)

func admit(r *registry, uid uint32, change func(*step.Request)) (*admission, error) {
	req := request("x")
	if change != nil {
		change(&req)
	}
	return r.admit(context.Background(), &req, step.User{UID: uid}, uid == 0)
}

// openJob makes a running job of uid with its step 0.
func openJob(t *testing.T, r *registry, id, uid uint32) *follower {
	t.Helper()
	a, err := admit(r, uid, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.newJob(a, state.Job{ID: id, UID: uid, Implicit: true})
	f := &follower{id: step.ID{Job: id}, job: a.job}
	r.add(f)
	r.open(f.job)
	return f
}

// testRegistry is a registry of a node with these resources.
func testRegistry(cpus []int, mem selection.Memory, gres []selection.Gres, cores ...selection.Core) *registry {
	return newRegistry(selection.New(selection.Config{CPUs: cpus, Cores: cores, Memory: mem, Gres: gres}))
}

func TestAdmit(t *testing.T) {
	for _, tc := range []struct {
		name   string
		uid    uint32
		before func(*registry)
		change func(*step.Request)
		want   api.Code
	}{
		{"fits", 1000, nil, nil, api.OK},
		{"does not fit", 1000, nil, func(r *step.Request) { r.NTasks = 9 }, api.ResourceExhausted},
		{"tasks times CPUs", 1000, nil, func(r *step.Request) { r.NTasks, r.CPUsPerTask = 3, 3 }, api.ResourceExhausted},
		{"overcommit", 1000, nil, func(r *step.Request) { r.NTasks, r.Overcommit = 9, true }, api.OK},
		{"own job", 1000, nil, func(r *step.Request) { r.Job = ptr(uint32(7)) }, api.OK},
		{"another's job", 1001, nil, func(r *step.Request) { r.Job = ptr(uint32(7)) }, api.PermissionDenied},
		{"root, as itself, in a user's job", 0, nil, func(r *step.Request) { r.Job = ptr(uint32(7)) }, api.InvalidArgument},
		{"no such job", 1000, nil, func(r *step.Request) { r.Job = ptr(uint32(8)) }, api.NotFound},
		{"more than the job has", 1000, nil, func(r *step.Request) { r.Job, r.NTasks = ptr(uint32(7)), 2 }, api.ResourceExhausted},
		{"overcommit in the job", 1000, nil, func(r *step.Request) { r.Job, r.NTasks, r.Overcommit = ptr(uint32(7)), 2, true }, api.OK},
		{"drained", 0, func(r *registry) { r.gate.Set(state.Drain{Drained: true, Reason: "disk"}) }, nil, api.FailedPrecondition},
		{"stopping", 0, func(r *registry) { r.gate.Close() }, nil, api.Unavailable},
		{"too many steps", 1000, func(r *registry) { r.users.steps[1000] = r.users.limits.Steps }, nil, api.ResourceExhausted},
		{"root has no such limit", 0, func(r *registry) { r.users.steps[0] = r.users.limits.Steps }, nil, api.OK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := testRegistry([]int{0, 1, 2, 3}, selection.Memory{}, nil)
			openJob(t, r, 7, 1000)
			if tc.before != nil {
				tc.before(r)
			}
			free := r.usage().FreeCPUs
			a, err := admit(r, tc.uid, tc.change)
			if api.CodeOf(err) != tc.want {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil {
				if ended := r.abandon(a); ended != nil {
					t.Error("abandon has ended a job that runs")
				}
			}
			if got := r.usage().FreeCPUs; got != free {
				t.Errorf("%d CPUs free, want %d", got, free)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// TestAdmitWaits: a step that fits once another has ended is not refused in
// the moment between the two.
func TestAdmitWaits(t *testing.T) {
	t.Parallel()
	r := testRegistry([]int{0}, selection.Memory{}, nil)
	f := openJob(t, r, 1, 1000)
	admitted := make(chan error, 1)
	go func() {
		_, err := admit(r, 1001, nil)
		admitted <- err
	}()
	select {
	case err := <-admitted:
		t.Fatalf("answered before the CPU was free: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	r.settle(f)
	select {
	case err := <-admitted:
		t.Fatalf("answered while the epilog has the CPU: %v", err)
	case <-time.After(admitGrace + 100*time.Millisecond):
	}
	r.free(f.job)
	if err := <-admitted; err != nil {
		t.Error(err)
	}
	// What can never fit is refused at once.
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the waiting request notices that
	req := request("x")
	req.NTasks = 2
	if _, err := r.admit(ctx, &req, step.User{UID: 1001}, false); api.CodeOf(err) != api.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

// TestJobEnds: CPUs are free when all results are known, the job is gone when
// all steps are cleaned up, and its first step's end closes it.
func TestJobEnds(t *testing.T) {
	r := testRegistry([]int{0, 1}, selection.Memory{}, nil)
	first := openJob(t, r, 1, 1000)
	a, err := admit(r, 1000, func(r *step.Request) { r.Job = ptr(uint32(1)) })
	if err != nil {
		t.Fatal(err)
	}
	second := &follower{id: step.ID{Job: 1, Step: 1}, job: a.job}
	r.add(second)
	r.open(second.job)
	if cancel, idle := r.settle(first); len(cancel) != 1 || cancel[0] != second || idle {
		t.Errorf("the first step's end cancels %v, idle %v", cancel, idle)
	}
	if _, err := admit(r, 1000, func(r *step.Request) { r.Job = ptr(uint32(1)) }); api.CodeOf(err) != api.NotFound {
		t.Errorf("a step of an ending job: %v", err)
	}
	if r.remove(first) != nil || r.usage().FreeCPUs != 1 {
		t.Error("the job ended before its second step")
	}
	if cancel, idle := r.settle(second); len(cancel) != 0 || !idle || r.usage().FreeCPUs != 1 {
		t.Errorf("after both results: %v cancelled, idle %v, %d free", cancel, idle, r.usage().FreeCPUs)
	}
	r.free(first.job)
	if r.usage().FreeCPUs != 2 {
		t.Errorf("%d free", r.usage().FreeCPUs)
	}
	j := r.remove(second)
	if j == nil || j.ID != 1 {
		t.Fatal("the job did not end with its last step")
	}
	r.gone(j)
	if len(r.users.steps) != 0 || len(r.jobs) != 0 || len(r.steps) != 0 {
		t.Errorf("left: %v %v %v", r.users.steps, r.jobs, r.steps)
	}
}

// What jobs and steps have of memory and generic resources comes back when they
// end, and a job of an earlier noded's has its own again.
func TestAdmitResources(t *testing.T) {
	t.Parallel()
	mem := selection.Memory{MB: 1000, Consumable: true}
	twoGPUs := []selection.Gres{{Name: "gpu", Type: "a", Count: 2, Files: [][]string{{"/dev/nvidia0"}, {"/dev/nvidia1"}}}, {Name: "gpu", Type: "b", Count: 1, First: 2, Files: [][]string{{"/dev/nvidia4"}}}}
	r := testRegistry([]int{0, 1, 2, 3}, mem, twoGPUs)
	ask := func(mb uint64, gres string) func(*step.Request) {
		return func(req *step.Request) {
			req.Gres = wantGres(t, gres)
			if mb > 0 {
				req.Mem = &mb
			}
		}
	}
	a, err := admit(r, 1000, ask(600, "gpu:a:2"))
	if err != nil {
		t.Fatal(err)
	}
	r.newJob(a, state.Job{ID: 3, UID: 1000, CPUs: "0", MemoryMB: a.MB, Gres: a.Gres, Origin: step.OriginAlloc})
	r.open(a.job)
	_, err = admit(r, 1001, ask(500, ""))
	says(t, err, "needs 500 MB of memory on this node: of its 1000 MB 400 MB are free")
	_, err = admit(r, 1001, ask(0, "gpu:2"))
	says(t, err, "it needs gpu:2, and of 3 gpu 1 are free: job 3 has gpu:a:2(IDX:0-1)")
	if r.has.Info().FreeCPUs != 3 || r.has.Info().UsedMB != 600 {
		t.Errorf("a refusal has taken something: %d CPUs free, %d MB used", r.has.Info().FreeCPUs, r.has.Info().UsedMB)
	}

	// Its steps: all of it by default, a part that is their own, or none.
	inJob := func(gres string) (*admission, error) {
		return admit(r, 1000, func(req *step.Request) {
			req.Job, req.Gres, req.Overlap = ptr(uint32(3)), wantGres(t, gres), true
		})
	}
	whole, err := inJob("")
	if err != nil || srunopt.FormatAllocs(whole.Gres) != "gpu:a:2(IDX:0-1)" || whole.MB != 600 {
		t.Errorf("a step that asks for nothing: %+v, %v", whole, err)
	}
	one, err := inJob("gpu:1")
	if err != nil || srunopt.FormatAllocs(one.Gres) != "gpu:a:1(IDX:0)" {
		t.Errorf("a step of one: %+v, %v", one, err)
	}
	f := &follower{id: step.ID{Job: 3, Step: 5}, job: a.job, share: one.Share}
	r.add(f)
	if none, err := inJob("none"); err != nil || len(none.Gres) != 0 {
		t.Errorf("a step of none: %+v, %v", none, err)
	}
	_, err = inJob("gpu:2")
	says(t, err, "in job 3: it needs gpu:2, and of 2 gpu 1 are free: step 3.5 has gpu:a:1(IDX:0)")
	_, err = inJob("gpu:b:1")
	says(t, err, "there is gpu:a:2 only")
	r.settle(f)
	if two, err := inJob("gpu:2"); err != nil || len(two.Gres) != 1 {
		t.Errorf("after its end: %+v, %v", two, err)
	}

	r.moveLocked(a.job, jobIdle) // as when the last step has ended
	r.free(a.job)
	if r.has.Info().UsedMB != 0 {
		t.Errorf("%d MB used after the job's end", r.has.Info().UsedMB)
	}
	again := testRegistry([]int{0, 1, 2, 3}, mem, twoGPUs)
	saved, err := savedOf(&a.job.Job)
	if err != nil {
		t.Fatal(err)
	}
	again.adopt(a.job.Job, saved, 1)
	_, err = admit(again, 1001, ask(0, "gpu:a:1"))
	says(t, err, "job 3 has gpu:a:2(IDX:0-1)")
	_, err = admit(again, 1001, ask(401, ""))
	says(t, err, "400 MB are free")
}

// Steps of one job get the CPUs that its others use least.
func TestStepsSpreadInTheirJob(t *testing.T) {
	r := testRegistry([]int{0, 1, 2, 3}, selection.Memory{}, nil)
	a, err := admit(r, 1000, func(req *step.Request) { req.NTasks = 3 })
	if err != nil {
		t.Fatal(err)
	}
	r.newJob(a, state.Job{ID: 1, UID: 1000, Origin: step.OriginAlloc})
	r.open(a.job)
	var got []int
	var last *admission
	for range 3 {
		if last, err = admit(r, 1000, func(req *step.Request) { req.Job = ptr(uint32(1)) }); err != nil {
			t.Fatal(err)
		}
		got = append(got, last.CPUs...)
	}
	if !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("three steps of one CPU have %v", got)
	}
	r.abandon(last)
	if last, err = admit(r, 1000, func(req *step.Request) { req.Job = ptr(uint32(1)) }); err != nil || !slices.Equal(last.CPUs, []int{2}) {
		t.Errorf("after the end of one: %+v, %v", last, err)
	}
}

func says(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %q", err, text)
	}
}

// TestStepsAlone: steps of an allocation have their CPUs alone, wait in order, and overlap
// where they are asked to.
func TestStepsAlone(t *testing.T) {
	t.Parallel()
	r := testRegistry([]int{0, 1, 2, 3}, selection.Memory{}, nil)
	job := ptr(uint32(1))
	a, err := admit(r, 1000, func(r *step.Request) { r.NTasks = 4 })
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(time.Hour)
	r.newJob(a, state.Job{ID: 1, UID: 1000, Origin: step.OriginAlloc, Deadline: &end})
	r.open(a.job)
	of := func(n int, change func(*step.Request)) func(*step.Request) {
		return func(r *step.Request) {
			if r.Job, r.NTasks = job, n; change != nil {
				change(r)
			}
		}
	}
	first, err := admit(r, 1000, of(3, nil))
	if err != nil || !first.Alone || !slices.Equal(first.CPUs, []int{0, 1, 2}) {
		t.Fatalf("%+v, %v", first, err)
	}
	f := &follower{id: step.ID{Job: 1}, job: a.job, share: first.Share, rec: step.Record{Submitted: time.Now(), TimeLimitS: 600}}
	r.add(f)
	_, err = admit(r, 1000, of(2, nil))
	what := ""
	if e, ok := api.AsError(err); ok {
		what = e.Waits
	}
	if want := "2 CPUs of job 1: " + byTime(f.rec.Submitted.Add(10*time.Minute), time.Now()); what != want {
		t.Errorf("waits for %q, want %q (%v)", what, want, err)
	}
	for _, share := range []func(*step.Request){func(r *step.Request) { r.Overlap = true }, func(r *step.Request) { r.Overcommit = true }} {
		b, err := admit(r, 1000, of(4, share))
		if err != nil || b.Alone || len(b.CPUs) != 4 {
			t.Fatalf("%+v, %v", b, err)
		}
		r.abandon(b)
	}
	// In order: the small one, which would fit, comes behind the big one.
	type came struct {
		n int
		a *admission
	}
	order := make(chan came, 2)
	wait := func(n int) {
		req := request("x")
		of(n, nil)(&req)
		go func() {
			got, err := r.seek(&req, step.User{UID: 1000}, false).wait(t.Context(), nil)
			if err != nil {
				t.Errorf("%d: %v", n, err)
			}
			order <- came{n, got}
		}()
	}
	queued := func(n int) {
		for waiting := 0; waiting < n; {
			time.Sleep(time.Millisecond)
			r.mu.Lock()
			waiting = len(a.job.line)
			r.mu.Unlock()
		}
	}
	wait(4)
	queued(1)
	wait(1)
	queued(2)
	r.settle(f)
	big := <-order
	if big.n != 4 || len(order) != 0 {
		t.Fatalf("the step of %d CPUs came first", big.n)
	}
	r.abandon(big.a)
	if small := <-order; small.n != 1 || !small.a.Alone {
		t.Errorf("%+v", small)
	}
	// A request that gives up leaves the line, and the others get the job's end.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req := request("x")
	of(4, nil)(&req)
	if _, err := r.seek(&req, step.User{UID: 1000}, false).wait(ctx, nil); api.CodeOf(err) != api.Canceled || len(a.job.line) != 0 {
		t.Errorf("%v, %d wait", err, len(a.job.line))
	}
	ended := make(chan error, 1)
	go func() {
		_, err := r.seek(&req, step.User{UID: 1000}, false).wait(t.Context(), nil)
		ended <- err
	}()
	queued(1)
	r.shut(a.job)
	if err := <-ended; api.CodeOf(err) != api.NotFound {
		t.Errorf("of a job that has ended: %v", err)
	}
}

// TestFreeOn: a refusal says when there will be place, as far as all who are in the way
// have a time limit.
func TestFreeOn(t *testing.T) {
	t.Parallel()
	r := testRegistry([]int{0, 1, 2, 3}, selection.Memory{}, nil)
	soon, late := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	for i, end := range []*time.Time{&late, &soon, nil} {
		a, err := admit(r, 1000, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.newJob(a, state.Job{ID: uint32(i + 1), UID: 1000, Deadline: end})
	}
	for n, want := range map[int]string{
		2: "; " + byTime(soon.Add(timeGrace), time.Now()), 3: "; " + byTime(late.Add(timeGrace), time.Now()), 4: "; when is not known: job 3 has no time limit",
	} {
		_, err := admit(r, 1000, func(r *step.Request) { r.NTasks = n })
		if api.CodeOf(err) != api.ResourceExhausted || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%d CPUs: %v, want %q", n, err, want)
		}
	}
	if free := r.usage().FreeCPUs; free != 1 {
		t.Errorf("%d CPUs are free", free)
	}
}

// TestNumberAgain: the next run of a job, which a controller starts as soon as the store has
// forgotten the last one, is another job: the end of the last run does not end it, and a step
// that waits in the last run is none of it.
func TestNumberAgain(t *testing.T) {
	r := testRegistry([]int{0, 1}, selection.Memory{}, nil)
	run := func() *follower {
		t.Helper()
		a, err := admit(r, 1000, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.newJob(a, state.Job{ID: 7, UID: 1000, Implicit: true, Origin: step.OriginBatch})
		f := &follower{id: step.ID{Job: 7, Step: step.BatchStep}, job: a.job}
		r.add(f)
		r.open(f.job)
		return f
	}
	last := run()
	inner := request("x")
	inner.Job = ptr(uint32(7))
	beside, _, err := r.seek(&inner, step.User{UID: 1000}, false).try()
	if err != nil {
		t.Fatal(err)
	}
	w := patient(r, &inner)
	if _, freed, err := w.try(); freed == nil || !w.waits() {
		t.Fatalf("it does not wait: %v", err)
	}
	r.settle(last)
	r.abandon(beside)
	r.free(last.job)
	next := run()
	r.gone(last.job)
	if j := r.job(7); j != next.job {
		t.Errorf("the next run is not known: %v", j)
	}
	if _, _, err := w.try(); api.CodeOf(err) != api.NotFound {
		t.Errorf("a step of the last run: %v", err)
	}
	w.leave()
	if _, _, err := r.seek(&inner, step.User{UID: 1000}, false).try(); err != nil {
		t.Errorf("a step of the next run: %v", err)
	}
}

// TestAdmitCores: a job gets whole cores where it says so, and its steps theirs.
func TestAdmitCores(t *testing.T) {
	t.Parallel()
	r := testRegistry([]int{0, 1, 2, 3, 4, 5, 6, 7}, selection.Memory{}, nil, selection.Core{Socket: 0, CPUs: []int{0, 1}}, selection.Core{Socket: 0, CPUs: []int{2, 3}}, selection.Core{Socket: 1, CPUs: []int{4, 5}}, selection.Core{Socket: 1, CPUs: []int{6, 7}})
	f := openJob(t, r, 1, 1000) // has CPU 0
	a, err := admit(r, 1001, func(req *step.Request) { req.NTasks, req.Binding.ThreadsPerCore = 2, 1 })
	if err != nil || !slices.Equal(a.CPUs, []int{2, 3, 4, 5}) {
		t.Fatalf("a job: %v, %v", a, err)
	}
	if _, err := admit(r, 1002, func(req *step.Request) { req.NTasks, req.Binding.NTasksPerCore = 2, 1 }); err == nil || !strings.Contains(err.Error(), "--ntasks-per-core=1") {
		t.Errorf("one core is free: %v", err)
	}
	r.abandon(a)
	r.has.Fini(f.job.has)
	f.job.has = r.has.JobInit(1, selection.Saved{Share: selection.Share{CPUs: []int{0, 1, 2, 3}}}) // as of a job of four
	for _, c := range []struct {
		change func(*step.Request)
		want   []int
	}{
		{func(req *step.Request) {}, []int{0}},
		{func(req *step.Request) { req.Binding.Whole = true }, []int{0, 1, 2, 3}},
		{func(req *step.Request) { req.NTasks, req.Binding.Hint = 2, srunopt.HintNoMultithread }, []int{0, 1, 2, 3}},
	} {
		a, err := admit(r, 1000, func(req *step.Request) { req.Job = ptr(uint32(1)); c.change(req) })
		if err != nil || !slices.Equal(a.CPUs, c.want) {
			t.Errorf("a step: got %v, %v; want %v", a, err, c.want)
			continue
		}
		r.abandon(a)
	}
}

func wantGres(t *testing.T, text string) []step.GresRequest {
	t.Helper()
	list, err := srunopt.ParseGres(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestJobMoves: an illegal move is named, and changes nothing.
func TestJobMoves(t *testing.T) {
	r := testRegistry([]int{0}, selection.Memory{}, nil)
	log := logrus.New()
	var text strings.Builder
	log.SetOutput(&text)
	r.log = log
	a, err := admit(r, 1000, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.newJob(a, state.Job{ID: 3, UID: 1000, Implicit: true})
	r.free(a.job)
	if a.job.phase != jobNew || r.has.Info().FreeCPUs != 0 || !strings.Contains(text.String(), "job 3 is new and cannot become freed") {
		t.Errorf("the job is %s, %d CPUs are free, and the log has %q", a.job.phase, r.has.Info().FreeCPUs, text.String())
	}
}
