package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// manyTable is what many steps beside each other cost noded, and how soon a noded that
// was killed has them again.
func (b *bench) manyTable() error {
	// Beside another release both nodeds have so many.
	z := b.sizes([]size{{1000, 7}}, []size{{100, 3}}, []size{{400, 7}})[0]
	n, err := b.start("many", z.n, nil)
	if err != nil {
		return err
	}
	defer func() { n.stop() }()
	w := b.table("beside slurmd: not measured: it does not follow its steps\tsteps\tN\tmedian\tp90")
	defer w.Flush()
	var none, all adoption
	if err := none.measure(n, 0, z.runs); err != nil {
		return err
	}
	none.rows(b, w)
	w.Flush()
	begun, fresh := make([]series, len(n)), make([]series, len(n))
	err = n.turns(0, func(k int, node *noded) error {
		start := time.Now()
		if err := node.sleepers(z.n, (k+1)*z.n); err != nil {
			return err
		}
		begun[k] = series{float64(time.Since(start)) / float64(z.n)}
		kb, err := memoryOf(node.pid(), memoryKinds[0].field)
		fresh[k] = series{kb}
		return err
	})
	if err != nil {
		return err
	}
	b.row(w, "batch jobs that sleep, from the first's submission until all run", z.n, begun, perSecond)
	b.row(w, "noded's memory, proportional, of the noded that has started them", z.n, fresh, mb)
	w.Flush()
	if err := all.measure(n, z.n, z.runs); err != nil {
		return err
	}
	all.rows(b, w)
	more := make([]series, len(n))
	for k := range n {
		more[k] = series{(all.memory[0][k].at(0.5) - none.memory[0][k].at(0.5)) / float64(z.n)}
	}
	b.row(w, "noded's memory, proportional: a step adds", z.n, more, func(kb float64) string { return fmt.Sprintf("%.1f kB", kb) })
	return nil
}

// memoryKinds are the fields of smaps_rollup(5), and what they are called.
var memoryKinds = [...]struct{ field, name string }{{"Pss:", "proportional"}, {"Rss:", "resident"}, {"Anonymous:", "its own"}}

// adoption is what nodeds that were killed and started again have taken.
type adoption struct {
	steps  int
	ready  []series
	memory [len(memoryKinds)][]series // kB
}

// measure kills each noded and starts it again, so many times. All of its steps must be
// there then.
func (a *adoption) measure(n nodes, steps, runs int) error {
	a.steps, a.ready = steps, make([]series, len(n))
	for i := range a.memory {
		a.memory[i] = make([]series, len(n))
	}
	for round := range runs {
		err := n.turns(round, func(k int, node *noded) error {
			took, err := node.again()
			if err != nil {
				return err
			}
			a.ready[k] = append(a.ready[k], float64(took))
			for i, kind := range memoryKinds {
				kb, err := memoryOf(node.pid(), kind.field)
				if err != nil {
					return err
				}
				a.memory[i][k] = append(a.memory[i][k], kb)
			}
			tasks := 0
			for _, count := range node.running() {
				tasks += count
			}
			if tasks != steps { // of a step that did not say how it is, none is known to run
				return fmt.Errorf("noded has found %d of %d tasks again", tasks, steps)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *adoption) rows(b *bench, w io.Writer) {
	b.row(w, "exec of a noded to ready, all steps adopted, after kill -9", a.steps, a.ready, ms)
	for i, kind := range memoryKinds {
		b.row(w, "noded's memory, "+kind.name, a.steps, a.memory[i], mb)
	}
}

// sleepers submits batch jobs that sleep, and waits until all of them run, which are
// then so many on the machine. noded is not asked for it: what an answer takes would be
// in its memory.
func (n *noded) sleepers(count, all int) error {
	const workers = 4
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			var err error
			for i := w; i < count && err == nil; i += workers {
				cmd := exec.Command(filepath.Join(n.bin, "stepctl"), "--socket", n.socket, "batch", "-o", "/dev/null", "--wrap", "exec sleep 3601")
				cmd.Dir = "/"
				if out, e := cmd.CombinedOutput(); e != nil {
					err = fmt.Errorf("%w: %s", e, out)
				}
			}
			errs <- err
		}()
	}
	var err error
	for range workers {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return err
	}
	for range 600 {
		if countOf("sleep\x003601\x00") == all {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	return fmt.Errorf("not all of %d jobs run", count)
}

// countOf counts the processes with that command line: a release starts "sleep" as that, or by the
// path that its client has found for it.
func countOf(cmdline string) (count int) {
	for _, pid := range pids() {
		if b, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil && (string(b) == cmdline || strings.HasSuffix(string(b), "/"+cmdline)) {
			count++
		}
	}
	return count
}

// again kills noded and starts the next one. It returns the time from its exec until it
// serves, all steps taken back.
func (n *noded) again() (time.Duration, error) {
	if err := n.cmd.Process.Signal(unix.SIGKILL); err != nil {
		return 0, err
	}
	n.cmd.Wait()
	began := time.Now()
	next, err := serve(n.bin, n.dir, "-f", filepath.Join(n.dir, "slurm.conf"))
	if err != nil {
		return 0, err
	}
	n.cmd = next.cmd
	return time.Since(began), nil
}

// memoryOf is one figure of a process's memory, in kB.
func memoryOf(pid int, field string) (kb float64, err error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	for _, l := range lines(path) {
		if text, ok := strings.CutPrefix(l, field); ok {
			_, err = fmt.Sscan(text, &kb)
			return kb, err
		}
	}
	return 0, fmt.Errorf("cannot read %q of %q", field, path)
}
