package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hydra takes the time limit from MPIEXEC_TIMEOUT.
func hydra() launcher {
	return launcher{name: "hydra", spare: 10 * time.Second, command: here(func(np int) []string {
		return []string{"mpiexec.hydra", "-n", fmt.Sprint(np)}
	})}
}

// jobCPUs are what the job has that all tests run in: MPI_UNIVERSE_SIZE, too. Tests
// that spawn pass without spawning where it is as small as their world.
const jobCPUs = 128

// stepctl starts a noded and holds a job. stop ends both.
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
	if err := os.WriteFile(conf, fmt.Appendf(nil, "ClusterName=suite\nNodeName=%s CPUs=%d\n", host, jobCPUs), 0o644); err != nil {
		return l, nil, err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return l, nil, err
	}
	run := filepath.Join(dir, "run")
	noded, _, err := startUntil("noded: ready", filepath.Join(bin, "noded"), "-f", conf, "--run-dir", run, "--spool-dir", filepath.Join(dir, "spool"))
	if err != nil {
		return l, nil, err
	}
	ctl := []string{filepath.Join(bin, "stepctl"), "--socket", filepath.Join(run, "noded.sock")}
	stopNoded := func() {
		end(noded)
		_ = os.RemoveAll(dir) // temporary
	}
	holder, said, err := startUntil("job=", append(slices.Clone(ctl), "alloc", "-Q", "-n", fmt.Sprint(jobCPUs), "sh", "-c", "echo job=$SLURM_JOB_ID >&2; exec sleep infinity")...)
	if err != nil {
		stopNoded()
		return l, nil, err
	}
	job := strings.TrimPrefix(strings.TrimSpace(said), "job=")
	return launcher{name: "stepctl", command: here(func(np int) []string {
			return append(slices.Clone(ctl), "run", "--jobid", job, "--mpi=pmi2", "-n", fmt.Sprint(np))
		})}, func() {
			end(holder) // alloc passes it on
			stopNoded()
		}, nil
}

// startUntil starts a program and waits for the line of its stderr that has the word.
func startUntil(word string, argv ...string) (*exec.Cmd, string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("cannot start %q: %w", argv, err)
	}
	for sc := bufio.NewScanner(stderr); sc.Scan(); {
		if strings.Contains(sc.Text(), word) {
			go func() { _, _ = io.Copy(io.Discard, stderr) }() // to its end of file
			return cmd, sc.Text(), nil
		}
	}
	return nil, "", fmt.Errorf("%q ended before it said %q: %v", argv, word, cmd.Wait())
}

// end is for a daemon whose end nothing depends on.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(unix.SIGTERM)
	_ = cmd.Wait()
}
