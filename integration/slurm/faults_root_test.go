package slurm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

const (
	// endsIn is how long anything of a killed step may be left, and a replaced keeper be away.
	endsIn    = 2 * time.Second
	keeperIn  = time.Second
	faultWait = 20 * time.Second // for what has no limit of its own
	// everyNth is how many points of the table make test tries.
	everyNth = 3
	// faultWorkers is how many points are tried at once.
	faultWorkers = 5
)

// TestRootSlurmFaults kills the step daemon, its host of plugins and its keeper at every phase
// of srun's and sbatch's steps. POINTS is how many points to try, of both kinds of step at each
// phase in turns; without it every third is tried. ONLY is a part of their names.
func TestRootSlurmFaults(t *testing.T) {
	testkit.RequireRoot(t)
	points := few(faultTable(0), everyNth)
	if text := os.Getenv("POINTS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("POINTS=%q: %v", text, err)
		}
		for points = nil; len(points) < n; {
			points = append(append(points, faultTable(0)...), faultTable(1)...)
		}
		points = points[:n]
	}
	points = slices.DeleteFunc(points, func(f fault) bool { return !strings.Contains(f.String(), os.Getenv("ONLY")) })
	s := startFaultSite(t)
	began := time.Now()
	var hits atomic.Int32
	todo := make(chan fault)
	var wg sync.WaitGroup
	for range faultWorkers {
		wg.Go(func() {
			for f := range todo {
				t.Run(f.String(), func(t *testing.T) {
					r := &faultRun{fault: f, site: s}
					r.run(t)
					if r.hit {
						hits.Add(1)
					}
				})
			}
		})
	}
	for _, f := range points {
		todo <- f
	}
	close(todo)
	wg.Wait()
	t.Logf("%d of %d kills found their process", hits.Load(), len(points))
	s.report(t, time.Since(began))
}

// faultSite is a cluster whose step daemon stops where a test wants it.
type faultSite struct {
	*cluster.Cluster
	space string
	wd    string // the user's

	mu    sync.Mutex
	next  int           // guarded by mu: numbers the points
	slow  time.Duration // guarded by mu: the longest time from a kill to a clean node
	told  time.Duration // guarded by mu: the longest time from a kill to the client's end
	again time.Duration // guarded by mu: the longest time to a new keeper
}

func startFaultSite(t *testing.T) *faultSite {
	site := cluster.Site{
		Release: "22.05", Cache: cache(), Programs: holding(t), StepDaemon: ours, Users: []string{"alice"},
		Files: map[string]string{"plugstack.conf": "required " + cluster.Programs + "/rude.so\n"},
	}
	c, err := cluster.Start(t.Context(), site)
	if err != nil {
		t.Fatal(err)
	}
	s := &faultSite{Cluster: c, space: space(t, c), wd: c.Path("work/alice")}
	t.Cleanup(func() {
		keep(t, c, "ours")
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	// What the first step makes for all.
	if out, err := s.Command(t.Context(), "alice", "timeout", "20", "srun", "true").CombinedOutput(); err != nil {
		t.Fatalf("srun true: %v\n%s", err, out)
	}
	return s
}

// holding makes a folder of the programs, with a slurmstepd that stops at the named line, and
// of a plugin, for which steps have a host.
func holding(t *testing.T) string {
	built := programs(t)
	dir, err := os.MkdirTemp("/var/tmp", "slurm-programs")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"spankhost", "stepkeeper"} {
		b, err := os.ReadFile(filepath.Join(built, name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o755))
	}
	compile := exec.Command("gcc", "-Wall", "-fPIC", "-shared", "../testdata/plugins/rude.c", "-o", filepath.Join(dir, "rude.so"))
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	build := exec.Command("go", "build", "-tags", "failpoint", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/slurmstepd")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// number returns a name for the next point.
func (s *faultSite) number() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return fmt.Sprintf("point%d", s.next)
}

// note keeps the longest time.
func (s *faultSite) note(longest *time.Duration, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*longest = max(*longest, took)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// report closes the site's books: what is left for all steps together.
func (s *faultSite) report(t *testing.T, took time.Duration) {
	t.Logf("%v in all; at most %v to a clean node, %v to the client's end, %v to a new keeper",
		took.Round(time.Second), s.slow.Round(time.Millisecond), s.told.Round(time.Millisecond), s.again.Round(time.Millisecond))
	eventually(t, faultWait, func() error { return s.idle(t) })
	if out, err := s.Command(t.Context(), "alice", "timeout", "20", "srun", "echo", "next").CombinedOutput(); err != nil || string(out) != "next\n" {
		t.Errorf("the next step: %v\n%s", err, out)
	}
}

// idle is an error where the node has jobs, or takes none.
func (s *faultSite) idle(t *testing.T) error {
	out, err := s.Command(t.Context(), "root", "sh", "-c", "sinfo -h -o %T; squeue -h").Output()
	if err == nil && string(out) != "idle\n" {
		err = fmt.Errorf("sinfo and squeue: %q", out)
	}
	return err
}
