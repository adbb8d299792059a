package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// onlyMany is throughput and runMany, with a directory of their own.
func onlyMany(bin string, quick bool) error {
	dir, err := os.MkdirTemp("", "stepd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := startNoded(bin, filepath.Join(dir, "steps"), 64)
	if err != nil {
		return err
	}
	slurm, slurmErr := startSlurm(dir)
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "what\ttasks\tN\tmedian\tp90\tpeer\tpeer's median\tratio")
	err = throughput(w, n, slurm, slurmErr, quick)
	w.Flush()
	n.stop()
	if slurmErr == nil {
		slurm.stop()
	}
	if err != nil {
		return err
	}
	return runMany(bin, dir, quick)
}

// runMany is what many steps beside each other cost noded, and how soon a noded that
// was killed has them again.
func runMany(bin, dir string, quick bool) error {
	steps, runs := 1000, 7
	if quick {
		steps, runs = 100, 3
	}
	dir = filepath.Join(dir, "many")
	n, err := startNoded(bin, dir, steps)
	if err != nil {
		return err
	}
	defer func() { n.stop() }()
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "what\tsteps\tN\tmedian\tp90\tpeer")
	var none, all adoption
	if err := none.measure(n, dir, 0, runs); err != nil {
		return err
	}
	none.rows(w)
	w.Flush()
	began := time.Now()
	if err := n.sleepers(steps); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	fmt.Fprintf(w, "batch jobs that sleep, from the first's submission until all run\t%d\t1\t%.1f s\t%.0f /s\t\n", steps, took, float64(steps)/took)
	if err := memoryRow(w, "of the noded that has started them", steps, n.pid()); err != nil {
		return err
	}
	if err := all.measure(n, dir, steps, runs); err != nil {
		return err
	}
	all.rows(w)
	more := float64(all.memory[0].at(0.5)) - float64(none.memory[0].at(0.5))
	fmt.Fprintf(w, "noded's memory, proportional: a step adds\t%d\t%d\t%.1f kB\t\t\n", steps, runs, more/float64(steps))
	return nil
}

// memoryKinds are the fields of smaps_rollup(5), and what they are called.
var memoryKinds = [...]struct{ field, name string }{{"Pss:", "proportional"}, {"Rss:", "resident"}, {"Anonymous:", "its own"}}

// adoption is what nodeds that were killed and started again have taken.
type adoption struct {
	steps  int
	ready  series
	memory [len(memoryKinds)]series // kB
}

// measure kills noded and starts it again, so many times. All steps must be there then.
func (a *adoption) measure(n *noded, dir string, steps, runs int) error {
	a.steps = steps
	for range runs {
		took, err := n.again(dir)
		if err != nil {
			return err
		}
		a.ready = append(a.ready, uint64(took))
		for i, k := range memoryKinds {
			kb, err := memoryOf(n.pid(), k.field)
			if err != nil {
				return err
			}
			a.memory[i] = append(a.memory[i], kb)
		}
		tasks := 0
		for _, k := range n.running() {
			tasks += k
		}
		if tasks != steps { // of a step that did not say how it is, none is known to run
			return fmt.Errorf("noded has found %d of %d tasks again", tasks, steps)
		}
	}
	return nil
}

func (a *adoption) rows(w io.Writer) {
	fmt.Fprintf(w, "exec of a noded to ready, all steps adopted, after kill -9\t%d\t%d\t%s\t%s\tslurmd: not measured: it does not follow its steps\n",
		a.steps, len(a.ready), ms(a.ready.at(0.5)), ms(a.ready.at(0.9)))
	for i, k := range memoryKinds {
		fmt.Fprintf(w, "noded's memory, %s\t%d\t%d\t%s\t%s\t\n", k.name, a.steps, len(a.memory[i]), mb(a.memory[i].at(0.5)), mb(a.memory[i].at(0.9)))
	}
}

func mb(kb uint64) string { return fmt.Sprintf("%.1f MB", float64(kb)/1024) }

// memoryRow is the memory of one process, once.
func memoryRow(w io.Writer, of string, steps, pid int) error {
	for _, k := range memoryKinds {
		kb, err := memoryOf(pid, k.field)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "noded's memory, %s, %s\t%d\t1\t%s\t\t\n", k.name, of, steps, mb(kb))
	}
	return nil
}

// sleepers submits batch jobs that sleep, and waits until all of them run. noded is not
// asked for it: what an answer takes would be in its memory.
func (n *noded) sleepers(count int) error {
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
		if countOf("sleep\x003601\x00") == count {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	return fmt.Errorf("not all of %d jobs run", count)
}

// countOf counts the processes with that command line.
func countOf(cmdline string) (count int) {
	for _, pid := range pids() {
		if b, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil && string(b) == cmdline {
			count++
		}
	}
	return count
}

// again kills noded and starts the next one. It returns the time from its exec until it
// serves, all steps taken back.
func (n *noded) again(dir string) (time.Duration, error) {
	if err := n.cmd.Process.Signal(unix.SIGKILL); err != nil {
		return 0, err
	}
	n.cmd.Wait()
	began := time.Now()
	next, err := serve(n.bin, dir, "-f", filepath.Join(dir, "slurm.conf"))
	if err != nil {
		return 0, err
	}
	n.cmd = next.cmd
	return time.Since(began), nil
}

// memoryOf is one figure of a process's memory, in kB.
func memoryOf(pid int, field string) (kb uint64, err error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	for _, l := range lines(path) {
		if text, ok := strings.CutPrefix(l, field); ok {
			_, err = fmt.Sscan(text, &kb)
			return kb, err
		}
	}
	return 0, fmt.Errorf("cannot read %q of %q", field, path)
}
