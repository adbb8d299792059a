package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// nodeWait is how long what must come may take on a busy machine.
const nodeWait = time.Minute

// nodeSite is a site of several nodes with our step daemon, whose jobs follow each other.
type nodeSite struct {
	*cluster.Cluster
	spaces map[string]string // of each node
	job    int               // the latest
}

// startNodes starts a site of cluster.Sites under each release of the run: RELEASE=, all in the
// matrix, and else the first.
func startNodes(t *testing.T, name, lines string, run func(t *testing.T, s *nodeSite)) {
	testkit.RequireRoot(t)
	t.Parallel()
	releases := cluster.Releases()
	if one := os.Getenv("RELEASE"); one != "" {
		releases = []string{one}
	} else if !matrix() {
		releases = releases[:1]
	}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			site := ofRelease(name, release)
			site.Conf += lines
			c := startSite(t, site)
			s := &nodeSite{Cluster: c, spaces: map[string]string{}, job: cluster.FirstJob - 1}
			for _, node := range c.Nodes() {
				s.spaces[node] = nodeSpace(t, c, node)
			}
			run(t, s)
		})
	}
}

// nodeStep is a step of one srun over all nodes.
type nodeStep struct {
	site *nodeSite
	job  int
	srun *exec.Cmd
	said bytes.Buffer
	done chan struct{} // closed with srun's end
	code int           // srun's
}

// begin starts srun over all nodes, with a task on each.
func (s *nodeSite) begin(t *testing.T, script string) *nodeStep {
	t.Helper()
	s.job++
	n := strconv.Itoa(len(s.Nodes()))
	step := &nodeStep{site: s, job: s.job, done: make(chan struct{})}
	step.srun = s.Command(t.Context(), "alice", "timeout", "-k", "1", "120", "srun", "-N"+n, "-n"+n, "sh", "-c", script)
	step.srun.Stdout, step.srun.Stderr = &step.said, &step.said
	must(t, step.srun.Start())
	go func() {
		defer close(step.done)
		_ = step.srun.Wait() // its exit code is looked at
		step.code = step.srun.ProcessState.ExitCode()
	}()
	return step
}

// daemon is the step daemon on a node, its pid 0 where there is none.
func (p *nodeStep) daemon(node string) process {
	return named(processes(p.site.spaces[node], p.job), "slurmstepd")
}

// clean waits until nothing of the step is left on any node, for at most so long.
func (p *nodeStep) clean(t *testing.T, limit time.Duration) {
	t.Helper()
	eventually(t, limit, func() error {
		var errs []error
		for node, space := range p.site.spaces {
			if err := remainsOn(p.site.Cluster, node, space, p.job); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", node, err))
			}
		}
		return errors.Join(errs...)
	})
}

// ready waits until the nodes take jobs.
func (s *nodeSite) ready(t *testing.T) {
	t.Helper()
	eventually(t, nodeWait, func() error {
		out, err := s.Command(t.Context(), "root", "sh", "-c", "squeue -h; sinfo -h -N -o '%N %T' | grep -v idle; true").Output()
		if err == nil && len(out) > 0 {
			err = fmt.Errorf("not ready: %s", out)
		}
		return err
	})
}

// ends are the ends of the job's first step that slurmctld was told, as it logs them.
func (p *nodeStep) ends(t *testing.T) (ends []string) {
	t.Helper()
	text, err := os.ReadFile(p.site.Path("slurmctld.log"))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if _, rest, ok := strings.Cut(line, fmt.Sprintf("REQUEST_STEP_COMPLETE for StepId=%d.0 nodes ", p.job)); ok {
			ends = append(ends, strings.Fields(rest)[0])
		}
	}
	return ends
}

// TestRootCompletion has the ends of a step's nine nodes go up slurmd's tree, of three levels.
func TestRootCompletion(t *testing.T) {
	startNodes(t, "tree", "", func(t *testing.T, s *nodeSite) {
		whole := s.begin(t, "exit $SLURM_PROCID")
		<-whole.done
		if whole.code != 8 {
			t.Errorf("exit code %d: %s", whole.code, whole.said.String())
		}
		whole.clean(t, nodeWait)
		if ends := whole.ends(t); len(ends) != 1 || ends[0] != "0-8" {
			t.Errorf("slurmctld was told of %q", ends)
		}
		s.ready(t)
		// n2 is between n1 and the others, which then report to slurmctld; n9 is a leaf.
		for _, node := range []string{"n2", "n9", "n1"} {
			t.Run(node, func(t *testing.T) { s.killed(t, node) })
		}
	})
}

// killed kills the step daemon of a node. What the others report is not lost.
func (s *nodeSite) killed(t *testing.T, node string) {
	p := s.begin(t, ">up.$SLURM_JOB_ID.$SLURM_PROCID; sleep 1; exit 7")
	eventually(t, nodeWait, func() error {
		for i := range s.Nodes() {
			if _, err := os.Stat(s.Path(fmt.Sprintf("work/alice/up.%d.%d", p.job, i))); err != nil {
				return err
			}
		}
		return nil
	})
	if !kill(t, p.daemon(node), unix.SIGKILL) {
		t.Errorf("no step daemon on %s", node)
	}
	<-p.done
	if p.code <= 0 || p.code == 124 || !strings.Contains(p.said.String(), node+":") {
		t.Errorf("exit code %d: %s", p.code, p.said.String())
	}
	p.clean(t, nodeWait)
	s.ready(t)
}

const (
	// cutPoints is how many cuts and kills make test tries, on a machine that may be busy, and
	// returnLimit how long something may be left on a node after its return where more are asked for.
	cutPoints   = 4
	returnLimit = 5 * time.Second
	// cutMax is how long a link is cut at most.
	cutMax = 3 * time.Second
)

// TestRootSlurmCuts cuts a node's link, or kills its slurmd or step daemon, at random moments of a
// step over three nodes. POINTS is how often, SEED chooses, RELEASE is of Slurm.
func TestRootSlurmCuts(t *testing.T) {
	points, seed := cutPoints, uint64(time.Now().UnixNano()&0xffffff)
	for name, set := range map[string]func(n int){"POINTS": func(n int) { points = n }, "SEED": func(n int) { seed = uint64(n) }} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.Atoi(text)
			must(t, err)
			set(n)
		}
	}
	t.Logf("SEED=%d", seed)
	startNodes(t, "nodes", "SlurmdTimeout=30\n", func(t *testing.T, s *nodeSite) {
		first := s.begin(t, "true") // its cgroups' places are known then
		<-first.done
		first.clean(t, nodeWait)
		random := rand.New(rand.NewPCG(seed, 0))
		for i := range points {
			s.ready(t)
			p := &cutPoint{
				what: []string{"link", "slurmd", "slurmstepd"}[random.IntN(3)], node: s.Nodes()[random.IntN(3)],
				limit: time.Minute,
				after: time.Duration(random.IntN(700)) * time.Millisecond, lasts: time.Duration(random.Int64N(int64(cutMax))).Round(time.Millisecond),
			}
			if points > cutPoints {
				p.limit = returnLimit
			}
			if t.Run(fmt.Sprintf("%d %s", i, p), func(t *testing.T) { p.run(t, s) }); t.Failed() {
				return
			}
		}
	})
}

// cutPoint is one cut or kill.
type cutPoint struct {
	what, node   string
	after, lasts time.Duration
	limit        time.Duration // after the node's return
	unwatched    bool          // the step daemon was killed before it had a keeper
}

func (p *cutPoint) String() string {
	if p.what == "link" {
		return fmt.Sprintf("link of %s after %v for %v", p.node, p.after, p.lasts)
	}
	return fmt.Sprintf("%s of %s after %v", p.what, p.node, p.after)
}

func (p *cutPoint) run(t *testing.T, s *nodeSite) {
	step := s.begin(t, "sleep .3; exit 7")
	time.Sleep(p.after)
	hit := p.strike(t, step)
	returned := time.Now()
	<-step.done
	took := time.Since(returned)
	said := step.said.String()
	// srun's words where a node could not connect the streams: it names the node's task.
	task := fmt.Sprintf("srun: error: task %d launch failed: ", slices.Index(s.Nodes(), p.node))
	switch {
	case step.code <= 0, step.code == 124:
		t.Errorf("exit code %d", step.code)
	case step.code != 7 && !strings.Contains(said, p.node) && !strings.Contains(said, task):
		t.Errorf("exit code %d, and no word of %s", step.code, p.node)
	case step.code != 7 && !hit:
		t.Errorf("exit code %d of a step that was left alone", step.code)
	}
	if p.unwatched { // what is left is swept at the start of the next step
		next := s.begin(t, "true")
		<-next.done
		next.clean(t, nodeWait)
		returned = time.Now()
	}
	step.clean(t, max(0, p.limit-time.Since(returned)))
	t.Logf("code %d, srun ended %v and the last node was clean %v after the return", step.code, took.Round(time.Millisecond), time.Since(returned).Round(time.Millisecond))
	if t.Failed() {
		t.Logf("srun printed: %s", said)
	}
}

// strike cuts or kills, and returns when the node is back. It reports whether the step can have
// noticed.
func (p *cutPoint) strike(t *testing.T, step *nodeStep) bool {
	t.Helper()
	c := step.site.Cluster
	switch p.what {
	case "link":
		must(t, c.SetLink(t.Context(), p.node, false))
		time.Sleep(p.lasts)
		must(t, c.SetLink(t.Context(), p.node, true))
	case "slurmd":
		must(t, c.End(t.Context(), "slurmd."+p.node, syscall.SIGKILL))
		must(t, c.StartNode(t.Context(), p.node))
	default:
		// The daemon first: where it lives, and has no keeper yet, it may have one when it is killed.
		daemon := step.daemon(p.node)
		keeper := named(processes(step.site.spaces[p.node], step.job), "stepkeeper")
		hit := kill(t, daemon, unix.SIGKILL)
		p.unwatched = hit && keeper.pid == 0
		return hit
	}
	return true
}
