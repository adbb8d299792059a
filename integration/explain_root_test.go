package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// explainDoc is the document of explain --json.
type explainDoc struct {
	State    string
	Summary  string
	Stage    *struct{ Name, Error string }
	Findings []struct{ Kind, Text, Detail, Ranks, Hint string }
	MPI      *struct {
		Type   string
		Groups []struct {
			Ranks    string
			WaitsFor string `json:"waits_for"`
			MPI      *struct {
				Phase, Protocol, Waiting string
				Fences                   int
			}
		}
		Missing []struct {
			Rank  int
			Doing *struct {
				PID            int
				State, Command string
			}
			Text string
		}
	}
}

// explained asks why, and wants these words in what people are told.
func (n *node) explained(t testing.TB, id string, words ...string) explainDoc {
	t.Helper()
	r := n.ctl(t, "explain", id)
	if r.code != 0 || r.err != "" {
		t.Fatalf("explain: %v", r)
	}
	contains(t, "explain", r.out, words...)
	var doc struct {
		Schema      int
		Explanation explainDoc
	}
	r = n.ctl(t, "explain", "--json", id)
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 || doc.Schema != 1 {
		t.Fatalf("explain --json: %v: %v", err, r)
	}
	return doc.Explanation
}

// TestRootExplainMPI: of an MPI program that hangs, explain says which ranks wait
// in which fence for whom, and what that one does; of one that failed, how far
// each had come.
func TestRootExplainMPI(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	program := mpicc(t, n, "hang")
	for _, c := range []struct {
		how, state, fence string
		fences            int
		words             []string
	}{
		{"never", "S", "fence 1", 0, []string{"\n  mpi: ranks 0-2 wait in fence 1 for rank 3\n    gdb -p ", "ranks 0-2 have called init (PMI-1), wait in fence 1 for rank 3", `rank 3 has not called init; pid `, `"hang", sleeps`}},
		{"stopped", "T", "fence 4", 3, []string{"\n  process: rank 3 is pid ", "\n  mpi: ranks 0-2 wait in fence 4 for rank 3\n    rank 3 is stopped by a signal: kill -CONT ", "wait in fence 4 for rank 3", `rank 3 has called init (PMI-1), has come through 3 fences; pid `, `"hang", stopped by a signal`}},
	} {
		t.Run(c.how, func(t *testing.T) {
			p := n.start(t, call{args: []string{"run", "-n4", "--mpi=pmi2", program, c.how}})
			id := n.running(t).id()
			var x explainDoc
			eventually(t, callTimeout, "ranks that wait", func() error {
				if x = n.explained(t, id); x.MPI == nil || len(x.MPI.Missing) != 1 || x.MPI.Missing[0].Doing == nil || x.MPI.Missing[0].Doing.State != c.state {
					return fmt.Errorf("%+v", x)
				}
				for _, g := range x.MPI.Groups {
					if g.MPI != nil && g.MPI.Waiting == c.fence && g.Ranks == "0-2" && g.WaitsFor == "3" && g.MPI.Fences == c.fences {
						return nil
					}
				}
				return fmt.Errorf("%+v", x.MPI)
			})
			m := x.MPI.Missing[0]
			if m.Rank != 3 || m.Doing.Command != "hang" || x.State != "RUNNING" {
				t.Errorf("got %+v", m)
			}
			n.explained(t, id, c.words...)
			// What it did then is told afterwards, too.
			if r := n.ctl(t, "cancel", id); r.code != 0 {
				t.Fatal(r)
			}
			p.wait(t)
			n.ended(t, id)
			words := slices.DeleteFunc(slices.Clone(c.words), func(w string) bool { return strings.HasPrefix(w, "\n") })
			n.explained(t, id, append(words, "cancel: the step was cancelled")...)
			events := n.ctl(t, "events", id)
			contains(t, "events", events.out, `"event":"mpi","ranks":"0-2","mpi":{"phase":"initialized"`)
		})
	}
	for _, c := range []struct {
		how   string
		words []string
	}{
		{"killed", []string{"rank 3: Killed\n", "ranks 0-2: Terminated, by the step's end", "rank 3 has called init (PMI-1), has come through 3 fences; it ended: Killed"}},
		{"leaves", []string{"rank 3: Exited with exit code 3\n", "fence 1", "rank 3 has not called init; it ended: Exited with exit code 3"}},
	} {
		t.Run(c.how, func(t *testing.T) {
			if r := n.ctl(t, "run", "-n4", "--mpi=pmi2", program, c.how); r.code == 0 {
				t.Fatal(r)
			}
			n.explained(t, n.lastEnded(t).id(), c.words...)
		})
	}
	t.Run("none speaks", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "-n3", "--mpi=pmix", "sh", "-c", "until [ -e go ]; do sleep 0.01; done"}})
		id := n.running(t).id()
		x := n.explained(t, id, "\n  mpi: no task has spoken PMI yet: 3 singletons, if it is an MPI program\n    --mpi=pmi2, ")
		if x.MPI == nil || x.MPI.Type != "pmix" || len(x.Findings) != 1 {
			t.Errorf("it runs: got %+v", x)
		}
		n.userFile(t, "go", "", 0o644)
		if r := p.wait(t); r.code != 0 {
			t.Fatal(r)
		}
		n.ended(t, id)
		n.explained(t, id, "all of its tasks ended well\n  mpi: no task has spoken PMI: 3 singletons, if it is an MPI program\n    --mpi=pmi2, ")
		// One task is no MPI program that misses its others.
		if r := n.ctl(t, "run", "--mpi=pmix", "true"); r.code != 0 {
			t.Fatal(r)
		}
		if x := n.explained(t, n.lastEnded(t).id(), "all of its tasks ended well"); x.MPI != nil || len(x.Findings) != 0 {
			t.Errorf("one task: got %+v", x)
		}
	})
	t.Run("ended well", func(t *testing.T) {
		if r := n.ctl(t, "run", "-n4", "--mpi=pmi2", program, "ok"); r.code != 0 {
			t.Fatal(r)
		}
		if x := n.explained(t, n.lastEnded(t).id(), "all of its tasks ended well"); x.MPI != nil || len(x.Findings) != 0 {
			t.Errorf("got %+v", x)
		}
	})
}

// TestRootExplain: what explain says of other ends.
func TestRootExplain(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	for _, c := range []struct {
		name  string
		args  []string
		words []string
	}{
		{"no such command", []string{"-n2", "/none"}, []string{`exec: ranks 0-1 never ran: no such file or directory: "/none"`, "the file is not on the node"}},
		{"a file that cannot be opened", []string{"-n2", "-o", "/none/x", "true"}, []string{"never ran: no such file or directory: \"/none/x\" of a standard stream\n", "the directory \"/none\" does not exist"}},
		{"exit codes", []string{"-n3", "sh", "-c", "exit $SLURM_PROCID"}, []string{"rank 1: Exited with exit code 1", "rank 2: Exited with exit code 2"}},
		{"a signal of its own", []string{"sh", "-c", "kill -XCPU $$"}, []string{"rank 0: CPU time limit exceeded", "ulimit -t"}},
		{"kill on bad exit", []string{"-n2", "-K", "sh", "-c", "[ $SLURM_PROCID = 1 ] || { touch up; exec sleep 100; }; until [ -e up ]; do sleep 0.01; done; exit 9"}, []string{"exit: rank 1: Exited with exit code 9; --kill-on-bad-exit ended the others", "rank 0: Terminated, by the step's end"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := n.ctl(t, append([]string{"run"}, c.args...)...); r.code == 0 {
				t.Fatal(r)
			}
			n.explained(t, n.lastEnded(t).id(), c.words...)
		})
	}
	t.Run("stepd killed", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sleep", "100"}})
		step := n.running(t)
		must(t, unix.Kill(step.StepdPID, syscall.SIGKILL))
		p.wait(t)
		n.ended(t, step.id())
		n.explained(t, step.id(), "stepd", "SIGKILL")
	})
	t.Run("in its KillWait", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sh", "-c", "trap '' TERM; touch deaf; while :; do sleep 1; done"}})
		step := n.running(t)
		eventually(t, callTimeout, "the trap", func() error {
			_, err := os.Stat(filepath.Join(n.wd, "deaf"))
			return err
		})
		cancel := n.start(t, call{args: []string{"cancel", step.id()}, root: true})
		var said string
		eventually(t, callTimeout, "its end", func() error {
			if said = n.ctlRoot(t, "explain", step.id()).out; !strings.Contains(said, "is being ended") {
				return fmt.Errorf("explain says %q", said)
			}
			return nil
		})
		contains(t, "explain", said, "cancel: cancelled by uid 0: SIGTERM ", " ago, SIGKILL 1s after (KillWait)")
		cancel.wait(t)
		p.wait(t)
	})
	t.Run("suspended, and another's", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sleep", "100"}})
		step := n.running(t)
		if r := n.ctlRoot(t, "suspend", step.id()); r.code != 0 {
			t.Fatal(r)
		}
		n.explained(t, step.id(), "the step is suspended since", "by uid 0", "stepctl resume")
		if r := n.do(t, call{args: []string{"explain", step.id()}, uid: 65534}); r.code != 1 || !strings.Contains(r.err, "permission denied") {
			t.Errorf("another user: %v", r)
		}
		n.ctlRoot(t, "cancel", step.id())
		p.wait(t)
	})
	if r := n.ctl(t, "explain", "999.0"); r.code != 1 || !strings.Contains(r.err, `no such step "999.0"`) {
		t.Errorf("unknown step: %v", r)
	}
}

// TestRootExplainHook: a launch that hangs in a plugin, and one that a plugin has
// ended.
func TestRootExplainHook(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	so := buildRude(t, n)
	marks := n.markFile(t)
	n.stack(t, fmt.Sprintf("required %s hook=user_init do=hang mark=%s", so, marks))
	p := n.start(t, call{args: []string{"run", "true"}})
	eventually(t, callTimeout, "the hook", func() error {
		if !strings.Contains(readFile(t, marks), " user_init ") {
			return fmt.Errorf("not entered yet")
		}
		return nil
	})
	id := n.last(t).id()
	x := n.explained(t, id, "the step is being launched: it is at stage user_init for ", `"rude.so": slurm_spank_user_init has not returned for `, "HookTimeout")
	if x.Stage == nil || x.Stage.Name != "user_init" || x.State != "STARTING" {
		t.Errorf("got %+v", x)
	}
	n.ctl(t, "cancel", id)
	p.wait(t)
	n.ended(t, id)
	n.stack(t, fmt.Sprintf("required %s hook=user_init do=segv mark=%s", so, marks))
	if r := n.ctl(t, "run", "true"); r.code != 1 {
		t.Fatal(r)
	}
	n.explained(t, n.lastEnded(t).id(), "plugin: killed by SIGSEGV at rude.so+0x", " in slurm_spank_user_init\n", "it is required: no step runs without it")
}

// TestRootExplainKilledStepd: of a start that hangs, noded knows how far the ranks
// are, should stepd be killed.
func TestRootExplainKilledStepd(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	p := n.start(t, call{args: []string{"run", "-n2", "--mpi=pmi2", "bash", "-c", pmi1(t, `hello; [ $PMI_RANK = 0 ] || exec sleep 1000; ask 'cmd=barrier_in'`)}})
	var stepd int
	eventually(t, callTimeout, "noded to know that rank 0 waits", func() error {
		steps := n.ps(t)
		if len(steps) == 0 {
			return fmt.Errorf("there is no step")
		}
		stepd = steps[0].StepdPID
		if r := n.ctl(t, "show", "--json", steps[0].id()); !strings.Contains(r.out, `"waiting"`) {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	must(t, syscall.Kill(stepd, syscall.SIGKILL))
	if r := p.wait(t); r.code != 1 {
		t.Errorf("run: %v", r)
	}
	n.ended(t, "1.0")
	doc := n.explained(t, "1.0", "stepd", "SIGKILL", "rank 0")
	if doc.MPI == nil || len(doc.MPI.Missing) != 1 || doc.MPI.Missing[0].Rank != 1 {
		t.Errorf("how far the ranks were: %+v", doc.MPI)
	}
}
