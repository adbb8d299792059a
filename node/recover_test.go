package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/node/scripts"
	"stepd/node/selection"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
)

// TestRestartAdopts: steps go on without noded, and are found again.
func TestRestartAdopts(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	tn := start(t, dir, nil)
	a := tn.run(1000, request("fifo", fifo))
	b := tn.run(1001, request("wait"))
	pid := tn.until(a, step.Running).StepdPID
	tn.until(b, step.Running)
	waited := make(chan error, 1)
	go func() {
		_, err := tn.waits(as(1000), ref(a))
		waited <- err
	}()
	tn.stop()
	if err := <-waited; err != nil && api.CodeOf(err) != api.Unavailable {
		t.Errorf("a Wait over the stop: %v", err)
	}

	tn = start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	rec := tn.until(a, step.Running)
	if rec.StepdPID != pid || !tn.containers.has(a.Job) {
		t.Errorf("adopted pid %d, want %d", rec.StepdPID, pid)
	}
	if f := tn.reg.follower(a); f == nil || !f.known {
		t.Error("what the store has of an adopted step is stored again")
	}
	if u := tn.reg.usage(); u.FreeCPUs != 2 || len(u.jobs) != 2 {
		t.Errorf("usage %+v: CPUs of adopted steps are taken", u)
	}
	inner := request("exit", "0")
	inner.Job = &a.Job
	if id := tn.run(1000, inner); id != (step.ID{Job: a.Job, Step: 1}) {
		t.Errorf("a further step of the job is %s", id)
	} else {
		tn.wait(id)
	}
	if err := os.WriteFile(fifo, []byte("9"), 0); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(a); rec.ExitCode == nil || *rec.ExitCode != 9 {
		t.Errorf("record %+v", rec)
	}
	tn.nothingLeft(a)
	if _, err := tn.svc.Cancel(as(1001), &api.CancelRequest{StepRef: ref(b)}); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(b); rec.State != step.Cancelled {
		t.Errorf("record %+v", rec)
	}
}

// TestRestartBuries: steps that ended while no noded ran.
func TestRestartBuries(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	tn := start(t, dir, nil)
	left := tn.run(1000, request("fifo", fifo))
	dead := tn.run(1000, request("wait"))
	adopted := tn.run(1000, request("wait"))
	leftPID, deadPID := tn.until(left, step.Running).StepdPID, tn.until(dead, step.Running).StepdPID
	adoptedPID := tn.until(adopted, step.Running).StepdPID
	tn.stop()
	if err := os.WriteFile(fifo, []byte("4"), 0); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(deadPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// They are this process's children, and are not reaped: as zombies they
	// must count as gone.
	awaitZombie(t, leftPID)
	awaitZombie(t, deadPID)

	tn = start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	if rec := tn.wait(left); rec.ExitCode == nil || *rec.ExitCode != 4 || rec.State != step.Failed {
		t.Errorf("the result that was left: %+v", rec)
	}
	tn.nothingLeft(left)
	rec := tn.wait(dead)
	if rec.State != step.Failed || rec.Reason != "stepd (pid "+strconv.Itoa(deadPID)+") is gone" || *rec.ExitCode != 1 {
		t.Errorf("the dead: %+v", rec)
	}
	tn.nothingLeft(dead)
	// It is a child of this process, as of a noded that was reloaded.
	if err := syscall.Kill(adoptedPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(adopted); rec.State != step.Failed || !strings.HasSuffix(rec.Reason, ") was killed by SIGKILL") {
		t.Errorf("the adopted: %+v", rec)
	}
	tn.nothingLeft(adopted)
	if u := tn.reg.usage(); u.FreeCPUs != 4 || len(u.jobs) != 0 {
		t.Errorf("usage %+v", u)
	}
}

// awaitZombie waits for the end of all of a process that may not be reaped: its first thread
// is a zombie before the others are over.
func awaitZombie(t *testing.T, pid int) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH { // it was reaped
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := linux.PidfdWait(ctx, pidfd); err != nil {
		t.Fatalf("process %d does not end: %v", pid, err)
	}
}

// TestFindProcess: a pid alone names no process.
func TestFindProcess(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	good := tn.until(id, step.Running)
	uuid, _, _ := strings.Cut(tn.boot, "/")
	contained := uuid + "/12"
	for _, tc := range []struct {
		name string
		edit func(*step.Record)
		ok   bool
	}{
		{"as stored", func(*step.Record) {}, true},
		{"another start", func(r *step.Record) { r.StepdStart++ }, false},
		{"another boot", func(r *step.Record) { r.BootID = "x" }, false},
		{"noted before containers were known", func(r *step.Record) { r.BootID = uuid }, true},
		{"so, of another start", func(r *step.Record) { r.BootID, r.StepdStart = uuid, r.StepdStart+1 }, false},
		{"another container", func(r *step.Record) { r.BootID = uuid + "/1" }, false},
		{"no pid", func(r *step.Record) { r.StepdPID = 0 }, false},
		{"no such pid", func(r *step.Record) { r.StepdPID = 1 << 22 }, false},
	} {
		rec := good
		rec.BootID = contained
		tc.edit(&rec)
		p, err := child.Find(&rec, contained)
		if tc.ok != (err == nil) || err != nil && !errors.Is(err, child.ErrGone) {
			t.Errorf("%s: %v, %v", tc.name, p, err)
		}
		if p != nil {
			p.Close()
		}
	}
	if err := syscall.Kill(good.StepdPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
}

// TestRecoverDecisions: records and leftovers that no process stands behind.
func TestRecoverDecisions(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	add := func(change func(*step.Record)) step.ID {
		t.Helper()
		job, rec := state.Job{UID: 1000, CPUs: "0", Implicit: true}, step.Record{State: step.Running, NTasks: 1, BootID: tn.boot, Tasks: []step.Task{{State: step.TaskPending}}}
		if change != nil {
			change(&rec)
		}
		if _, err := tn.store.NewJobAs(step.ID{}, &job, nil, &rec); err != nil {
			t.Fatal(err)
		}
		return rec.ID
	}
	rebooted := add(func(r *step.Record) { r.BootID, r.StepdPID = "another", os.Getpid() })
	unborn := add(nil)
	badFile := add(func(r *step.Record) { r.StepdPID = 1 << 22 })
	ended := add(func(r *step.Record) { r.State = step.Completed })
	foreign := step.ID{Job: 77}
	for path, text := range map[string]string{
		tn.spool.Result(badFile): `{"job_id":3,"step_id":0,"state":"RUNNING"}`,
		tn.spool.Result(ended):   `{}`,
		tn.spool.Result(foreign): `{}`,
		filepath.Join(tn.spool.StepsDir(), tn.spool.SocketName(ended)):   "",
		filepath.Join(tn.spool.StepsDir(), tn.spool.SocketName(foreign)): "",
		filepath.Join(tn.spool.StepsDir(), "notes.txt"):                  "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tn.stop()
	tn = start(t, dir, func(c *Config) { c.Tracker.(*fakeTracker).places = []step.ID{ended, foreign} })
	t.Cleanup(func() { tn.stop() })
	for id, want := range map[step.ID]struct {
		state  step.State
		reason string
	}{
		rebooted: {step.NodeFail, "the node was rebooted while the step ran"},
		unborn:   {step.Failed, "noded ended while it started the step"},
		badFile:  {step.Failed, "stepd (pid 4194304) is gone"},
		ended:    {step.Completed, ""},
	} {
		if rec := tn.wait(id); rec.State != want.state || rec.Reason != want.reason {
			t.Errorf("step %s: %s %q, want %s %q", id, rec.State, rec.Reason, want.state, want.reason)
		}
	}
	tn.work.Wait() // a job may end after its last step
	for _, id := range []step.ID{rebooted, unborn, badFile} {
		tn.nothingLeft(id)
	}
	if tn.tracker.times(ended) != 1 || tn.tracker.times(foreign) != 0 {
		t.Errorf("leftovers: own ended %d times, foreign %d times", tn.tracker.times(ended), tn.tracker.times(foreign))
	}
	for path, stays := range map[string]bool{
		tn.spool.Result(ended):   false,
		tn.spool.Result(foreign): true,
		filepath.Join(tn.spool.StepsDir(), tn.spool.SocketName(ended)):   false,
		filepath.Join(tn.spool.StepsDir(), tn.spool.SocketName(foreign)): true,
		filepath.Join(tn.spool.StepsDir(), "notes.txt"):                  true,
	} {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: %v, want it there: %v", path, err, stays)
		}
	}
	if jobs, err := tn.store.Jobs(); err != nil || len(jobs) != 0 {
		t.Errorf("jobs %+v, %v", jobs, err)
	}
}

// TestRestartConfirms: jobs that go on and have memory or CPUs that the node does not have drain it, and
// jobs of which nothing runs any more do not.
func TestRestartConfirms(t *testing.T) {
	dir := t.TempDir()
	with := func(mb uint64) *testNode {
		return start(t, dir, func(c *Config) { c.Select.Memory = selection.Memory{MB: mb, Consumable: true} })
	}
	tn := with(2000)
	mb := uint64(800)
	req := request("wait")
	req.Mem = &mb
	live := tn.run(1000, req)
	tn.until(live, step.Running)
	job := state.Job{UID: 1000, User: "user1000", CPUs: "1", MemoryMB: mb}
	if _, err := tn.store.NewJobAs(step.ID{}, &job, nil, nil); err != nil { // its steps have ended
		t.Fatal(err)
	}
	alloc := job
	alloc.Origin, alloc.Holder = step.OriginAlloc, &state.Process{PID: os.Getpid(), BootID: "another"}
	if _, err := tn.store.NewJobAs(step.ID{}, &alloc, nil, nil); err != nil {
		t.Fatal(err)
	}
	rec := step.Record{State: step.Running, NTasks: 1, BootID: "another", StepdPID: os.Getpid(), Tasks: []step.Task{}}
	if _, err := tn.store.NewJobAs(step.ID{}, &job, nil, &rec); err != nil {
		t.Fatal(err)
	}
	tn.stop()
	tn = with(1000)
	if d := tn.doc(); d.Reason != "" {
		t.Errorf("drained for jobs that have ended: %s", d.Reason)
	}
	tn.wait(rec.ID)
	tn.stop()
	tn = with(500)
	if d := tn.doc(); d.Reason != fmt.Sprintf("the node has less than its jobs have: job %d of user1000 has 800 MB (the node has 500 MB, its jobs 800 MB)", live.Job) {
		t.Errorf("the reason of the drain is %q", d.Reason)
	}
	if err := tn.health.SetDrain(state.Drain{}); err != nil {
		t.Fatal(err)
	}
	tn.stop()
	tn = start(t, dir, func(c *Config) { c.Select.CPUs = []int{1, 2} })
	t.Cleanup(func() { tn.stop() })
	if d := tn.doc(); d.Reason != fmt.Sprintf("the node has less than its jobs have: job %d of user1000 has CPUs 0 (the node has CPUs 1-2)", live.Job) {
		t.Errorf("the reason of the drain is %q", d.Reason)
	}
}

// TestLocks: one noded for a spool and for a run directory.
func TestLocks(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	for _, tc := range []struct {
		name string
		edit func(*Config)
	}{
		{"spool", func(c *Config) { c.RunDir += "2" }},
		{"run directory", func(c *Config) { c.SpoolDir += "2" }},
	} {
		cfg := testConfig(t, tn.dir)
		tc.edit(&cfg)
		_, err := New(cfg)
		if !errors.Is(err, spool.ErrLocked) || !strings.Contains(err.Error(), "noded (pid "+strconv.Itoa(os.Getpid())+")") {
			t.Errorf("same %s: %v", tc.name, err)
		}
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "spool"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "spool"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New(testConfig(t, dir)); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Errorf("a spool for all: %v", err)
	}
}

// TestLockOfKilled: a noded that was killed while it started a stepd leaves its lock to that
// for a moment.
func TestLockOfKilled(t *testing.T) {
	dir := t.TempDir()
	lock, err := spool.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat")
	child.ExtraFiles = []*os.File{lock}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	time.AfterFunc(50*time.Millisecond, func() { stdin.Close() })
	next, err := spool.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

// TestServeOnSocket: over the real socket, at a path beyond sun_path; and the
// kernel identifies the client.
func TestServeOnSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	tn := start(t, dir, nil)
	l, err := tn.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(tn.spool.Socket()); err == nil {
		t.Error("the socket is there before it is served")
	}
	server := newServer(tn.Node, nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	if err := tn.Publish(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(tn.spool.Socket()); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("socket %v, %v", st, err)
	}
	client := &api.Client{Socket: tn.spool.Socket()}
	reply, err := client.Run(t.Context(), runRequest(request("exit", "6")))
	if err != nil {
		t.Fatal(err)
	}
	id := step.ID{Job: reply.JobID, Step: reply.StepID}
	if rec := tn.wait(id); rec.ExitCode == nil || *rec.ExitCode != 6 || int(rec.UID) != os.Getuid() {
		t.Errorf("record %+v", rec)
	}
	tn.Stop()
	server.Shutdown(t.Context())
	if err := <-served; err != nil {
		t.Error(err)
	}
	tn.stop()
	if _, err := os.Lstat(tn.spool.Socket()); err == nil {
		t.Error("the socket is left")
	}
}

// TestRestartSparesPlaces: what a job has beside its steps stays until its end.
func TestRestartSparesPlaces(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	id := tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	tn.stop()

	place := func(number uint32) step.ID { return step.ID{Job: id.Job, Step: number} }
	places := []step.ID{place(scripts.PlaceID), place(KeeperPlace)}
	stale := place(77)
	tracker := &fakeTracker{ended: map[step.ID]int{}, places: append([]step.ID{stale}, places...)}
	tn = start(t, dir, func(c *Config) { c.Tracker = tracker })
	t.Cleanup(func() { tn.stop() })
	tn.eventually("the end of a leftover", func() bool { return tracker.times(stale) == 1 })
	r := &recovery{n: tn.Node, jobIDs: map[uint32]bool{id.Job: true}}
	for _, p := range places {
		if n := tracker.times(p); n != 0 || !r.isJobs(p) {
			t.Errorf("place %s was ended %d times while its job runs", p, n)
		}
	}
	if r.isJobs(stale) {
		t.Error("a step is taken for a place of the job's")
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
	tn.eventually("the end of the job", func() bool { return len(tn.doc().Jobs) == 0 })
	for _, p := range places {
		if tracker.times(p) == 0 {
			t.Errorf("place %s is left of the job", p)
		}
	}
}

// TestRestartSharesOfSteps: what steps of a job have for themselves, CPUs and generic resources, is
// theirs after a restart, no other step gets it, and it is given back once.
func TestRestartSharesOfSteps(t *testing.T) {
	dir := t.TempDir()
	gpus := func(c *Config) {
		c.Select.Gres = []selection.Gres{{Name: "gpu", Count: 3, Files: [][]string{{"/dev/g0"}, {"/dev/g1"}, {"/dev/g2"}}}}
	}
	tn := start(t, dir, gpus)
	c := newClient(t, 1000)
	job, err := tn.alloc(c, func(r *step.Request) { r.NTasks, r.Gres = 4, wantGres(t, "gpu:3") })
	if err != nil {
		t.Fatal(err)
	}
	asks := func(n int, gres string) step.Request {
		req := request("wait")
		req.Job, req.NTasks, req.Gres = &job, n, wantGres(t, gres)
		return req
	}
	steps := []step.ID{tn.run(1000, asks(2, "gpu:1")), tn.run(1000, asks(1, "gpu:1"))}
	var before []selection.Share
	for _, id := range steps {
		tn.until(id, step.Running)
		before = append(before, tn.reg.follower(id).share)
	}
	if a, b := before[0], before[1]; !a.Alone || !b.Alone || len(a.Held) != 1 || len(b.Held) != 1 {
		t.Fatalf("the steps have %+v and %+v", a, b)
	}
	kill := tn.asKilled()
	tn.stop()
	kill()
	tn = start(t, dir, gpus)
	t.Cleanup(func() { tn.stop() })
	for i, id := range steps {
		tn.until(id, step.Running)
		if after := tn.reg.follower(id).share; !reflect.DeepEqual(after, before[i]) {
			t.Errorf("step %s has %+v after the restart, and had %+v", id, after, before[i])
		}
	}
	for _, refused := range []struct{ req, words string }{
		{"2 gpu:1", "it needs 2 CPUs, and of 4 CPUs 1 are free"},
		{"1 gpu:2", "of 3 gpu 1 are free: step 1.0 has gpu:1(IDX:0), step 1.1 has gpu:1(IDX:1)"},
	} {
		n, gres, _ := strings.Cut(refused.req, " ")
		_, err := tn.svc.Run(as(1000), runRequest(asks(int(n[0]-'0'), gres)))
		if api.CodeOf(err) != api.ResourceExhausted || !strings.Contains(err.Error(), refused.words) {
			t.Errorf("%s: %v, want %q", refused.req, err, refused.words)
		}
	}
	third := tn.run(1000, asks(1, "gpu:1"))
	if sh := tn.reg.follower(third).share; !slices.Equal(sh.CPUs, []int{3}) || len(sh.Held) != 1 || !slices.Equal(sh.Held[0].Index, []int{2}) {
		t.Errorf("the third step has %+v", sh)
	}
	if err := tn.cancel(steps[0]); err != nil {
		t.Fatal(err)
	}
	tn.wait(steps[0])
	again := tn.run(1000, asks(2, "gpu:1"))
	if sh := tn.reg.follower(again).share; !slices.Equal(sh.CPUs, before[0].CPUs) || !reflect.DeepEqual(sh.Held, before[0].Held) {
		t.Errorf("the step after it has %+v, want what that had: %+v", sh, before[0])
	}
	c.kill()
	tn.idle()
}
