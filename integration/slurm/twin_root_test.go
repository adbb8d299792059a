package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// workers is how many checks a cluster runs at once: most of them wait.
const workers = 6

// ours is where a cluster sees the step daemon under test.
const ours = cluster.Programs + "/slurmstepd"

// twins are two clusters of one site that differ in their step daemon alone.
type twins struct {
	release  string
	theirs   *cluster.Cluster
	ours     *cluster.Cluster
	programs string // the folder of ours; empty: both have Slurm's own, as the harness's own test
	rows     []difference

	reviving sync.Mutex
}

// revive starts slurmds again that have died by themselves: without a node no check would pass.
func (w *twins) revive(ctx context.Context, t *testing.T) {
	w.reviving.Lock()
	defer w.reviving.Unlock()
	for _, c := range []*cluster.Cluster{w.theirs, w.ours} {
		if names, err := c.Revive(ctx); len(names) > 0 || err != nil {
			t.Logf("%s under %s had died and was started again: %v", strings.Join(names, ", "), w.release, err)
		}
	}
}

// start starts the two.
func (w *twins) start(ctx context.Context, site cluster.Site) error {
	site.Release, site.Cache = w.release, cache()
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { w.theirs, errs[0] = cluster.Start(ctx, site) })
	mine := site
	if w.programs != "" {
		mine.Programs, mine.StepDaemon = w.programs, ours
	}
	wg.Go(func() { w.ours, errs[1] = cluster.Start(ctx, mine) })
	wg.Wait()
	return errors.Join(errs[:]...)
}

// stop ends the two, of which one may not have started.
func (w *twins) stop(t testing.TB, site string) {
	for name, c := range map[string]*cluster.Cluster{"theirs": w.theirs, "ours": w.ours} {
		if c == nil {
			continue
		}
		keep(t, c, strings.TrimRight(name+"-"+site, "-"))
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// run runs checks: those that disturb no other side by side, and then the others.
func (w *twins) run(ctx context.Context, t *testing.T, checks []check) {
	for _, c := range []*cluster.Cluster{w.theirs, w.ours} {
		if testkit.InGuest() {
			break // it has no library of PMI to compile with, and no check for one
		}
		if err := placePrograms(c, w.release); err != nil {
			t.Error(err)
			return
		}
	}
	var wg sync.WaitGroup
	todo := make(chan check)
	for range workers {
		wg.Go(func() {
			for c := range todo {
				t.Run(c.id, func(t *testing.T) { w.judge(ctx, t, c) })
			}
		})
	}
	for _, c := range checks {
		if !c.alone {
			todo <- c
		}
	}
	close(todo)
	wg.Wait()
	for _, c := range checks {
		if c.alone {
			t.Run(c.id, func(t *testing.T) { w.judge(ctx, t, c) })
		}
	}
}

// again is how often Slurm's own step daemon may run a check once more, where what it
// prints depends on which of two things happens first: ours has to print one of the results, and
// runs once more before the last of them.
const again = 3

// judge runs a check under both step daemons, and logs a line that make slurm-matrix
// collects.
func (w *twins) judge(ctx context.Context, t *testing.T, c check) {
	began := time.Now()
	var theirs, mine []string
	var wg sync.WaitGroup
	wg.Go(func() { theirs = c.run(ctx, t, w.theirs, "") })
	daemon := ""
	if w.programs != "" {
		daemon = ours
	}
	wg.Go(func() { mine = c.run(ctx, t, w.ours, daemon) })
	wg.Wait()
	what := compare(theirs, mine)
	left, unused := unintended(w.rows, w.release, c.id, what)
	for n := 0; n < again && len(left)+len(unused) > 0; n++ {
		w.revive(ctx, t)
		if n == again-1 { // a busy machine: ours has one more chance, and it is said
			t.Logf("%s under %s: once more with ours, which printed:\n%s\n%s", c.id, w.release, strings.Join(mine, "\n"), strings.Join(left, "\n"))
			mine = c.run(ctx, t, w.ours, daemon)
		}
		what = compare(c.run(ctx, t, w.theirs, ""), mine)
		if l, u := unintended(w.rows, w.release, c.id, what); len(l)+len(u) < len(left)+len(unused) {
			left, unused = l, u
		}
	}
	verdict := "same"
	if len(what) > 0 {
		verdict = "intended"
	}
	if len(left) > 0 {
		verdict = "DIFFERS"
		t.Errorf("%s under %s:\n%s\n%s\nslurmstepd printed:\n%s", c.id, w.release, c.script, strings.Join(left, "\n"), strings.Join(theirs, "\n"))
	}
	for _, row := range unused {
		t.Errorf("differences.tsv:%d: no such difference any more: %s under %s: %s", row.line, c.id, w.release, row.what)
	}
	t.Logf("matrix\t%s\t%s\t%s\t%.1fs", w.release, c.id, verdict, time.Since(began).Seconds())
}

// cache is the folder of images.
func cache() string {
	if dir := os.Getenv("SLURM_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/stepd-slurm"
}

// programs is the folder of the built programs.
func programs(t testing.TB) string {
	dir := os.Getenv("STEPD_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, filepath.Base(ours)))
	}
	if err != nil {
		t.Fatalf("the program under test is not built (run make): %v", err)
	}
	return dir
}

// keep leaves the daemons' logs in build/slurm.
func keep(t testing.TB, c *cluster.Cluster, name string) {
	if testkit.InGuest() {
		return // its source tree is read-only
	}
	dir := filepath.Join("../../build/slurm", t.Name(), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
	}
	for _, name := range append(c.SlurmdLogs(), "slurmctld.log") {
		text, err := os.ReadFile(c.Path(name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// placePrograms puts programs for PMI-2 and PMIx, and a plugin, into the cluster's folder.
func placePrograms(c *cluster.Cluster, release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("release %q: %w", release, err)
	}
	const pmix = "-I/usr/lib/x86_64-linux-gnu/pmix2/include -L/usr/lib/x86_64-linux-gnu/pmix2/lib -lpmix"
	for _, p := range []struct{ out, source, flags string }{
		{"pmi2", "testdata/mpi/pmi2.c", "-lpmi2"},
		{"fences", "testdata/mpi/fences.c", "-lpmi2"},
		{"nodes.so", "testdata/nodes.c", fmt.Sprintf("-shared -fPIC -I../../spank/host/include -DSLURM_VERSION_NUMBER=%d", major<<16|minor<<8)},
		{"pmix", "testdata/mpi/pmix.c", pmix},
		{"pmixrank", "../mpi/pmixrank.c", pmix},
	} {
		args := append([]string{"-Wall", "-o", c.Path(p.out), p.source}, strings.Fields(p.flags)...)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot compile %q: %w: %s", p.source, err, out)
		}
	}
	return nil
}

// compareAll runs a release's checks under both step daemons, each site's in clusters of
// its own. CHECKS= names checks instead; SLURM_SELF=1 has Slurm's own step daemon on both
// sides, which must not differ at all.
func compareAll(t *testing.T, release string, wanted func(check) bool) {
	testkit.RequireRoot(t)
	only := strings.Fields(strings.ReplaceAll(os.Getenv("CHECKS"), ",", " "))
	bySite := map[string][]check{}
	for _, c := range readChecks(t) {
		if !slices.Contains(only, c.id) && (len(only) > 0 || !wanted(c)) {
			continue
		}
		if cluster.Sites[c.site].Accounting && release != cluster.AccountingRelease {
			t.Logf("matrix\t%s\t%s\tnot-run\tslurmdbd of the release does not run here", release, c.id)
		} else {
			bySite[c.site] = append(bySite[c.site], c)
		}
	}
	bin, rows := "", []difference(nil)
	if os.Getenv("SLURM_SELF") != "1" {
		bin, rows = programs(t), readDifferences(t)
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(bySite))
	for name, checks := range bySite {
		site := cluster.Sites[name]
		if testkit.InGuest() {
			site = cluster.GuestSite
		}
		for _, c := range checks {
			site.Users = append(site.Users, c.user())
		}
		w := &twins{release: release, programs: bin, rows: rows}
		wg.Go(func() {
			err := w.start(t.Context(), site)
			if err == nil {
				w.run(t.Context(), t, checks)
			}
			w.stop(t, name)
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if errors.Is(err, cluster.ErrMoved) && release != "22.05" {
			t.Skipf("not run: %v", err)
		} else if err != nil {
			t.Error(err)
		}
	}
}

// whole is every check but those that wait for slurmctld's minutes; make slurm-matrix runs
// those as well.
func whole(c check) bool { return !c.slow || matrix() }

// short is the list of checks for the later releases.
func short(c check) bool { return c.later || matrix() }

func matrix() bool { return os.Getenv("SLURM_MATRIX") == "1" }

func TestRootSlurm2205(t *testing.T) { compareAll(t, "22.05", whole) }

// The short lists run side by side: most of a check's time is slurmctld's waiting.
func TestRootSlurm2411(t *testing.T) { t.Parallel(); compareAll(t, "24.11", short) }
func TestRootSlurm2605(t *testing.T) { t.Parallel(); compareAll(t, "26.05", short) }

// TestRootSlurmGuest runs in the guest, with cgroup v2 and limits.
func TestRootSlurmGuest(t *testing.T) {
	if !testkit.InGuest() {
		t.Skip("runs in the guest: make vm-test")
	}
	compareAll(t, "22.05", func(c check) bool { return c.guest })
}
