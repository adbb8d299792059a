package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pmixPrograms compiles pmixtool and pmixrank, and returns their folder.
func pmixPrograms(t testing.TB, n *node) string {
	t.Helper()
	words, err := exec.Command("pkg-config", "--cflags", "--libs", "pmix").Output()
	if err != nil {
		missing(t, "no pmix.h: apt-get install gcc pkg-config libpmix-dev")
	}
	dir := n.path("pmix-programs")
	must(t, os.MkdirAll(dir, 0o755))
	for _, p := range []string{"pmixtool", "pmixrank"} {
		args := append([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, p), "mpi/" + p + ".c"}, strings.Fields(string(words))...)
		if out, err := exec.Command("gcc", append(args, "-lpthread")...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %s: %v\n%s", p, err, out)
		}
	}
	return dir
}

// pmixStep is a step that runs, whose output is in a file.
type pmixStep struct {
	*process
	n        *node
	dir, out string
	doc      stepDoc
}

// startPMIx starts pmixrank with the arguments, which run until they are asked to end,
// and returns when its output has so many lines that begin with the word.
func startPMIx(t testing.TB, n *node, dir string, env []string, options []string, word string, lines int, args ...string) *pmixStep {
	t.Helper()
	s := newPMIx(t, n, dir, env, options, args...)
	if lines > 0 {
		s.says(t, word, lines)
	}
	s.doc = n.running(t)
	return s
}

// runPMIx runs pmixrank with arguments with which it ends by itself.
func runPMIx(t testing.TB, n *node, dir string, options []string, args ...string) (*pmixStep, result) {
	t.Helper()
	s := newPMIx(t, n, dir, nil, options, args...)
	r := s.wait(t)
	s.doc = n.last(t)
	return s, r
}

// newPMIx starts pmixrank.
func newPMIx(t testing.TB, n *node, dir string, env []string, options []string, args ...string) *pmixStep {
	t.Helper()
	s := &pmixStep{n: n, dir: dir, out: filepath.Join(n.wd, "pmix.out")}
	os.Remove(s.out)
	run := append(append([]string{"run", "--mpi=pmix", "-o", s.out}, options...), filepath.Join(dir, "pmixrank"))
	s.process = n.start(t, call{args: append(run, args...), env: env})
	return s
}

// says waits until the output has so many lines that begin with the word.
func (s *pmixStep) says(t testing.TB, word string, lines int) string {
	t.Helper()
	var text string
	eventually(t, callTimeout, fmt.Sprintf("%d lines of %q", lines, word), func() error {
		b, err := os.ReadFile(s.out)
		text = string(b)
		if n := strings.Count("\n"+text, "\n"+word); err != nil || n < lines {
			return fmt.Errorf("%v, %q", err, text)
		}
		return nil
	})
	return text
}

// tool runs pmixtool against the server of a node of the step.
func (s *pmixStep) tool(t testing.TB, at *node, c call, args ...string) result {
	t.Helper()
	uri := "file:" + filepath.Join(at.run, "pmix", s.doc.id(), "uri")
	c.program, c.args = filepath.Join(s.dir, "pmixtool"), append([]string{uri}, args...)
	return at.do(t, c)
}

// TestRootPMIxTool: tools attach to a step's PMIx server as a debugger does: the
// step's user and root, no other user.
func TestRootPMIxTool(t *testing.T) {
	n := startNode(t, site{})
	dir := pmixPrograms(t, n)
	t.Run("table and signals", func(t *testing.T) {
		s := startPMIx(t, n, dir, nil, []string{"-n", "3"}, "up ", 3, "wait")
		nspace := "slurm.pmix." + s.doc.id()
		for _, c := range []call{{}, {root: true}} {
			r := s.tool(t, n, c, "table")
			for _, task := range s.doc.Tasks {
				contains(t, "table", r.out, fmt.Sprintf("%s %d %s %d %s state 6 exit 0\n", nspace, task.Rank, s.doc.Node, *task.PID, filepath.Join(dir, "pmixrank")))
			}
			contains(t, "table", r.out, "I am "+nspace+".tool.", "status 0\n")
		}
		// The address is no secret, and no key.
		b, err := os.ReadFile(filepath.Join(n.run, "pmix", s.doc.id(), "uri"))
		must(t, err)
		uri, _, _ := strings.Cut(string(b), "\n")
		if r := n.do(t, call{uid: 54321, program: filepath.Join(dir, "pmixtool"), args: []string{uri, "names"}}); r.code != 2 {
			t.Errorf("another user: %v", r)
		}
		contains(t, "names", s.tool(t, n, call{}, "names").out, "pmix.qry.ns "+nspace+"\n", "status 0\n")
		if pps, err := exec.LookPath("pps"); err != nil {
			missing(t, "no pps: apt-get install libpmix-bin")
		} else if r := n.do(t, call{program: pps, env: []string{
			"PMIX_SYSTEM_TMPDIR=" + filepath.Join(n.run, "pmix", s.doc.id()), "PMIX_HOSTNAME=" + s.doc.Node, // the host's own may be another
		}}); r.code != 0 || !strings.Contains(r.err, "Active nspaces: "+nspace+"\n") {
			t.Errorf("libpmix's own pps: %v", r)
		}
		contains(t, "status", s.tool(t, n, call{}, "status").out, "pmix.qry.jst 0\n", "status 0\n")
		contains(t, "another job", s.tool(t, n, call{}, "table", "slurm.pmix.999.0").out, "status -46\n")
		contains(t, "signal", s.tool(t, n, call{}, "signal", "10", "1").out, "status 0\n")
		s.says(t, "usr1 1", 1)
		contains(t, "end", s.tool(t, n, call{}, "end").out, "status 0\n")
		if r := s.wait(t); r.code != 143 {
			t.Errorf("the step: %v", r)
		}
		if doc := n.lastEnded(t); doc.State != "CANCELLED" || !strings.Contains(doc.Reason, `PMIx tool "`+nspace+`.tool.`) {
			t.Errorf("record: %s, %q", doc.State, doc.Reason)
		}
	})
	t.Run("wait for a debugger", func(t *testing.T) {
		s := startPMIx(t, n, dir, []string{"PMIX_DEBUG_STOP_IN_INIT=1"}, []string{"-n", "2"}, "", 0, "event", "-400")
		eventually(t, callTimeout, "the server's address", func() error {
			_, err := os.Stat(filepath.Join(n.run, "pmix", s.doc.id(), "uri"))
			return err
		})
		// PMIX_READY_FOR_DEBUG is kept for a tool that comes later.
		contains(t, "ready", s.tool(t, n, call{}, "watch", "-58").out, "event -58 of slurm.pmix."+s.doc.id())
		if b, _ := os.ReadFile(s.out); len(b) > 0 {
			t.Errorf("the ranks have not waited: %q", b)
		}
		contains(t, "release", s.tool(t, n, call{}, "release").out, "status 0\n")
		s.says(t, "up ", 2)
		contains(t, "notify", s.tool(t, n, call{}, "notify", "-400").out, "status 0\n")
		s.says(t, "event -400 of slurm.pmix."+s.doc.id()+".tool.", 2)
		if r := s.wait(t); r.code != 0 {
			t.Errorf("the step: %v", r)
		}
	})
	t.Run("a rank kills another", func(t *testing.T) {
		s, r := runPMIx(t, n, dir, []string{"-n", "3"}, "control", "kill", "1")
		if r.code != 137 {
			t.Errorf("the step: %v", r)
		}
		// Its words may come too late: the other's end is the step's.
		if b, err := os.ReadFile(s.out); err == nil && strings.Contains(string(b), "control ") && !strings.Contains(string(b), "control 0") {
			t.Errorf("rank 0 was told %q", b)
		}
		wantReason(t, n, s.doc.id(), "rank 1 ended (Killed)")
	})
	n.checkClean(t)
}
