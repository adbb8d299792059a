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

// runMany is what many steps beside each other cost noded, and how soon a noded that
// was killed has them again.
func runMany(bin, dir string, quick bool) error {
	steps, runs := 1000, 5
	if quick {
		steps, runs = 100, 3
	}
	dir = filepath.Join(dir, "many")
	n, err := startNoded(bin, dir, 4*steps)
	if err != nil {
		return err
	}
	defer func() { n.stop() }()
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "what\tsteps\tN\tmedian\tp90\tpeer")
	const peer = "slurmd: not measured: it does not follow its steps"
	for _, count := range []int{0, steps} {
		began := time.Now()
		if err := n.sleepers(count); err != nil {
			return err
		}
		if count > 0 {
			fmt.Fprintf(w, "batch jobs that sleep, submitted and running\t%d\t1\t%.1f s\t\t\n", count, time.Since(began).Seconds())
		}
		var own, ready series
		for range runs {
			kb, err := anonymous(n.pid())
			if err != nil {
				return err
			}
			own = append(own, uint64(kb))
			took, err := n.again(dir)
			if err != nil {
				return err
			}
			ready = append(ready, uint64(took))
			if found := len(n.running()); found != count {
				return fmt.Errorf("noded has found %d of %d steps again", found, count)
			}
		}
		fmt.Fprintf(w, "noded's own memory\t%d\t%d\t%.1f MB\t%.1f MB\t\n", count, runs, float64(own.at(0.5))/1024, float64(own.at(0.9))/1024)
		fmt.Fprintf(w, "exec of a noded to ready, after kill -9\t%d\t%d\t%s\t%s\t%s\n", count, runs, ms(ready.at(0.5)), ms(ready.at(0.9)), peer)
		w.Flush()
	}
	return nil
}

// sleepers submits batch jobs that sleep, and waits until all of them run.
func (n *noded) sleepers(count int) error {
	const workers = 4
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			var err error
			for i := w; i < count && err == nil; i += workers {
				cmd := exec.Command(filepath.Join(n.bin, "stepctl"), "--socket", n.socket, "batch", "-o", "/dev/null", "--wrap", "exec sleep 3600")
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
		tasks := 0
		for _, k := range n.running() {
			tasks += k
		}
		if tasks == count {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("not all of %d jobs run", count)
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

// anonymous is what a process has of its own in memory, in kB: pages of files may be
// dropped at any time.
func anonymous(pid int) (kb int, err error) {
	for _, l := range lines(fmt.Sprintf("/proc/%d/status", pid)) {
		if text, ok := strings.CutPrefix(l, "RssAnon:"); ok {
			_, err = fmt.Sscan(text, &kb)
			return kb, err
		}
	}
	return 0, io.ErrUnexpectedEOF
}
