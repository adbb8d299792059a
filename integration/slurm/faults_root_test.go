package slurm

import (
	"bytes"
	"errors"
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

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

const (
	// endsIn is how long anything of a killed step may be left, and a replaced keeper be away.
	endsIn    = 2 * time.Second
	keeperIn  = time.Second
	faultWait = 20 * time.Second // for what has no limit of its own
	// everyNth is how many points of the table make test tries.
	everyNth = 4
	// faultWorkers is how many points are tried at once.
	faultWorkers = 5
)

// TestRootSlurmFaults kills the step daemon, its host of plugins, its keeper, and daemon and keeper
// together at every phase of srun's and sbatch's steps, and the srun of a terminal. POINTS is how many points to try, of both kinds of step at each
// phase in turns; without it every fourth is tried. ONLY is a part of their names.
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
	s := startFaultSite(t, holding(t))
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
	t.Run("terminated while it ends", s.terminatesEnding)
	s.report(t, time.Since(began))
}

// faultSite is a cluster whose step daemon stops where a test wants it.
type faultSite struct {
	*cluster.Cluster
	programs string
	space    string
	wd       string // the user's

	mu    sync.Mutex
	next  int     // guarded by mu: numbers the points
	slow  longest // guarded by mu: from a kill to a clean node
	told  longest // guarded by mu: from a kill to the client's end
	again longest // guarded by mu: to a new keeper
}

// longest is the longest time of several points, and whose it is.
type longest struct {
	took time.Duration
	of   string
}

func (l longest) String() string { return fmt.Sprintf("%v (%s)", l.took.Round(time.Millisecond), l.of) }

// startFaultSite starts a cluster with a folder of programs.
func startFaultSite(t *testing.T, programs string) *faultSite {
	site := cluster.Site{
		Release: "22.05", Cache: cache(), Programs: programs, StepDaemon: ours, Users: []string{"alice"},
		Files: map[string]string{"plugstack.conf": "required " + cluster.Programs + "/rude.so\n"},
	}
	c, err := cluster.Start(t.Context(), site)
	if err != nil {
		t.Fatal(err)
	}
	s := &faultSite{Cluster: c, programs: programs, space: space(t, c), wd: c.Path("work/alice")}
	t.Cleanup(func() {
		keep(t, c, "ours")
		roots, err := c.CgroupRoots(cluster.Node)
		if err := errors.Join(err, c.Stop()); err != nil {
			t.Error(err)
		}
		for _, root := range roots {
			if _, err := os.Stat(root); err == nil {
				t.Errorf("%q is left", root)
			}
		}
	})
	// What the first step makes for all.
	if out, err := s.Command(t.Context(), "alice", "timeout", "20", "srun", "true").CombinedOutput(); err != nil {
		t.Fatalf("srun true: %v\n%s", err, out)
	}
	return s
}

// holding makes a folder as hosting does, with a slurmstepd that stops at the named line.
func holding(t *testing.T) string {
	dir := hosting(t)
	build := exec.Command("go", "build", "-tags", "failpoint", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/slurmstepd")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// hosting makes a folder of the programs, and of a plugin, for which steps have a host.
func hosting(t *testing.T) string {
	built := programs(t)
	dir, err := os.MkdirTemp("/var/tmp", "slurm-programs")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"slurmstepd", "spankhost", "stepkeeper"} {
		b, err := os.ReadFile(filepath.Join(built, name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o755))
	}
	compile := exec.Command("gcc", "-Wall", "-fPIC", "-shared", "../testdata/plugins/rude.c", "-o", filepath.Join(dir, "rude.so"))
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return dir
}

// terminatesEnding has slurmd's request come for a step whose tasks have ended: it changes nothing,
// and no error is logged.
func (s *faultSite) terminatesEnding(t *testing.T) {
	at := between("state COMPLETING", "state COMPLETING")[0]
	f := &faultRun{fault: fault{"none", at, srunKind}, site: s}
	f.prepare(t)
	defer f.release()
	f.start(t)
	f.open(t)
	if f.job = f.await(t); f.job == 0 {
		return
	}
	path := fmt.Sprintf("spool/%s_%d.0", cluster.Node, f.job)
	if b, err := ask(s.Path(path), words(reqTerminate), 8); err != nil || !bytes.Equal(b, words(0, 0)) {
		t.Errorf("it answers %v, %v", b, err)
	}
	f.release()
	f.wait(t)
	f.judge(t)
	text, err := os.ReadFile(s.Path("slurmd.log"))
	must(t, err)
	if strings.Contains(string(text), fmt.Sprintf("[%d.0] error", f.job)) {
		t.Error("an error is logged")
		s.log(t, f.job)
	}
}

// number returns a name for the next point.
func (s *faultSite) number() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return fmt.Sprintf("point%d", s.next)
}

// note keeps the longest time since a moment, and whose it is.
func (s *faultSite) note(l *longest, took time.Duration, of fmt.Stringer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if took > l.took {
		*l = longest{took, of.String()}
	}
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
		took.Round(time.Second), s.slow, s.told, s.again)
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

// swept has another step run, and waits for the end of all that a job has left whose step daemon
// and keeper have died. No one reports that end: srun is killed, and the job cancelled.
func (s *faultSite) swept(t *testing.T, job int, name string) {
	t.Helper()
	if out, err := s.Command(t.Context(), "alice", "timeout", "20", "srun", "-Q", "true").CombinedOutput(); err != nil {
		t.Errorf("the next step: %v: %s", err, out)
	}
	eventually(t, endsIn, func() error { return remains(s.Cluster, s.space, job) })
	if out, err := s.Command(t.Context(), "root", "scancel", "-Q", strconv.Itoa(job)).CombinedOutput(); err != nil {
		t.Errorf("scancel: %v: %s", err, out)
	}
	for _, p := range s.clients(name) {
		kill(t, p, unix.SIGKILL)
	}
}

// clients are the processes of a job's srun, by the job's name.
func (s *faultSite) clients(name string) []process {
	return search(s.space, func(title string, _ []byte) bool {
		return strings.HasPrefix(title, "srun ") && strings.Contains(title, " "+name+" ")
	})
}

// client is the one of them that has started the others; none is the zero value.
func (s *faultSite) client(name string) (first process) {
	for _, p := range s.clients(name) {
		if first.pid == 0 || p.pid < first.pid {
			first = p
		}
	}
	return first
}

// log prints what the daemons have logged of a job.
func (s *faultSite) log(t *testing.T, job int) {
	t.Helper()
	for _, name := range []string{"slurmd.log", "slurmctld.log"} {
		text, err := os.ReadFile(s.Path(name))
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, strconv.Itoa(job)) {
				t.Logf("%s: %s", name, line)
			}
		}
	}
}
