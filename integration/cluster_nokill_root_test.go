package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fullDoc is what a step's record has beyond a stepDoc.
type fullDoc struct {
	stepDoc
	LostNodes []struct {
		Node, Reason string
	} `json:"lost_nodes"`
	StdoutBytes *int64 `json:"stdout_bytes"`
	StderrBytes *int64 `json:"stderr_bytes"`
}

func (n *node) showAll(t testing.TB, id string) (d fullDoc) {
	t.Helper()
	r := n.ctlRoot(t, "show", "--json", id)
	doc := struct {
		Step *fullDoc `json:"step"`
	}{&d}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 {
		t.Fatalf("stepctl show --json %s: %v, %v", id, err, r)
	}
	return d
}

// TestRootClusterNoKill: with --no-kill a step goes on without the nodes that are lost,
// and ends with what the others say; without it, it ends.
func TestRootClusterNoKill(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{site: site{Slurm: "KillWait=1\n", Stepd: "StepKeepalive=2\n"}})
	head := c.nodes[0]
	gate := filepath.Join(head.wd, "gate")
	const script = `while test ! -e gate; do sleep 0.05; done; echo $SLURMD_NODENAME; exit $SLURM_PROCID`
	start := func(t *testing.T, at *node, env []string, args ...string) (*process, stepDoc) {
		t.Helper()
		os.Remove(gate)
		p := at.start(t, call{env: env, args: append(append([]string{"run"}, args...), "sh", "-c", script)})
		return p, at.running(t)
	}
	open := func(t *testing.T) { t.Helper(); must(t, os.WriteFile(gate, nil, 0o644)) }
	lost := func(t *testing.T, at *node, rec stepDoc, names ...string) fullDoc {
		t.Helper()
		at.ended(t, rec.id())
		d := at.showAll(t, rec.id())
		var got []string
		for _, l := range d.LostNodes {
			got = append(got, l.Node)
		}
		if !slices.Equal(got, names) {
			t.Errorf("lost nodes %+v, want %q", d.LostNodes, names)
		}
		return d
	}
	// told waits until a node has gone on without another one, as its log tells.
	told := func(t *testing.T, at *node, rec stepDoc, name string) {
		t.Helper()
		eventually(t, callTimeout, "the loss of "+name, func() error {
			for line := range strings.Lines(at.log.String()) {
				if strings.Contains(line, fmt.Sprintf(`node \"%s\" is lost`, name)) && strings.Contains(line, "(--no-kill)") && strings.Contains(line, "step="+rec.id()) {
					return nil
				}
			}
			return errors.New("its log does not tell of it")
		})
	}
	t.Run("a stepd", func(t *testing.T) {
		p, rec := start(t, head, []string{"SLURM_NO_KILL=1"}, "-N3")
		must(t, killNow(c.nodes[1].findProcess(t, "stepd").pid))
		told(t, head, rec, "n2")
		open(t)
		r := p.wait(t)
		lines := strings.Fields(r.out)
		slices.Sort(lines)
		if r.code != 2 || !slices.Equal(lines, []string{"n1", "n3"}) {
			t.Errorf("run: %v", r)
		}
		contains(t, "stderr", r.err, `node "n2" is lost`, "(--no-kill)", "n3: task 2: Exited with exit code 2")
		d := lost(t, head, rec, "n2")
		if d.State != "FAILED" || d.Tasks[1].ExitCode != nil || d.Tasks[1].State != "EXITED" && d.Tasks[1].State != "FAILED" || *d.Tasks[2].ExitCode != 2 || d.StdoutBytes != nil {
			t.Errorf("record %+v", d)
		}
		c.settled(t)
	})
	t.Run("off", func(t *testing.T) {
		p, rec := start(t, head, []string{"SLURM_NO_KILL=1"}, "-N3", "--no-kill=off")
		must(t, killNow(c.nodes[1].findProcess(t, "stepd").pid))
		if r := p.wait(t); r.code == 0 || r.out != "" {
			t.Errorf("run: %v", r)
		}
		lost(t, head, rec)
		c.settled(t)
	})
	t.Run("the first node", func(t *testing.T) {
		// The head has no part: the client, too, is on a node that is not lost.
		p, rec := start(t, c.nodes[2], nil, "-k", "-w", "n[1-2]", "-o", "out.%t")
		must(t, killNow(c.nodes[0].findProcess(t, "stepd").pid))
		told(t, c.nodes[1], rec, "n1")
		open(t)
		if r := p.wait(t); r.code != 1 {
			t.Errorf("run: %v", r)
		} else {
			contains(t, "stderr", r.err, `node "n1" is lost`)
		}
		if got := readFile(t, filepath.Join(head.wd, "out.1")); got != "n2\n" {
			t.Errorf("rank 1 wrote %q", got)
		}
		lost(t, c.nodes[2], rec, "n1")
		c.settled(t)
	})
	t.Run("the network", func(t *testing.T) {
		p, rec := start(t, head, nil, "-k", "-N2", "-n2", "-w", "n[1-2]")
		c.cut(t, 1)
		told(t, head, rec, "n2")
		open(t)
		if r := p.wait(t); r.code != 0 || r.out != "n1\n" {
			t.Errorf("run: %v", r)
		}
		if d := lost(t, head, rec, "n2"); d.State != "COMPLETED" || !strings.Contains(d.Reason, `node "n2" is lost`) {
			t.Errorf("record %+v", d)
		}
		c.join(t, 1)
		c.settled(t)
	})
}

// TestRootClusterEndedPart: what is asked of a step's tasks is asked of those that run:
// those of a node that have ended are no error. What the tasks of all nodes write is
// counted, and who holds a stream of another node open is named.
func TestRootClusterEndedPart(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	head := c.nodes[0]
	t.Run("orders", func(t *testing.T) {
		p := head.start(t, call{args: []string{"run", "-N2", "sh", "-c", `test $SLURM_NODEID = 1 && exit; trap 'exit 5' USR1; touch trapped; while :; do sleep 0.05; done`}})
		rec := head.running(t)
		eventually(t, callTimeout, "the end of n2's task", func() error {
			if d := head.show(t, rec.id()); d.Tasks[1].State != "EXITED" {
				return fmt.Errorf("it is %s", d.Tasks[1].State)
			}
			_, err := os.Stat(filepath.Join(head.wd, "trapped"))
			return err
		})
		for _, args := range [][]string{{"signal", "-s", "CONT", rec.id()}, {"signal", "-s", "USR1", rec.id()}} {
			if r := head.ctl(t, args...); r.code != 0 {
				t.Errorf("%q: %v", args, r)
			}
		}
		if r := p.wait(t); r.code != 5 {
			t.Errorf("run: %v, want 5", r)
		}
	})
	t.Run("byte counts", func(t *testing.T) {
		r := head.ctl(t, "run", "-N2", "-n3", "sh", "-c", `printf 12345; printf ab >&2`)
		if d := head.showAll(t, head.lastEnded(t).id()); r.code != 0 || d.StdoutBytes == nil || *d.StdoutBytes != 15 || d.StderrBytes == nil || *d.StderrBytes != 6 {
			t.Errorf("counted %v and %v of %v", d.StdoutBytes, d.StderrBytes, r)
		}
		head.ctl(t, "run", "-N2", "-n2", "-o", "1", "-e", "err.%t", "sh", "-c", `printf 12345; printf ab >&2`)
		if d := head.showAll(t, head.lastEnded(t).id()); d.StdoutBytes == nil || *d.StdoutBytes != 5 || d.StderrBytes != nil {
			t.Errorf("of rank 1 and of files: %v and %v", d.StdoutBytes, d.StderrBytes)
		}
	})
}
