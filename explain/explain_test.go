package explain

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"stepd/eventlog"
	"stepd/internal/printable"
	"stepd/step"
)

var update = flag.Bool("update", false, "write the golden files anew")

var t0 = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// ran makes a record of n tasks that ran for two seconds.
func ran(state step.State, n int, change func(*step.Record)) *step.Record {
	rec := &step.Record{
		ID: step.ID{Job: 12}, State: state, NTasks: n, Node: "vm", MPI: "none", Command: []string{"./a.out"},
		Started: ptr(t0.Add(-2 * time.Second)),
	}
	for i := range n {
		rec.Tasks = append(rec.Tasks, step.Task{Rank: i, LocalID: i, State: step.TaskRunning, PID: ptr(100 + i)})
	}
	if state.Final() {
		rec.Ended = ptr(t0)
		for i := range rec.Tasks {
			rec.Tasks[i].End(0)
		}
	}
	if change != nil {
		change(rec)
	}
	return rec
}

func at(ms int, e eventlog.Event) eventlog.Event {
	e.Time = t0.Add(time.Duration(ms) * time.Millisecond)
	return e
}

// waits is a rank in its second fence.
func waits() *step.MPIProgress {
	return &step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMI-1", Fences: 1, Waiting: "fence 2"}
}

// cases are steps as a user would ask for them.
func cases() map[string]struct {
	rec    *step.Record
	events []eventlog.Event
} {
	type in = struct {
		rec    *step.Record
		events []eventlog.Event
	}
	stage := func(ms int, name string) eventlog.Event {
		return at(ms, eventlog.Event{Event: eventlog.EventStageStart, Phase: name})
	}
	failed := func(ms int, name, text string) eventlog.Event {
		return at(ms, eventlog.Event{Event: eventlog.EventStageEnd, Phase: name, Text: text, DurUS: ptr(int64(1000))})
	}
	return map[string]in{
		"one failed and --kill-on-bad-exit": {ran(step.Failed, 3, func(r *step.Record) {
			r.Tasks[0].End(step.SignaledBy(syscall.SIGTERM))
			r.Tasks[1].End(step.ExitedWith(3))
			r.Tasks[2].End(step.SignaledBy(syscall.SIGTERM))
			r.ExitCode, r.Reason = ptr(143), "task 0: Terminated"
		}), []eventlog.Event{at(-100, eventlog.Event{Event: eventlog.EventKill, Signal: ptr(15), DurUS: ptr(int64(5e6)), Text: "task 1: Exited with exit code 3, and --kill-on-bad-exit was given"})}},
		"in its KillWait": {ran(step.Running, 2, nil), []eventlog.Event{
			at(-1500, eventlog.Event{Event: eventlog.EventKill, Signal: ptr(15), DurUS: ptr(int64(30e6)), Text: "cancelled by uid 1000"}),
		}},
		"killed and not gone": {ran(step.Running, 2, nil), []eventlog.Event{
			at(-31500, eventlog.Event{Event: eventlog.EventKill, Signal: ptr(15), DurUS: ptr(int64(30e6)), Text: "cancelled by uid 1000"}),
			at(-1500, eventlog.Event{Event: eventlog.EventKill, Signal: ptr(9), Text: "cancelled by uid 1000"}),
		}},
		"ended in its TaskProlog": {ran(step.Failed, 1, func(r *step.Record) {
			r.Tasks[0].End(step.SignaledBy(syscall.SIGINT))
			r.Tasks[0].State, r.Tasks[0].Stage = step.TaskFailed, eventlog.PhaseTaskProlog
			r.ExitCode, r.Reason = ptr(130), "task 0: Interrupt"
		}), []eventlog.Event{at(-100, eventlog.Event{Event: eventlog.EventTaskSignal, Rank: ptr(0), Signal: ptr(2)})}},
		"crash of a plugin in the launch": {ran(step.Failed, 2, func(r *step.Record) {
			r.Started, r.ExitCode = nil, ptr(1)
			r.Reason = `plugin "rude.so": slurm_spank_user_init: killed by SIGSEGV at rude.so+0x250f`
			r.PluginCrash = &step.PluginCrash{Path: "/lib/rude.so", Hook: "slurm_spank_user_init", Cause: r.Reason, Required: true}
		}), []eventlog.Event{
			stage(-100, "user_init"), at(-90, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "rude.so", Hook: "slurm_spank_user_init"}),
			failed(-50, "user_init", "spankhost is gone"),
		}},
		"required plugin that fails no step": {ran(step.Completed, 2, func(r *step.Record) {
			r.Started, r.ExitCode = nil, ptr(0)
			r.Reason = `plugin "strict.so": slurm_spank_user_init: failed with rc=-1`
			for i := range r.Tasks {
				r.Tasks[i] = step.Task{Rank: i, State: step.TaskFailed, Stage: "gate"}
			}
		}), []eventlog.Event{
			stage(-100, "user_init"), at(-90, eventlog.Event{Event: eventlog.EventHookEnd, Plugin: "strict.so", Hook: "slurm_spank_user_init", RC: ptr(-1)}),
			failed(-50, "user_init", `plugin "strict.so": slurm_spank_user_init: failed with rc=-1`),
		}},
		"MPI of another plugin": {ran(step.Running, 3, func(r *step.Record) { r.MPI = "pmix" }), nil},
		"MPI stands still after init": {ran(step.Running, 2, func(r *step.Record) {
			r.MPI = "pmi2"
			for i := range r.Tasks {
				r.Tasks[i].MPI = &step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMI-1", Fences: 2}
			}
		}), nil},
		"completed": {ran(step.Completed, 2, nil), nil},
		"crash in task_init": {ran(step.Failed, 3, func(r *step.Record) {
			for i := range 2 {
				r.Tasks[i].End(step.SignaledBy(syscall.SIGSEGV))
				r.Tasks[i].State, r.Tasks[i].Stage = step.TaskFailed, "task_init"
			}
			r.Tasks[2].End(0)
			r.Reason, r.ExitCode = `plugin "x.so": slurm_spank_task_init (rank 1): killed by SIGSEGV at x.so+0x1119`, ptr(1)
		}), []eventlog.Event{
			at(1, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(0)}),
			at(1, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(1)}),
			at(1, eventlog.Event{Event: eventlog.EventHookCrash, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(1), Text: "killed by SIGSEGV at x.so+0x1119"}),
		}},
		"time limit": {ran(step.Timeout, 1, func(r *step.Record) {
			r.Tasks[0].End(step.SignaledBy(syscall.SIGTERM))
			r.Reason, r.ExitCode = "the time limit of 1 min is reached", ptr(143)
		}), []eventlog.Event{at(-5, eventlog.Event{Event: eventlog.EventKill, Signal: ptr(15), Text: "the time limit of 1 min is reached"})}},
		"its stepd was killed": {ran(step.NodeFail, 2, func(r *step.Record) {
			r.Reason, r.ExitCode, r.StepdLost = "stepd (pid 77) was killed by SIGKILL", ptr(1), true
			for i := range r.Tasks {
				r.Tasks[i].ExitCode, r.Tasks[i].Status = nil, nil
			}
		}), nil},
		"its slurmstepd was killed": {ran(step.Failed, 1, func(r *step.Record) {
			r.Reason, r.ExitCode, r.StepdLost, r.Node = "slurmstepd has died (slurmd's log and the kernel's may say why), and its keeper has killed the step", ptr(1), true, "n2"
			r.Tasks[0].ExitCode, r.Tasks[0].Status = nil, nil
		}), nil},
		"another node was lost": {ran(step.Failed, 1, func(r *step.Record) {
			r.Reason, r.ExitCode, r.Aborted, r.Node = `lost node "n2" (node 1 of the step): read: connection reset by peer`, ptr(1), true, "n1"
			r.Tasks[0].End(step.SignaledBy(15))
		}), []eventlog.Event{at(-5, eventlog.Event{Event: eventlog.EventKill, Signal: ptr(15), Text: "x"})}},
		"prolog that fails": {ran(step.Failed, 1, func(r *step.Record) {
			r.Started, r.ExitCode = nil, ptr(1)
			r.Tasks[0] = step.Task{State: step.TaskFailed}
			r.Reason, r.Drain = `Prolog "/etc/slurm/prolog": Exited with exit code 1`, `Prolog "/etc/slurm/prolog": Exited with exit code 1`
		}), []eventlog.Event{
			stage(-100, "prolog"), failed(-50, "prolog", `Prolog "/etc/slurm/prolog": Exited with exit code 1`),
		}},
		"hook that took too long": {ran(step.Failed, 1, func(r *step.Record) {
			r.Started, r.ExitCode = nil, ptr(1)
			r.Tasks[0] = step.Task{State: step.TaskFailed}
			r.Reason = `plugin "x.so": slurm_spank_init: did not return within 5s (HookTimeout in stepd.conf)`
			r.PluginCrash = &step.PluginCrash{Path: "/usr/lib/x.so", Hook: "slurm_spank_init", Cause: r.Reason}
		}), []eventlog.Event{
			stage(-100, "init"), at(-90, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_init"}),
			failed(-50, "init", "spankhost is gone"),
		}},
		"limit of CPU time": {ran(step.Failed, 1, func(r *step.Record) {
			r.Tasks[0].End(step.SignaledBy(syscall.SIGXCPU))
			r.Reason, r.ExitCode = "task 0: CPU time limit exceeded", ptr(152)
		}), nil},
		"killed from outside": {ran(step.Failed, 2, func(r *step.Record) {
			r.Tasks[1].End(step.SignaledBy(syscall.SIGKILL))
			r.Reason, r.ExitCode = "task 1: Killed", ptr(137)
		}), nil},
		"MPI: ended without a word": {ran(step.Completed, 3, func(r *step.Record) { r.MPI, r.MPISilent = "pmix", true }), nil},
		"in its TaskProlog": {ran(step.Running, 1, func(r *step.Record) {
			r.Tasks[0].State = step.TaskStarting
			r.Tasks[0].Doing = &step.Doing{PID: 102, State: "S", Command: "sh", Stage: eventlog.PhaseTaskProlog}
		}), []eventlog.Event{stage(-2000, eventlog.PhaseTaskProlog)}},
		"running": {ran(step.Running, 2, nil), nil},
		"pending": {ran(step.Pending, 1, func(r *step.Record) { r.Started, r.LauncherPID = nil, 4711 }), nil},
		"exit codes": {ran(step.Failed, 5, func(r *step.Record) {
			r.Tasks[1].End(step.ExitedWith(127))
			r.Tasks[3].End(step.ExitedWith(127))
			r.Tasks[4].End(step.SignaledBy(syscall.SIGSEGV))
			r.ExitCode, r.Reason = ptr(139), "task 4: Segmentation fault"
		}), nil},
		"never executed": {ran(step.Failed, 3, func(r *step.Record) {
			for i := range 2 {
				r.Tasks[i].End(step.ExitedWith(2))
				r.Tasks[i].State, r.Tasks[i].Stage, r.Tasks[i].Errno = step.TaskFailed, "exec", 2
			}
			r.Tasks[2].End(step.ExitedWith(1))
			r.Tasks[2].State, r.Tasks[2].Stage, r.Tasks[2].Errno = step.TaskFailed, "stdio", 13
			r.ExitCode, r.Reason = ptr(2), "task 0: Exited with exit code 2"
		}), nil},
		"ended at the gate": {ran(step.Failed, 2, func(r *step.Record) {
			r.Tasks[0].End(step.SignaledBy(syscall.SIGTERM))
			r.Tasks[0].State, r.Tasks[0].Stage = step.TaskFailed, "gate"
			r.Tasks[1].End(step.ExitedWith(9))
			r.ExitCode, r.Reason = ptr(143), "task 0: Terminated"
		}), nil},
		"plugin crash": {ran(step.Failed, 1, func(r *step.Record) {
			r.Started, r.Tasks[0].State, r.Tasks[0].Status = nil, step.TaskFailed, nil
			r.Reason = `plugin "x.so": slurm_spank_user_init: killed by SIGSEGV at x.so+0x1119 (slurm_spank_user_init+0x15)`
			r.PluginCrash = &step.PluginCrash{Path: "/usr/lib/x.so", Hook: "slurm_spank_user_init", Required: true, Cause: r.Reason}
			r.ExitCode = ptr(1)
		}), []eventlog.Event{
			stage(0, "init"), failed(1, "init", ""), stage(1, "user_init"),
			failed(5, "user_init", "spankhost is gone"),
			at(5, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_user_init"}),
		}},
		"hook that fails": {ran(step.Failed, 2, func(r *step.Record) { r.ExitCode, r.Reason = ptr(1), "" }), []eventlog.Event{
			at(1, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(0)}),
			at(2, eventlog.Event{Event: eventlog.EventHookEnd, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(0), RC: ptr(-3)}),
			at(1, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(1)}),
			at(2, eventlog.Event{Event: eventlog.EventHookEnd, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(1), RC: ptr(-3)}),
			at(3, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_exit"}),
			at(4, eventlog.Event{Event: eventlog.EventHookEnd, Plugin: "x.so", Hook: "slurm_spank_exit", RC: ptr(0)}),
		}},
		"launch hangs in a hook": {ran(step.Starting, 1, func(r *step.Record) {
			r.Started, r.Tasks[0].State, r.Tasks[0].PID = nil, step.TaskPending, nil
			r.Host = &step.Doing{PID: 77, State: "S", Command: "spankhost", Wchan: "hrtimer_nanosleep", Plugin: "x.so", Hook: "slurm_spank_init", HookTime: 3 * time.Second}
		}), []eventlog.Event{stage(-3000, "init")}},
		"memory": {ran(step.OutOfMemory, 2, func(r *step.Record) {
			r.Tasks[1].End(step.SignaledBy(syscall.SIGKILL))
			r.ExitCode = ptr(137)
			r.OOM = []step.OOMKill{{Rank: ptr(1), PID: 101, Command: "eat\x1b", Level: "step", LimitBytes: ptr(uint64(64 << 20))}}
		}), nil},
		"memory of the machine": {ran(step.OutOfMemory, 1, func(r *step.Record) {
			r.Tasks[0].End(step.SignaledBy(syscall.SIGKILL))
			r.ExitCode = ptr(137)
			r.OOM = []step.OOMKill{{Rank: ptr(0), PID: 101, Command: ": the 日本", Level: "machine"}}
		}), nil},
		"in the hook of a task": {ran(step.Starting, 2, func(r *step.Record) {
			for i := range r.Tasks {
				r.Tasks[i].State = step.TaskStarting
				r.Tasks[i].Doing = &step.Doing{PID: 100 + i, State: "S", Command: "spankhost", Plugin: "x.so", Hook: "slurm_spank_task_init", HookTime: 3 * time.Second}
			}
		}), []eventlog.Event{
			at(-3000, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(0)}),
			at(-3000, eventlog.Event{Event: eventlog.EventHookStart, Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: ptr(1)}),
		}},
		"what of a file is wrong": {ran(step.Failed, 4, func(r *step.Record) {
			for i := range r.Tasks {
				r.Tasks[i].End(step.ExitedWith(2))
				r.Tasks[i].State, r.Tasks[i].Stage, r.Tasks[i].Errno, r.Tasks[i].Object = step.TaskFailed, "exec", 2, "/tmp/a.out"
				r.Tasks[i].Why = `"/tmp/a.out" does not exist in the job's container; outside of it, it does`
			}
			r.Tasks[2].Object, r.Tasks[2].Why = "bad interpreter(/bin/sh\r)", `the first line of "./a.out" ends with a carriage return: the file has the line ends of DOS`
			r.Tasks[3].Stage, r.Tasks[3].Errno, r.Tasks[3].Object = "stdio", 13, "/out/x"
			r.Tasks[3].Why = `the directory "/out" has mode 0755 and belongs to 0:0: user 1000 may make no file in it`
			r.ExitCode, r.Reason = ptr(2), "task 0: Exited with exit code 2"
		}), nil},
		"limits and streams": {ran(step.Failed, 1, func(r *step.Record) {
			r.Tasks[0].End(step.ExitedWith(1))
			r.ExitCode, r.Reason = ptr(1), "task 0: Exited with exit code 1"
		}), []eventlog.Event{
			at(-9, eventlog.Event{Event: eventlog.EventLimit, Text: "the limit NOFILE is 1024 and not unlimited, as it was passed on: the node's hard limit is lower"}),
			at(-1, eventlog.Event{Event: eventlog.EventHeldOpen, PID: 77, Text: `stdout of rank 0 is held open by pid 77 ("daemon")`}),
		}},
		"limits of one that ended well": {ran(step.Completed, 1, nil), []eventlog.Event{at(-9, eventlog.Event{Event: eventlog.EventLimit, Text: "lower"})}},
		"cancelled": {ran(step.Cancelled, 2, func(r *step.Record) {
			r.Reason, r.ExitCode = "cancelled by uid 1000", ptr(143)
			r.Tasks[0].End(step.SignaledBy(syscall.SIGTERM))
			r.Tasks[1].End(step.SignaledBy(syscall.SIGUSR1))
		}), []eventlog.Event{
			at(-9, eventlog.Event{Event: eventlog.EventTaskSignal, Rank: ptr(1), Signal: ptr(10)}),
			at(-8, eventlog.Event{Event: eventlog.EventTaskExit, Rank: ptr(1)}),
			at(-7, eventlog.Event{Event: eventlog.EventKill, Signal: ptr(15)}),
			at(-6, eventlog.Event{Event: eventlog.EventTaskExit, Rank: ptr(0)}),
		}},
		"unkillable": {ran(step.Failed, 1, func(r *step.Record) {
			r.Reason, r.ExitCode = "cannot kill all", ptr(1)
			r.Survivors, r.SurvivorsTotal = []step.Survivor{{PID: 9, Comm: "cp", State: "D", Grade: step.GradeDisk, Wchan: "nfs_wait"}}, 3
			r.Tasks[0].State, r.Tasks[0].Status = step.TaskRunning, nil
		}), nil},
		"stopped": {ran(step.Running, 3, func(r *step.Record) {
			r.Tasks[2].Doing = &step.Doing{PID: 102, State: "T", Command: "a.out"}
			r.Tasks[0].Doing = &step.Doing{PID: 100, State: "R", Command: "a.out"}
		}), nil},
		"suspended": {ran(step.Running, 1, func(r *step.Record) { r.Suspended, r.SuspendedBy = ptr(t0), ptr(uint32(0)) }), nil},
		"MPI: one never calls init": {ran(step.Running, 8, func(r *step.Record) {
			r.MPI = "pmi2"
			for i := range 7 {
				r.Tasks[i].MPI = waits()
			}
			r.Tasks[7].Doing = &step.Doing{PID: 107, State: "S", Command: "sh", Wchan: "do_wait"}
		}), nil},
		"MPI: one was killed": {ran(step.Failed, 4, func(r *step.Record) {
			r.MPI, r.ExitCode, r.Aborted = "pmi2", ptr(137), true
			r.Reason = "task 1: MPI abort with code 137: MPI rank 1 ended (Killed) running: it had not finalized"
			for i := range r.Tasks {
				r.Tasks[i].MPI = waits()
				r.Tasks[i].End(step.SignaledBy(syscall.SIGTERM))
			}
			r.Tasks[1].MPI = &step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMI-1", Fences: 1}
			r.Tasks[1].End(step.SignaledBy(syscall.SIGKILL))
		}), []eventlog.Event{
			at(-8, eventlog.Event{Event: eventlog.EventTaskExit, Rank: ptr(1)}),
			at(-7, eventlog.Event{Event: eventlog.EventKill, Signal: ptr(15)}),
		}},
		"MPI: one is stopped": {ran(step.Running, 4, func(r *step.Record) {
			r.MPI = "pmi2"
			for i := range r.Tasks {
				r.Tasks[i].MPI = waits()
			}
			r.Tasks[3].MPI = &step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMI-1", Fences: 1}
			r.Tasks[3].Doing = &step.Doing{PID: 103, State: "T", Command: "a.out"}
		}), nil},
		"MPI: many missing": {ran(step.Cancelled, 60, func(r *step.Record) {
			r.MPI, r.ExitCode, r.Reason = "pmi2", ptr(143), "cancelled by uid 0"
			for i := range r.Tasks {
				switch {
				case i < 20:
					r.Tasks[i].MPI = waits()
				case i%2 == 0:
					r.Tasks[i].MPI = &step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMI-2", Fences: 1}
				}
			}
		}), nil},
		"MPI: the plugin says whom": {ran(step.Running, 3, func(r *step.Record) {
			r.MPI = "pmix"
			r.Tasks[0].MPI = &step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMIx 4.2", Waiting: `key "a" of rank 2`, WaitsFor: "2"}
			r.Tasks[1].MPI = &step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMIx 4.2"}
			r.Tasks[2].MPI = &step.MPIProgress{Phase: step.PhaseConnected, Protocol: "PMIx 4.2"}
		}), nil},
		"MPI: all is well": {ran(step.Running, 2, func(r *step.Record) {
			r.MPI = "pmi2"
			for i := range r.Tasks {
				r.Tasks[i].MPI = &step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMI-2", Fences: 3}
			}
		}), nil},
	}
}

// TestExplain: the screen of each of these steps, word by word, on 80 columns.
func TestExplain(t *testing.T) {
	seen := map[string]bool{}
	for name, c := range cases() {
		t.Run(name, func(t *testing.T) {
			x := Explain(c.rec, c.events, t0)
			var b strings.Builder
			if err := x.Write(&b, Style{Width: 80}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", strings.NewReplacer(" ", "_", ":", "", ",", "").Replace(name)+".txt")
			seen[filepath.Base(file)] = true
			if *update {
				if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || b.String() != string(want) {
				t.Errorf("%v\ngot\n%s\nwant\n%s", err, b.String(), want)
			}
			answers(t, c.rec, x, b.String())
			// A program's document has the lists that it reads, never null.
			doc, err := json.Marshal(x)
			if err != nil {
				t.Fatal(err)
			}
			for _, bad := range []string{`"findings":null`, `"groups":null`, `"missing":null`, `"text":null`} {
				if strings.Contains(string(doc), bad) {
					t.Errorf("%s in %s", bad, doc)
				}
			}
		})
	}
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[f.Name()] {
			t.Errorf("testdata/%s belongs to no case", f.Name())
		}
	}
}

// answers holds the screen to its order: what happened, then why, then what to do now, before all
// else. One that has ended well, and one that runs well, leave no question.
func answers(t *testing.T, rec *step.Record, x *Explanation, screen string) {
	t.Helper()
	if !strings.HasPrefix(screen, "step 12.0  "+string(rec.State)) {
		t.Errorf("the first line does not say what happened: %s", screen)
	}
	for line := range strings.Lines(screen) {
		if n := utf8.RuneCountInString(line) - 1; n > 80 {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
	if len(x.Findings) == 0 {
		if x.MPI != nil || rec.State != step.Completed && rec.State != step.Running {
			t.Errorf("nothing is found: %s", screen)
		}
		return
	}
	first, lines := x.Findings[0], strings.SplitN(screen, "\n", 4)
	hint, _, _ := strings.Cut(first.Hint, " ")
	if !strings.HasPrefix(lines[1], "  "+string(first.Kind)+": ") || hint == "" || !strings.HasPrefix(lines[2], "    "+hint) {
		t.Errorf("the cause does not come next, or what to do does not begin on the third line: %s", screen)
	}
	if want := "  " + string(first.Kind) + ": " + printable.Line(strings.TrimPrefix(first.Text, string(first.Kind)+" "), 0); lines[1] != want {
		t.Errorf("the second line is not all of %q: %s", want, screen)
	}
}

// TestLongCause: of what a line has no room for, the cause comes first, what to do next, and then the rest.
func TestLongCause(t *testing.T) {
	long := "/scratch/" + strings.Repeat("日本/", 40) + "a.out"
	crash := fmt.Sprintf("plugin %q: slurm_spank_task_init (rank 0): killed by SIGSEGV at libc.so.6+0x18bb9d (strlen+0x1d), called at x.so+0x1119 (slurm_spank_task_init+0x15)", "x.so")
	for _, c := range []struct {
		rec   *step.Record
		first string // of the second line
		third string
		rest  string
	}{
		{ran(step.Failed, 1, func(r *step.Record) {
			r.Tasks[0].End(step.ExitedWith(2))
			r.Tasks[0].State, r.Tasks[0].Stage, r.Tasks[0].Errno, r.Tasks[0].Object = step.TaskFailed, "exec", 2, long
			r.Command = []string{long}
		}), "  exec: rank 0 never ran: no such file or directory: …", "    the file is not on the node, ", "a.out"},
		{ran(step.Failed, 1, func(r *step.Record) {
			r.Reason, r.PluginCrash = crash, &step.PluginCrash{Path: "/usr/lib/x.so", Hook: "slurm_spank_task_init", Cause: crash}
		}), "  plugin: killed by SIGSEGV at libc.so.6+0x18bb9d, called at x.so+0x1119 in …", "    see docs/plugin.md", "there: strlen+0x1d, called at slurm_spank_task_init+0x15"},
	} {
		var b strings.Builder
		if err := Explain(c.rec, nil, t0).Write(&b, Style{Width: 80}); err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitN(b.String(), "\n", 4)
		if lines[1] != c.first || !strings.HasPrefix(lines[2], c.third) || !strings.Contains(lines[3], c.rest) {
			t.Errorf("got %s", b.String())
		}
	}
}

// TestKindsOfEnds: there are screens of at least 20 ways to end.
func TestKindsOfEnds(t *testing.T) {
	ends := 0
	for _, c := range cases() {
		if c.rec.State.Final() {
			ends++
		}
	}
	if ends < 20 {
		t.Errorf("there are %d", ends)
	}
}

// A step of very many different ends is not told without end.
func TestFindingsAreBounded(t *testing.T) {
	rec := ran(step.Failed, 200, func(r *step.Record) {
		for i := range r.Tasks {
			r.Tasks[i].End(step.ExitedWith(uint8(1 + i)))
		}
	})
	x := Explain(rec, nil, t0)
	if last := x.Findings[len(x.Findings)-1]; len(x.Findings) != findingsMax+1 || last.Kind != KindDropped || last.Text != "findings that are not listed: 160" {
		t.Errorf("%d findings, the last %+v", len(x.Findings), last)
	}
}

// TestWidth: on a terminal no line is wider than it, nothing moves its cursor, and only what a finding
// is about is bold.
func TestWidth(t *testing.T) {
	for name, c := range cases() {
		c.rec.Reason, c.rec.Command = strings.Replace(c.rec.Reason, "uid", "日本\x1b[2J\u202euid", 1), []string{"./日本\x1b[2J"}
		x := Explain(c.rec, c.events, t0)
		var whole, bold strings.Builder
		for _, err := range []error{x.Write(&whole, Style{}), x.Write(&bold, Style{Bold: true})} {
			if err != nil {
				t.Fatal(err)
			}
		}
		words := strings.Fields(whole.String())
		slices.Sort(words)
		for _, width := range []int{40, 60, 200} {
			var b strings.Builder
			if err := x.Write(&b, Style{Width: width}); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				line = strings.TrimSuffix(line, "\n")
				if printable.Width(line) > width && strings.Contains(strings.TrimSpace(line), " ") {
					t.Errorf("%s: on %d columns: %q", name, width, line)
				}
				if strings.ContainsFunc(line, printable.Control) {
					t.Errorf("%s: a line with controls: %q", name, line)
				}
			}
			// What the first line has no room for comes after the hint, and no word twice.
			got := strings.Fields(strings.ReplaceAll(b.String(), "…", ""))
			if slices.Sort(got); !slices.Equal(got, words) {
				t.Errorf("%s: on %d columns the words are others: %q and %q", name, width, got, words)
			}
		}
		if plain := strings.NewReplacer("\x1b[1m", "", "\x1b[0m", "").Replace(bold.String()); plain != whole.String() || plain == bold.String() {
			t.Errorf("%s: in bold it is %q", name, bold.String())
		}
	}
}
