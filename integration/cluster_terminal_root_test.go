package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRootClusterTerminal: a step of several nodes, or of another one, has a terminal as
// that of this node has, and others see it and its output from each of the nodes.
func TestRootClusterTerminal(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{site: site{Slurm: "KillWait=1\n", Stepd: "ReplayBytes=65536\n"}})
	head := c.nodes[0]
	t.Run("another node", func(t *testing.T) {
		s := openTerminal(t, 33, 101)
		s.ctl(head, call{args: append([]string{"run", "--pty", "-w", "n2"}, shell...)})
		s.sees("$ ")
		id := head.running(t).id()
		head.cancelAtEnd(t, id)
		s.types("echo on $SLURMD_NODENAME; stat -c '%U %G %a' $(tty); stty size\n")
		s.sees("on n2\r\n" + alice.name + " tty 620\r\n33 101\r\n")
		s.sees("$ ")
		s.types("cat\nin front\n") // it writes what it reads once it is in the foreground
		s.sees("in front\r\nin front\r\n")
		s.types("\x1a")
		s.sees("Stopped")
		s.sees("$ ")
		s.types("fg\n")
		s.sees("cat\r\n")
		s.types("again\n") // as above
		s.sees("again\r\nagain\r\n")
		s.types("\x03")
		s.sees("^C")
		s.sees("$ ")
		s.resized(50, 132)
		s.types("number=41\n")
		s.sees("$ ")
		s.types("\x1dd")
		s.sees("detached")
		s.ends(0)
		// The node itself, and the head, which has no part of it.
		for _, n := range []*node{c.nodes[1], head} {
			again := openTerminal(t, 30, 90)
			again.ctl(n, call{args: []string{"attach", id}})
			again.sees("50 132\r\n$ number=41\r\n$ ")
			again.types("echo $((number+=1)); stty size\n")
			again.sees("\r\n30 90\r\n$ ")
			if n == head {
				again.types("exit 7\n")
				again.ends(7)
				break
			}
			again.types("\x1dd")
			again.ends(0)
		}
		if d := head.ended(t, id); d.State != "FAILED" || *d.ExitCode != 7 {
			t.Errorf("the step: %+v", d)
		}
	})
	t.Run("several nodes", func(t *testing.T) {
		s := openTerminal(t, 24, 80)
		s.ctl(head, call{args: []string{"run", "--pty", "-N2", "sh", "-c", `ls -l /proc/self/fd/0 >seen.$SLURM_PROCID; [ -t 1 ] && echo terminal of $SLURM_PROCID; seq 20000`}})
		s.sees("terminal of 0\r\n")
		s.sees("\r\n20000\r\n")
		s.ends(0)
		if strings.Contains(s.shown(), "terminal of 1") || !strings.Contains(readFile(t, filepath.Join(head.wd, "seen.1")), "/dev/null") {
			t.Errorf("task 1 has it too: %q", s.shown())
		}
		c.settled(t)
		s = openTerminal(t, 24, 80)
		s.ctl(head, call{args: []string{"run", "--pty", "-N2", "sleep", "1000"}})
		rec := head.running(t)
		head.cancelAtEnd(t, rec.id())
		must(t, killNow(c.nodes[1].findProcess(t, "stepd").pid))
		s.sees("n2")
		if r := s.p.wait(t); r.code == 0 {
			t.Errorf("a stepd was killed: %v", r)
		}
		s.restored()
	})
	t.Run("output", func(t *testing.T) {
		// Read by a pipe of the test's: the tasks' own descriptors are elsewhere.
		p := head.start(t, call{args: []string{"run", "-N3", "-n3", "sh", "-c", `echo early $SLURM_PROCID; while test $SLURM_PROCID != 0 -a ! -e go; do sleep 0.05; done; echo late $SLURM_PROCID; exit 3`}})
		id := head.running(t).id()
		head.cancelAtEnd(t, id)
		eventually(t, callTimeout, "what is kept", func() error {
			if r := head.ctl(t, "output", id); strings.Count(r.out, "early") != 3 {
				return errors.New(r.String())
			}
			return nil
		})
		null, err := os.Open(os.DevNull)
		must(t, err)
		defer null.Close()
		var watchers []*process
		var files []*os.File
		for _, n := range []*node{head, c.nodes[2]} {
			f, err := os.CreateTemp(t.TempDir(), n.name)
			must(t, err)
			defer f.Close()
			files = append(files, f)
			watchers = append(watchers, n.start(t, call{files: []*os.File{null, f, f}, args: []string{"attach", "-l", id}}))
		}
		if r := c.nodes[1].do(t, call{args: []string{"attach", id}, uid: bob.uid}); r.code != 1 || !strings.Contains(r.err, "ermission denied") {
			t.Errorf("another user: %v", r)
		}
		eventually(t, callTimeout, "the watchers", func() error {
			for _, f := range files {
				if got := readFile(t, f.Name()); !strings.Contains(got, "early") {
					return fmt.Errorf("%q", got)
				}
			}
			return nil
		})
		must(t, os.WriteFile(filepath.Join(head.wd, "go"), nil, 0o644))
		for i, w := range watchers {
			r := w.wait(t)
			r.out = readFile(t, files[i].Name())
			for rank := range 3 {
				contains(t, "what a watcher sees", r.out, fmt.Sprintf("%d: early %d\n", rank, rank), fmt.Sprintf("%d: late %d\n", rank, rank))
			}
			if r.code != 3 {
				t.Errorf("attach: %v", r)
			}
		}
		if r := p.wait(t); r.code != 3 {
			t.Errorf("run: %v", r)
		}
	})
}
