package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"stepd/integration/slurm/cluster"
)

// inside is the argument of the bench's own program in a cluster: it runs commands there,
// so that what enters the namespaces is not measured.
const inside = "--inside"

// A request is a command to be timed; the reply is two numbers of milliseconds, the time and the
// command's processor time, or words.
type request struct {
	Args   []string
	Stdin  string // a file
	Prints bool   // its last line is the time, in microseconds
}

// serve runs requests, one a line.
func serve(in io.Reader, out io.Writer) int {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return 1
		}
		cmd := exec.Command(r.Args[0], r.Args[1:]...)
		if r.Stdin != "" {
			f, err := os.Open(r.Stdin)
			if err != nil {
				return 1
			}
			cmd.Stdin = f
			defer f.Close()
		}
		var said, printed strings.Builder
		cmd.Stderr = &said
		if r.Prints {
			cmd.Stdout = &printed
		}
		began := time.Now()
		err := cmd.Run()
		took := time.Since(began)
		if err != nil {
			fmt.Fprintf(out, "%s: %v: %s\n", r.Args[0], err, strings.ReplaceAll(said.String(), "\n", " "))
			continue
		}
		if r.Prints {
			words := strings.Fields(printed.String())
			us, err := strconv.Atoi(strings.Join(words[max(0, len(words)-1):], ""))
			if err != nil {
				fmt.Fprintf(out, "%s prints %q\n", r.Args[0], words)
				continue
			}
			took = time.Duration(us) * time.Microsecond
		}
		used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		fmt.Fprintf(out, "%g %g\n", float64(took.Microseconds())/1000, float64(used.Microseconds())/1000)
	}
	return 0
}

// side is a cluster with an allocation in it.
type side struct {
	cluster *cluster.Cluster
	job     string
	ask     io.WriteCloser
	replies *bufio.Reader
	server  *exec.Cmd
}

func begin(ctx context.Context, site cluster.Site) (*side, error) {
	c, err := cluster.Start(ctx, site)
	if err != nil {
		return nil, err
	}
	s := &side{cluster: c}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return s, nil
}

func (s *side) prepare(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(s.cluster.Path("bench"), data, 0o755)
	}
	if err == nil {
		err = os.WriteFile(s.cluster.Path("stdin"), make([]byte, 50e6), 0o644)
	}
	if err != nil {
		return err
	}
	script := fmt.Sprintf("salloc -Q --no-shell -N%d -n64 -t 60 && squeue -h -o %%i", max(1, len(s.cluster.Nodes())))
	out, err := s.cluster.Command(ctx, "alice", "sh", "-c", script).Output()
	if err != nil {
		return fmt.Errorf("cannot get an allocation: %w", err)
	}
	s.job = strings.TrimSpace(string(out))
	s.server = s.cluster.Command(ctx, "alice", s.cluster.Path("bench"), inside)
	s.server.Stderr = os.Stderr
	if s.ask, err = s.server.StdinPipe(); err != nil {
		return err
	}
	replies, err := s.server.StdoutPipe()
	if err != nil {
		return err
	}
	s.replies = bufio.NewReader(replies)
	return s.server.Start()
}

// compile puts the program of MPI into the cluster's folder, once.
func (s *side) compile() error {
	if _, err := os.Stat(s.cluster.Path("fences")); err == nil {
		return nil
	}
	const source = "integration/slurm/testdata/mpi/fences.c"
	if out, err := exec.Command("gcc", "-O1", "-o", s.cluster.Path("fences"), source, "-lpmi2").CombinedOutput(); err != nil {
		return fmt.Errorf("cannot compile %q: %w: %s", source, err, out)
	}
	return nil
}

func (s *side) end() {
	_ = s.ask.Close()
	_ = s.server.Wait()
	if err := s.cluster.Stop(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	}
}

// timing is how long a command has taken, in milliseconds, and its processor time.
type timing struct{ ms, cpu float64 }

// time measures a row once.
func (s *side) time(ctx context.Context, r row) (t timing, err error) {
	if r.batch {
		t.ms, err = s.turnaround(ctx)
		return t, err
	}
	q := request{Args: append([]string{"srun", "-Q", "--jobid", s.job, "--overlap", "-O"}, r.args...)}
	if words := strings.Fields(r.mpi); len(words) > 0 {
		if err := s.compile(); err != nil {
			return t, err
		}
		q.Args, q.Prints = append(append(q.Args, s.cluster.Path(words[0])), words[1:]...), true
	}
	if r.stdin > 0 {
		q.Stdin = s.cluster.Path("stdin")
	}
	line, err := json.Marshal(q)
	if err != nil {
		return t, err
	}
	if _, err := s.ask.Write(append(line, '\n')); err != nil {
		return t, err
	}
	reply, err := s.replies.ReadString('\n')
	if err != nil {
		return t, err
	}
	if _, err := fmt.Sscanf(reply, "%g %g\n", &t.ms, &t.cpu); err != nil {
		return t, errors.New(strings.TrimSpace(reply))
	}
	return t, nil
}

// turnaround is a batch job's time from its allocation to its end, as slurmctld logs
// them: its waits for its turn and for sbatch to ask are not the step daemon's.
func (s *side) turnaround(ctx context.Context) (float64, error) {
	out, err := s.cluster.Command(ctx, "alice", "sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true").Output()
	if err != nil {
		return 0, fmt.Errorf("cannot submit a job: %w", err)
	}
	job := strings.TrimSpace(string(out))
	began := regexp.MustCompile(`(?m)^\[(\S+)\] sched: Allocate JobId=` + job + ` `)
	ended := regexp.MustCompile(`(?m)^\[(\S+)\] _job_complete: JobId=` + job + ` done`)
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		text, err := os.ReadFile(s.cluster.Path("slurmctld.log"))
		if err != nil {
			return 0, err
		}
		if end := ended.FindSubmatch(text); end != nil {
			start := began.FindSubmatch(text)
			if start == nil {
				return 0, fmt.Errorf("slurmctld's log has no allocation of job %s", job)
			}
			return between(string(start[1]), string(end[1]))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return 0, fmt.Errorf("job %s has not ended", job)
}

func between(start, end string) (float64, error) {
	const form = "2006-01-02T15:04:05.000"
	a, err1 := time.Parse(form, start)
	b, err2 := time.Parse(form, end)
	return float64(b.Sub(a).Milliseconds()), errors.Join(err1, err2)
}
