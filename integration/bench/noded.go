package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// noded is a private daemon for the benchmark.
type noded struct {
	cmd    *exec.Cmd
	bin    string
	dir    string
	socket string
	job    string    // what hold has got
	holder *exec.Cmd // and who holds it
}

// startNoded runs one in dir, which it makes, with the plugstack.conf in it,
// if it has one, and further lines of slurm.conf.
func startNoded(bin, dir string, maxTasks int, conf ...string) (*noded, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "slurm.conf")
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("ClusterName=bench\nNodeName=%s CPUs=%d\nMaxTasksPerNode=%d\n", host, max(maxTasks, 8), max(maxTasks, 512)) + strings.Join(conf, "\n") + "\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return serve(bin, dir, "-f", file)
}

// serve runs one in dir and returns when it is ready.
func serve(bin, dir string, args ...string) (*noded, error) {
	run := filepath.Join(dir, "run")
	n := &noded{bin: bin, dir: dir, socket: filepath.Join(run, "noded.sock")}
	n.cmd = exec.Command(filepath.Join(bin, "noded"), append(args, "--run-dir", run, "--spool-dir", filepath.Join(dir, "spool"))...)
	stderr, err := n.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start noded: %w", err)
	}
	sc := bufio.NewScanner(stderr)
	for sc.Scan() {
		if strings.Contains(sc.Text(), "noded: ready") {
			go io.Copy(io.Discard, stderr)
			return n, nil
		}
	}
	return nil, fmt.Errorf("noded ended before it was ready: %v", n.cmd.Wait())
}

func (n *noded) pid() int { return n.cmd.Process.Pid }

func (n *noded) run(args ...string) []string {
	return append([]string{filepath.Join(n.bin, "stepctl"), "--socket", n.socket, "run"}, args...)
}

// runInJob is a step of the job that hold has got.
func (n *noded) runInJob(args ...string) []string {
	return n.run(append([]string{"--jobid", n.job}, args...)...)
}

// hold gets a job of so many CPUs, until stop.
func (n *noded) hold(cpus int) error {
	n.holder = exec.Command(filepath.Join(n.bin, "stepctl"), "--socket", n.socket, "alloc", "-Q", "-n", fmt.Sprint(cpus),
		"sh", "-c", "echo $SLURM_JOB_ID; exec sleep 3600")
	out, err := n.holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.holder.Start(); err != nil {
		return fmt.Errorf("cannot allocate a job: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("cannot allocate a job: %w", err)
	}
	n.job = strings.TrimSpace(line)
	return nil
}

func (n *noded) stop() {
	if n.holder != nil {
		n.holder.Process.Signal(unix.SIGTERM) // alloc passes it on
		n.holder.Wait()
	}
	n.cancelAll()
	n.cmd.Process.Signal(unix.SIGTERM)
	n.cmd.Wait()
}

// running are the steps that have not ended, with how many tasks run.
func (n *noded) running() map[string]int {
	out, err := exec.Command(filepath.Join(n.bin, "stepctl"), "--socket", n.socket, "ps", "--json").Output()
	if err != nil {
		return nil
	}
	var doc struct {
		Steps []struct {
			JobID  int `json:"job_id"`
			StepID int `json:"step_id"`
			Tasks  []struct {
				State string `json:"state"`
			} `json:"tasks"`
		} `json:"steps"`
	}
	if json.Unmarshal(out, &doc) != nil {
		return nil
	}
	steps := map[string]int{}
	for _, s := range doc.Steps {
		id := fmt.Sprintf("%d.%d", s.JobID, s.StepID)
		steps[id] = 0
		for _, t := range s.Tasks {
			if t.State == "RUNNING" {
				steps[id]++
			}
		}
	}
	return steps
}

// cancelAll ends every step and waits until none is left.
func (n *noded) cancelAll() {
	for range 200 {
		steps := n.running()
		if len(steps) == 0 {
			return
		}
		args := append([]string{"--socket", n.socket, "cancel"}, slices.Sorted(maps.Keys(steps))...)
		exec.Command(filepath.Join(n.bin, "stepctl"), args...).Run()
		time.Sleep(50 * time.Millisecond)
	}
}

// stepMemory waits for the one step's tasks, and then for a second: of a launch that has just
// ended some memory is still to be given back. It sums the Pss of the step's stepd and its host, in
// kB.
func (n *noded) stepMemory(tasks int) (int, error) {
	// The tasks' own processes count; the record follows.
	if err := awaitSleepers(tasks); err != nil {
		return 0, err
	}
	time.Sleep(time.Second)
	for id := range n.running() {
		return n.pssOf("stepd", id) + n.pssOf("spankhost", id), nil
	}
	return 0, fmt.Errorf("the step of %d tasks has ended", tasks)
}

// awaitSleepers waits until so many tasks sleep on the machine: the benchmark's own.
func awaitSleepers(tasks int) error {
	for range 400 {
		time.Sleep(50 * time.Millisecond)
		if countOf("sleep\x0060\x00") >= tasks {
			return nil
		}
	}
	return fmt.Errorf("the step of %d tasks did not start", tasks)
}

// pssOf is the Pss of that program of ours in step id, in kB.
func (n *noded) pssOf(name, id string) int {
	sum := 0
	for _, pid := range pids() {
		b, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if err != nil || !strings.HasPrefix(string(b), name+": ["+id+"]") {
			continue
		}
		if exe, err := os.Readlink(filepath.Join("/proc", pid, "exe")); err != nil || exe != filepath.Join(n.bin, name) {
			continue // of another noded on this machine
		}
		sum += pss(pid)
	}
	return sum
}

// pss is a process's proportional set size, in kB; 0 of one that has ended.
func pss(pid string) (kb int) {
	for _, l := range lines(filepath.Join("/proc", pid, "smaps_rollup")) {
		if f := strings.Fields(l); len(f) == 3 && f[0] == "Pss:" {
			kb, _ = strconv.Atoi(f[1])
		}
	}
	return kb
}

func pids() (out []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, e.Name())
		}
	}
	return out
}

// lines is the text of a file as lines, none when it cannot be read.
func lines(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}
