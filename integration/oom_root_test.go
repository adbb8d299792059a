package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// oomDoc is what a STEP document says of want of memory.
type oomDoc struct {
	State  string
	Reason string
	Code   *int `json:"exit_code"`
	OOM    []struct {
		Rank    *int
		PID     int
		Command string
		Level   string
		Limit   *uint64 `json:"limit_bytes"`
		Peak    *uint64 `json:"peak_bytes"`
	}
}

// oom waits until noded has the step's result, which the client may have got
// before.
func (n *node) oom(t testing.TB, id string) oomDoc {
	t.Helper()
	var doc struct{ Step oomDoc }
	eventually(t, callTimeout, "the result of step "+id, func() error {
		r := n.ctlRoot(t, "show", "--json", id)
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
			return fmt.Errorf("show: %w: %v", err, r)
		}
		if doc.Step.Code == nil {
			return fmt.Errorf("its state is %s", doc.Step.State)
		}
		return nil
	})
	return doc.Step
}

// A process that the kernel kills for want of memory is named, with its rank and
// the level whose limit it was: to the user, in the record, in the event log.
func TestRootOutOfMemory(t *testing.T) {
	waits(t)
	n := startNode(t, site{
		Slurm:  "SelectTypeParameters=CR_Core_Memory\n",
		Stepd:  "MetricsListen=unix\n",
		Cgroup: "ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n",
	})
	// tail keeps a line whole, however long it is.
	const hog = "exec tail </dev/zero"
	// Where job and step have the same limit, what is hit first is the job's.
	step := func(args ...string) []string {
		return append([]string{"alloc", "-Q", "-n2", "--mem=300M", n.bin, "run", "-n2", "--mem=64M"}, args...)
	}
	one := func(what string) string {
		return `if [ $SLURM_PROCID = 1 ]; then ` + what + `; else exec sleep 1.5; fi`
	}
	killed, ended := 0, 0 // as the records say
	for _, c := range []struct {
		name, level string
		limit       uint64
		code        int
		args        []string
		ranks       []int // who may have been hit
	}{
		{"the task itself", "step", 64 << 20, 137, step("sh", "-c", one(hog)), []int{1}},
		{"its child, and nobody cares", "step", 64 << 20, 253, step("sh", "-c", one("("+hog+"); exit 0")), []int{1}},
		{"its child, and the task fails by it", "step", 64 << 20, 3, step("sh", "-c", one("("+hog+") || exit 3")), []int{1}},
		{"at the job's limit", "job", 64 << 20, 137, []string{"alloc", "-Q", "-n2", "--mem=64M", n.bin, "run", "--mem=0", "-n2", "sh", "-c", one(hog)}, []int{1}},
		{"and all die with it", "step", 64 << 20, 137, step("--oom-kill-step", "sh", "-c", one(hog)+"; exec sleep 1000"), []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.ctl(t, c.args...)
			id := n.last(t).id()
			doc := n.oom(t, id)
			killed, ended = killed+len(doc.OOM), ended+1
			if r.code != c.code || doc.State != "OUT_OF_MEMORY" || doc.Code == nil || *doc.Code != c.code {
				t.Errorf("exit code %d, want %d; the record: %+v", r.code, c.code, doc)
			}
			if len(doc.OOM) == 0 {
				t.Fatalf("no process is named; stderr: %q", r.err)
			}
			k := doc.OOM[0]
			if k.Rank == nil || !slices.Contains(c.ranks, *k.Rank) || k.PID == 0 || k.Command == "" {
				t.Errorf("the victim is %+v", k)
			}
			switch {
			case k.Level != c.level:
				t.Errorf("the level is %q, want %q", k.Level, c.level)
			case k.Limit == nil || *k.Limit != c.limit || k.Peak == nil || *k.Peak < c.limit*9/10:
				t.Errorf("limit and peak: %+v", k)
			}
			line := fmt.Sprintf("stepd-vm: error: task %d: Out Of Memory: the kernel killed process %d (%q): the memory limit of the %s is reached (limit 64M, peak ", *k.Rank, k.PID, k.Command, k.Level)
			contains(t, "stderr", r.err, line)
			if !strings.HasPrefix(doc.Reason, "task ") || !strings.Contains(doc.Reason, "Out Of Memory") {
				t.Errorf("reason %q", doc.Reason)
			}
			contains(t, "the event log", n.ctlRoot(t, "events", id).out, `"event":"oom"`)
		})
	}
	// A kill by a user is no want of memory.
	r := n.ctl(t, "run", "--mem=64M", "sh", "-c", "kill -9 $$")
	if doc := n.oom(t, n.last(t).id()); r.code != 137 || doc.State != "FAILED" || len(doc.OOM) != 0 {
		t.Errorf("kill -9: %v, %+v", r, doc)
	}
	eventually(t, callTimeout, "the figures", func() error {
		_, text := n.page(t, "/metrics")
		for _, want := range []string{
			fmt.Sprintf("stepd_oom_kills_total %d", killed), fmt.Sprintf(`stepd_steps_ended_total{state="OUT_OF_MEMORY"} %d`, ended),
			`stepd_steps_ended_total{state="FAILED"} 1`, `stepd_steps_ended_total{state="NODE_FAIL"} 0`,
		} {
			if !strings.Contains(text, "\n"+want+"\n") {
				return fmt.Errorf("the page lacks %s:\n%s", want, ourLines(text))
			}
		}
		return nil
	})
}
