package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// soakEnd is one way for a step to end. It returns what was wrong with it: it may not
// end the test.
type soakEnd struct {
	name string
	// every so many steps there is one of this kind.
	every int
	do    func(s *soak, worker int) error
}

// soak is a noded on which steps of all kinds run, one client for each worker.
type soak struct {
	t *testing.T
	n *node
}

// want runs stepctl and compares its exit code.
func (s *soak) want(args []string, env []string, codes ...int) error {
	r := s.n.do(s.t, call{args: args, env: env})
	if !slices.Contains(codes, r.code) {
		return fmt.Errorf("%q: want exit code %v, got %v", args, codes, r)
	}
	return nil
}

// soakEnds are the ends; the first of them whose turn it is.
var soakEnds = []soakEnd{
	{"host killed", 97, (*soak).hostKilled},
	{"out of memory", 89, func(s *soak, _ int) error {
		return s.want([]string{"run", "--mem=24", "sh", "-c", `x=$(head -c 100000000 /dev/zero | tr '\0' x); echo ${#x}`}, nil, 1, 2, 125, 137)
	}},
	{"time limit", 83, func(s *soak, _ int) error { // reached at once: --time counts minutes
		return s.want([]string{"run", "--time=0:01", "sleep", "86388"}, nil, 143, 137, 1)
	}},
	{"plugin crashes", 61, func(s *soak, _ int) error {
		return s.want([]string{"run", "true"}, []string{"RUDE=hook=user_init do=segv"}, 1)
	}},
	{"cancelled", 43, (*soak).cancelled},
	{"client killed", 41, (*soak).clientKilled},
	{"batch", 37, func(s *soak, _ int) error {
		return s.want([]string{"batch", "-W", "-o", "/dev/null", "--wrap", "exit 4"}, nil, 4)
	}},
	{"allocation", 31, func(s *soak, _ int) error {
		return s.want([]string{"alloc", "-Q", s.n.bin, "run", "sh", "-c", "exit 6"}, nil, 6)
	}},
	{"pmi2", 29, func(s *soak, _ int) error {
		return s.want([]string{"run", "-n", "2", "--mpi=pmi2", "sh", "-c", "exit 3"}, nil, 3)
	}},
	{"signal", 23, func(s *soak, _ int) error { return s.want([]string{"run", "sh", "-c", "kill -SEGV $$"}, nil, 139) }},
	{"failed exec", 19, func(s *soak, _ int) error { return s.want([]string{"run", "/nonexistent/program"}, nil, 2) }},
	{"daemon left", 17, func(s *soak, _ int) error {
		return s.want([]string{"run", "sh", "-c", "setsid sleep 86391 </dev/null >/dev/null 2>&1 & exit 0"}, nil, 0)
	}},
	{"three tasks", 13, func(s *soak, _ int) error {
		return s.want([]string{"run", "-n", "3", "-l", "sh", "-c", "echo $SLURM_PROCID; exit $SLURM_PROCID"}, nil, 2)
	}},
	{"fine", 1, func(s *soak, _ int) error { return s.want([]string{"run", "true"}, nil, 0) }},
}

// sleeper starts a step that sleeps, with a name of its own, and returns its id when
// its task runs.
func (s *soak) sleeper(worker int) (*process, string, error) {
	mark := filepath.Join(s.n.wd, "sleeps."+strconv.Itoa(worker))
	if err := os.Remove(mark); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, "", err
	}
	p := s.n.start(s.t, call{args: []string{"run", "sh", "-c", "echo $SLURM_JOB_ID.$SLURM_STEP_ID >" + mark + ".new; mv " + mark + ".new " + mark + "; exec sleep 86387"}})
	for range 8000 {
		if b, err := os.ReadFile(mark); err == nil {
			return p, strings.TrimSpace(string(b)), nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	p.wait(s.t)
	return nil, "", errors.New("the sleeping step did not start")
}

func (s *soak) cancelled(worker int) error {
	p, id, err := s.sleeper(worker)
	if err != nil {
		return err
	}
	cancel := s.n.ctl(s.t, "cancel", id)
	if r := p.wait(s.t); r.code != 143 || cancel.code != 0 {
		return fmt.Errorf("cancelled: %v, %v", r, cancel)
	}
	return nil
}

// clientKilled: the step goes on, until it is cancelled, unless stepd did not know yet
// that its task had exec'd: then it has ended.
func (s *soak) clientKilled(worker int) error {
	p, id, err := s.sleeper(worker)
	if err != nil {
		return err
	}
	if err := p.cmd.Process.Kill(); err != nil {
		return err
	}
	p.wait(s.t)
	return s.want([]string{"cancel", id}, nil, 0, 1)
}

func (s *soak) hostKilled(worker int) error {
	p, id, err := s.sleeper(worker)
	if err != nil {
		return err
	}
	host := 0
	for try := 0; host == 0; try++ {
		// The list of children may lack some while others of them end (proc_tid_children(5)).
		if host = childNamed(childNamed(s.n.cmd.Process.Pid, "stepd: ["+id+"]"), "spankhost: ["+id+"]"); host == 0 && try == 500 {
			return fmt.Errorf("step %s has no host", id)
		}
	}
	if err := syscall.Kill(host, syscall.SIGKILL); err != nil {
		return err
	}
	if r := p.wait(s.t); r.code != 1 {
		return fmt.Errorf("host killed: %v", r)
	}
	return nil
}

// run runs the step with that number.
func (s *soak) run(i, worker int, count map[string]int) error {
	for _, e := range soakEnds {
		if (i+1)%e.every == 0 {
			count[e.name]++
			if err := e.do(s, worker); err != nil {
				return fmt.Errorf("step %d, %s: %w", i, e.name, err)
			}
			return nil
		}
	}
	return nil
}

// many runs so many steps, some at a time, and returns how many of each kind.
func (s *soak) many(steps int) map[string]int {
	const workers = 8
	type outcome struct {
		count map[string]int
		err   error
	}
	done := make(chan outcome, workers)
	for w := range workers {
		go func() {
			o := outcome{count: map[string]int{}}
			for i := w; i < steps && o.err == nil; i += workers {
				o.err = s.run(i, w, o.count)
			}
			done <- o
		}()
	}
	all := map[string]int{}
	for range workers {
		o := <-done
		if o.err != nil {
			s.t.Error(o.err)
		}
		for name, k := range o.count {
			all[name] += k
		}
	}
	s.n.checkClean(s.t)
	return all
}

// TestRootThousandSteps: nothing of a thousand steps that end in all kinds of ways is
// left: in no hierarchy, among the mounts, in noded. SOAK is another number of steps.
func TestRootThousandSteps(t *testing.T) {
	steps := testkit.Fewer(1000)
	if text := os.Getenv("SOAK"); text != "" {
		var err error
		if steps, err = strconv.Atoi(text); err != nil {
			t.Fatalf("SOAK=%q: %v", text, err)
		}
	}
	n := startNode(t, site{
		Slurm: "MinJobAge=2\nKillWait=1\nTaskPlugin=task/cgroup\nSelectTypeParameters=CR_CPU_Memory\n", Stepd: "KeepSteps=20\n",
		Node: "CPUs=64 RealMemory=4096", Cgroup: "ConstrainRAMSpace=yes\n",
	})
	n.stack(t, "required "+buildRude(t, n)+" order=RUDE")
	s := &soak{t, n}
	s.many(100) // what is opened once
	n.idle(t)
	before := n.footprint(t)
	began := time.Now()
	count := s.many(steps)
	took := time.Since(began)
	n.idle(t)
	var after footprint
	// Connections of clients that have just gone are closed a little later; some may be
	// counted before the steps, too.
	eventually(t, callTimeout, "what noded had before the steps", func() error {
		if after = n.footprint(t); after.moreThan(before) {
			return fmt.Errorf("before %+v, after %+v", before, after)
		}
		return nil
	})
	t.Logf("%d steps in %v, %.0f a second: %v\nbefore %+v\nafter  %+v", steps, took.Round(time.Second), float64(steps)/took.Seconds(), count, before, after)
	// Go keeps what it has freed for a while; a leak of 16 KB a step would show in a
	// thousand, and one of 2 KB in ten thousand.
	if grown := after.anonKB - before.anonKB; grown > 20<<10 {
		t.Errorf("noded has grown by %d KB", grown)
	}
}
