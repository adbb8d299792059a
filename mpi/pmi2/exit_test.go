package pmi2

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
	"stepd/step/launch"
)

// How a rank ends, and what that means for the step.
func TestExit(t *testing.T) {
	for _, c := range []struct {
		name   string
		play   func(f *fake) // rank 1's life; rank 0 waits in a fence
		status step.ExitStatus
		code   int
		words  []string
	}{
		{"after init 1", func(f *fake) { f.init1() }, step.SignaledBy(syscall.SIGSEGV), 139,
			[]string{"MPI rank 1 ended (Segmentation fault) running: it had not finalized"}},
		{"after hello 2", func(f *fake) { f.hello2() }, step.ExitedWith(3), 3,
			[]string{"MPI rank 1 ended (Exited with exit code 3) before fullinit: it had not finalized"}},
		{"with exit code 0", func(f *fake) { f.init2() }, 0, 1,
			[]string{"MPI rank 1 ended (Exited with exit code 0) running: it had not finalized"}},
		{"in the middle of a frame", func(f *fake) { f.init2().send("    50cmd=kvs") }, step.ExitedWith(1), 1,
			[]string{"MPI rank 1 ended (Exited with exit code 1) running"}},
		{"without init", func(*fake) {}, 0, 1,
			[]string{"MPI fence cannot complete: 1 of 2 ranks wait in it, and rank 1 will never enter it; rank 1 ended (Exited with exit code 0) before init"}},
		{"without init, badly", func(*fake) {}, step.ExitedWith(5), 5, []string{"rank 1 will never enter it"}},
		{"after finalize", func(f *fake) { f.init1().finalize() }, 0, 1,
			[]string{"MPI fence cannot complete", "rank 1 will never enter it; rank 1 has finalized"}},
		{"abort 1", func(f *fake) { f.init1().send("cmd=abort exitcode=42\n") }, step.ExitedWith(42), 42,
			[]string{"MPI rank 1 called abort"}},
		{"abort 1 without a code", func(f *fake) { f.init1().send("cmd=abort\n") }, step.ExitedWith(1), 1, []string{"called abort"}},
		{"abort 2", func(f *fake) { f.init2().say("cmd=abort;isworld=TRUE;msg=no;;\n;") }, step.ExitedWith(255), 1,
			[]string{`MPI rank 1 called abort: "no;\n"`}},
		{"abort before fullinit", func(f *fake) { f.hello2().say("cmd=abort;isworld=TRUE;msg=;") }, step.ExitedWith(255), 1,
			[]string{"MPI rank 1 called abort"}},
		{"abort alone", func(f *fake) { f.init2().say("cmd=abort;isworld=FALSE;msg=x;") }, step.ExitedWith(4), 1,
			[]string{"MPI fence cannot complete"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2, step.PMI2Conf{})
			w.ranks[0].init2().say("cmd=kvs-fence;")
			w.ranks[0].ask("cmd=job-getid;", "cmd=job-getid-response;rc=0;jobid=12.3;") // it is in the fence
			c.play(w.ranks[1])
			// The last words are in the socket when the task is gone.
			w.exit(1, c.status)
			w.wantAbort(1, c.code, c.words...)
			w.exit(0, step.SignaledBy(syscall.SIGKILL)) // as the step is killed: nothing new
			w.close()
			if len(w.aborts) > 0 {
				t.Errorf("a second abort: %+v", <-w.aborts)
			}
		})
	}
}

// A fence that is entered when the others are gone already.
func TestExitBeforeTheFence(t *testing.T) {
	w := newWorld(t, 9, step.PMI2Conf{})
	f := w.ranks[4].init2()
	for _, rank := range []int{0, 1, 2, 7} {
		w.exit(rank, 0)
	}
	f.say("cmd=kvs-fence;")
	select {
	case got := <-w.aborts:
		// TaskExited does not wait: the first to be seen is told.
		if !strings.Contains(got.text, "1 of 9 ranks wait in it") {
			t.Errorf("abort says %q", got.text)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no abort")
	}
}

// Tasks that speak no PMI, and ranks that finalized, end as they like.
func TestExitOfNoConcern(t *testing.T) {
	w := newWorld(t, 4, step.PMI2Conf{})
	w.ranks[1].init1().finalize()
	w.ranks[2].init2().finalize()
	w.ranks[3].init2().say("cmd=abort;isworld=FALSE;msg=x;")
	w.exit(0, step.ExitedWith(3))
	w.exit(1, step.SignaledBy(syscall.SIGSEGV))
	w.exit(2, step.ExitedWith(1))
	w.wantLog(`rank 3: aborts alone: "x"`)
	w.exit(3, step.ExitedWith(1))
	w.plugin.TaskExited(3, 0) // twice, and ranks that are none
	w.plugin.TaskExited(4, 0)
	w.plugin.TaskExited(-1, 0)
	w.wantQuiet()
}

// A rank that closes its end and lives on is noticed by those who wait for it.
func TestExitClosedAndAlive(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{CloseGrace: time.Millisecond})
	w.ranks[0].init1().say("cmd=barrier_in")
	w.ranks[1].init1()
	w.ranks[1].file.Close()
	w.wantAbort(1, 1, "rank 1 will never enter it; rank 1 closed its PMI connection running")
}

// A child of the task that holds the descriptor does not hide the task's end.
func TestExitWithDescriptorHeld(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{})
	w.ranks[1].init1()
	w.plugin.TaskExited(1, step.ExitedWith(9)) // the descriptor stays open
	w.wantAbort(1, 9, "had not finalized")
}

// A rank that asks without reading is served no more, and no other notices.
func TestFloodWithoutReading(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{})
	flood, other := w.ranks[0].init2(), w.ranks[1].init2()
	value := strings.Repeat("x", 1000)
	flood.put("big", value)
	request := strings.Repeat("    20cmd=kvs-get;key=big;", 1000)
	_ = flood.file.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for {
		if _, err := flood.file.WriteString(request); err != nil {
			break // the socket is full both ways: stepd has stopped to read
		}
	}
	for range 100 {
		other.put("k", "v")
		other.get("k", "v")
	}
	w.exit(0, step.SignaledBy(syscall.SIGKILL))
	w.wantAbort(0, 137, "had not finalized")
	other.get("k", "v")
	w.wantQuiet()
}

// Answers that others cause pile up for a rank that does not read, up to the
// bound.
func TestFloodOfAnswers(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{QueueBytes: 1 << 10, WaitsPerRank: 10000})
	deaf, other := w.ranks[0].init2(), w.ranks[1].init2()
	for range 2000 {
		deaf.say("cmd=info-getnodeattr;key=x;wait=TRUE;")
	}
	deaf.ask("cmd=job-getid;", "cmd=job-getid-response;rc=0;jobid=12.3;")
	other.ask("cmd=info-putnodeattr;key=x;value="+strings.Repeat("v", 1000)+";", "cmd=info-putnodeattr-response;rc=0;")
	w.wantLog("rank 0: connection closed: ", "of answers are not read: more than 1024 (PMI2QueueBytes)")
	other.ask("cmd=job-getid;", "cmd=job-getid-response;rc=0;jobid=12.3;")
}

// Close ends everything in the middle of it, as often as it is called.
func TestClose(t *testing.T) {
	w := newWorld(t, 3, step.PMI2Conf{})
	w.ranks[0].init1().say("cmd=barrier_in")
	w.ranks[1].init2().say("cmd=info-getnodeattr;key=x;wait=TRUE;")
	if err := w.plugin.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, f := range w.ranks {
		if got := f.receive(); !strings.HasPrefix(got, "error: ") {
			t.Errorf("rank %d got %q after close", f.n, got)
		}
	}
	w.plugin.TaskExited(0, step.ExitedWith(1))
	w.wantQuiet()
	if err := New(step.PMI2Conf{}).Close(); err != nil {
		t.Errorf("Close without Prefork: %v", err)
	}
}

func TestPreforkErrors(t *testing.T) {
	job := launch.MPIJob{Spec: testSpec(2), Abort: func(int, int, string) {}, Log: func(string) {}}
	gone, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("step cancelled")
	cancel(cause)
	closed := New(step.PMI2Conf{})
	closed.Close()
	for _, c := range []struct {
		name   string
		plugin *Plugin
		ctx    context.Context
		job    launch.MPIJob
		want   string
	}{
		{"no spec", New(step.PMI2Conf{}), context.Background(), launch.MPIJob{}, "internal error"},
		{"no tasks", New(step.PMI2Conf{}), context.Background(), launch.MPIJob{Spec: testSpec(0), Abort: job.Abort, Log: job.Log}, "internal error"},
		{"cancelled", New(step.PMI2Conf{}), gone, job, "cannot make PMI sockets for 2 tasks: step cancelled"},
		{"closed", closed, context.Background(), job, "after close"},
	} {
		if _, err := c.plugin.Prefork(c.ctx, c.job); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	w := newWorld(t, 1, step.PMI2Conf{})
	if _, err := w.plugin.Prefork(context.Background(), job); err == nil || !strings.Contains(err.Error(), "called twice") {
		t.Errorf("second prefork: %v", err)
	}
}

// Too few descriptors: nothing is left behind (TestMain looks), and the error
// says what to raise.
func TestPreforkWithoutDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: 64, Max: was.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	_, err := New(step.PMI2Conf{}).Prefork(context.Background(),
		launch.MPIJob{Spec: testSpec(100), Abort: func(int, int, string) {}, Log: func(string) {}})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err == nil || !errors.Is(err, syscall.EMFILE) || !strings.Contains(err.Error(), "LimitNOFILE") {
		t.Errorf("error %v", err)
	}
}

func TestTaskEnvironment(t *testing.T) {
	plugin := New(step.PMI2Conf{})
	pre, err := plugin.Prefork(context.Background(), launch.MPIJob{Spec: testSpec(2), Abort: func(int, int, string) {}, Log: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Close()
	if got, want := strings.Join(pre.TaskEnv[1], " "), "PMI_RANK=1 PMI_ID=1 PMI_SIZE=2 PMI_JOBID=12.3 PMI_SPAWNED=0"; got != want {
		t.Errorf("environment %q, want %q", got, want)
	}
	for rank, fds := range pre.TaskFDs {
		if len(fds) != 1 || fds[0].Var != "PMI_FD" {
			t.Fatalf("rank %d has descriptors %+v", rank, fds)
		}
		fd := int(fds[0].File.Fd())
		flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		closing, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if flags&unix.O_NONBLOCK != 0 || closing&unix.FD_CLOEXEC == 0 {
			t.Errorf("rank %d: flags %#x, %#x: want a blocking descriptor that closes on exec", rank, flags, closing)
		}
		fds[0].File.Close()
	}
}

func TestRanksText(t *testing.T) {
	for _, c := range []struct {
		ranks []int
		want  string
	}{
		{[]int{3}, "rank 3"},
		{[]int{0, 1, 2, 7}, "ranks 0-2,7"},
		{[]int{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34}, "ranks 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,..."},
	} {
		if got := ranksText(c.ranks); got != c.want {
			t.Errorf("%v: %q, want %q", c.ranks, got, c.want)
		}
	}
}
