package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hydra takes the time limit from MPIEXEC_TIMEOUT.
func hydra() launcher {
	return launcher{name: "hydra", spare: 10 * time.Second, argv: func(np int) []string {
		return []string{"mpiexec.hydra", "-n", fmt.Sprint(np)}
	}}
}

// stepctl starts a noded of its own, which stop ends. It has more CPUs than the
// machine, as tests that spawn want more.
func stepctl(bin string) (l launcher, stop func(), err error) {
	dir, err := os.MkdirTemp("/var/tmp", "stepd-mpisuite")
	if err != nil {
		return l, nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return l, nil, err
	}
	conf := filepath.Join(dir, "slurm.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "ClusterName=suite\nNodeName=%s CPUs=256\n", host), 0o644); err != nil {
		return l, nil, err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return l, nil, err
	}
	run := filepath.Join(dir, "run")
	noded := exec.Command(filepath.Join(bin, "noded"), "-f", conf, "--run-dir", run, "--spool-dir", filepath.Join(dir, "spool"))
	stderr, err := noded.StderrPipe()
	if err != nil {
		return l, nil, err
	}
	if err := noded.Start(); err != nil {
		return l, nil, fmt.Errorf("cannot start noded: %w", err)
	}
	stop = func() {
		_ = noded.Process.Signal(unix.SIGTERM) // it may have ended
		_ = noded.Wait()                       // nothing depends on how
		_ = os.RemoveAll(dir)                  // temporary
	}
	for sc := bufio.NewScanner(stderr); sc.Scan(); {
		if !strings.Contains(sc.Text(), "noded: ready") {
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, stderr) }() // to its end of file
		return launcher{name: "stepctl", argv: func(np int) []string {
			return []string{filepath.Join(bin, "stepctl"), "--socket", filepath.Join(run, "noded.sock"), "run", "--mpi=pmi2", "-n", fmt.Sprint(np)}
		}}, stop, nil
	}
	stop()
	return l, nil, fmt.Errorf("noded ended before it was ready: %v", noded.ProcessState)
}
