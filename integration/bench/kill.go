package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// victim is a sleep that no other process of the machine is.
const victim = "36017"

// killer is one of the compared: how it starts a step of n sleeping tasks, who
// its daemon is, and how the step is ended.
type killer struct {
	name  string
	start func(n int) []string
	// daemon is the pid of the running step's daemon, and its id.
	daemon func() (pid int, id string, err error)
	end    func(id string) []string
}

// killTable is the time from the exec of the client that asks for a step's end to
// the exit of the step's daemon: then no process of the step is left, and its
// record is final. The tail is what counts here.
func (b *bench) killTable() error {
	sizes := b.sizes([]size{{1, 100}, {100, 40}, {1000, 10}}, []size{{1, 10}, {100, 5}, {1000, 2}}, []size{{1, 100}, {100, 20}, {1000, 5}})
	n, err := b.start("kill", 1000, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	w := b.table("what\tprocesses\tN\tp50\tp99\tpeer\tpeer's p50\tratio")
	for _, s := range sizes {
		for _, kind := range []struct{ what, signal string }{
			{"SIGKILL to empty cgroup and final record", "KILL"},
			{"cancel to empty cgroup and final record", ""},
		} {
			if err := b.killRow(w, n, s, kind.what, kind.signal); err != nil {
				return err
			}
		}
		w.Flush()
	}
	return nil
}

func (b *bench) killRow(w *tabwriter.Writer, n nodes, s size, what, signal string) error {
	rec, err := b.events()
	if err != nil {
		return err
	}
	slurm, slurmErr := b.slurm()
	of := make([]series, len(n))
	var peer series
	for i := range s.runs + 1 {
		err := n.turns(i, func(k int, node *noded) error {
			ns, err := measureKill(rec, s.n, node.killer(signal))
			if i > 0 { // the first of each warms the caches
				of[k] = append(of[k], float64(ns))
			}
			return err
		})
		if err != nil {
			return err
		}
		if i > 0 && slurmErr == nil {
			var ns uint64
			ns, slurmErr = measureKill(rec, s.n, slurm.killer(signal))
			peer = append(peer, float64(ns))
		}
	}
	if b.base != "" {
		b.beside(w, what, s.n, of, ms)
		return nil
	}
	own := of[0]
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\tslurmstepd\t", what, s.n, len(own), ms(own.at(0.5)), ms(own.at(0.99)))
	if slurmErr != nil {
		fmt.Fprintf(w, "not measured: %v\t\n", slurmErr)
		return nil
	}
	fmt.Fprintf(w, "%s (p99 %s)\t%.2f\n", ms(peer.at(0.5)), ms(peer.at(0.99)), own.at(0.5)/peer.at(0.5))
	return nil
}

// measureKill runs a step of n sleeping tasks and ends it.
func measureKill(rec *recorder, n int, k killer) (uint64, error) {
	argv := k.start(n)
	client := exec.Command(argv[0], argv[1:]...)
	if err := client.Start(); err != nil {
		return 0, err
	}
	defer func() { _ = client.Process.Kill(); _ = client.Wait() }() // it has ended where all is well
	if err := awaitVictims(n); err != nil {
		return 0, fmt.Errorf("%s: %w", k.name, err)
	}
	daemon, id, err := k.daemon()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", k.name, err)
	}
	if _, err := rec.take(); err != nil {
		return 0, err
	}
	argv = k.end(id)
	end := exec.Command(argv[0], argv[1:]...)
	if out, err := end.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%q: %w: %s", argv, err, out)
	}
	var took uint64
	_, err = settle(rec, func(ev []event) bool {
		t := newTree(ev)
		from, to := t.execs[end.Process.Pid], t.exits[daemon]
		if from == 0 || to == 0 {
			return false
		}
		took = to - from
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", k.name, err)
	}
	return took, awaitVictims(0)
}

// awaitVictims waits until exactly n of them sleep.
func awaitVictims(n int) error {
	for range 1000 {
		if countVictims() == n {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("there are %d of %d sleeping tasks", countVictims(), n)
}

func countVictims() int { return countOf("sleep\x00" + victim + "\x00") }

func (n *noded) killer(signal string) killer {
	ctl := func(args ...string) []string {
		return append([]string{filepath.Join(n.bin, "stepctl"), "--socket", n.socket}, args...)
	}
	return killer{
		name: "stepd",
		start: func(tasks int) []string {
			return n.run("-n", fmt.Sprint(tasks), "--overcommit", "-i", "none", "sleep", victim)
		},
		daemon: func() (int, string, error) {
			argv := ctl("ps", "--json")
			out, err := exec.Command(argv[0], argv[1:]...).Output()
			if err != nil {
				return 0, "", err
			}
			var doc struct {
				Steps []struct {
					JobID  int `json:"job_id"`
					StepID int `json:"step_id"`
					Stepd  int `json:"stepd_pid"`
				} `json:"steps"`
			}
			if err := json.Unmarshal(out, &doc); err != nil || len(doc.Steps) != 1 {
				return 0, "", fmt.Errorf("ps shows %d steps: %v", len(doc.Steps), err)
			}
			s := doc.Steps[0]
			return s.Stepd, fmt.Sprintf("%d.%d", s.JobID, s.StepID), nil
		},
		end: func(id string) []string {
			if signal != "" {
				return ctl("signal", "-s", signal, "--scope", "all", id)
			}
			return ctl("cancel", id)
		},
	}
}

func (s *slurm) killer(signal string) killer {
	return killer{
		name: "slurmstepd",
		start: func(tasks int) []string {
			return []string{"srun", "-Q", "--jobid", s.job, "-n", fmt.Sprint(tasks), "--overcommit", "-i", "none", "sleep", victim}
		},
		daemon: func() (int, string, error) {
			prefix := "slurmstepd: [" + s.job + "."
			for _, pid := range pids() {
				b, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
				if err != nil || !strings.HasPrefix(string(b), prefix) {
					continue
				}
				step, _, _ := strings.Cut(string(b)[len(prefix):], "]")
				if step == "extern" {
					continue
				}
				var n int
				_, err = fmt.Sscan(pid, &n)
				return n, s.job + "." + step, err
			}
			return 0, "", errors.New("no slurmstepd is running")
		},
		end: func(id string) []string {
			if signal != "" {
				return []string{"scancel", "-s", signal, id}
			}
			return []string{"scancel", id}
		},
	}
}
