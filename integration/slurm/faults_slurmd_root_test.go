package slurm

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// hold starts a step of each kind in turns and stops each at another phase.
func hold(t *testing.T, s *faultSite, victim string, at []moment) (runs []*faultRun) {
	t.Helper()
	var starting sync.WaitGroup
	for i, m := range at {
		f := &faultRun{fault: fault{victim, m, []kind{srunKind, batchKind}[i%2]}, site: s}
		f.prepare(t)
		f.start(t)
		if m.phase == phaseEnding {
			f.open(t)
		}
		starting.Go(func() { f.job = f.await(t) })
		runs = append(runs, f)
	}
	starting.Wait()
	return runs
}

// ends judges steps that no one has killed.
func ends(t *testing.T, runs []*faultRun) {
	t.Helper()
	for _, f := range runs {
		t.Run(strings.TrimPrefix(f.String(), f.victim+" of "), func(t *testing.T) {
			f.wait(t)
			f.judge(t)
			eventually(t, endsIn, func() error { return left(f.site.Cluster, f.site.space, f.job) })
		})
	}
}

// TestRootSlurmdKilled kills slurmd while steps stand at each phase: each of them runs on, and
// ends as it would have, some before slurmd is back and some after it.
func TestRootSlurmdKilled(t *testing.T) {
	testkit.RequireRoot(t)
	t.Parallel()
	s := startFaultSite(t, holding(t))
	runs := hold(t, s, "slurmd", few(moments(), 2))
	if t.Failed() {
		return
	}
	must(t, s.End(t.Context(), "slurmd", syscall.SIGKILL))
	for i, f := range runs {
		if f.killed = time.Now(); i%4 < 2 {
			f.release()
			f.open(t)
		}
	}
	// Slurm's own may end by SIGPIPE while it starts, with steps that report meanwhile.
	eventually(t, faultWait, func() error { return s.StartSlurmd(t.Context()) })
	for _, f := range runs {
		f.release()
		f.open(t)
	}
	ends(t, runs)
	eventually(t, faultWait, func() error { return s.idle(t) })
}

// TestRootMungedDown has munged restarted while steps stand at each phase: what they have to
// report comes late, and nothing is lost.
func TestRootMungedDown(t *testing.T) {
	testkit.RequireRoot(t)
	t.Parallel()
	s := startFaultSite(t, holding(t))
	runs := hold(t, s, "munged", few(moments(), 3))
	if t.Failed() {
		return
	}
	must(t, s.End(t.Context(), "munged", syscall.SIGTERM))
	for _, f := range runs {
		f.killed = time.Now()
		f.release()
		f.open(t)
	}
	time.Sleep(time.Second) // as long as a restart takes
	must(t, s.StartMunged(t.Context()))
	ends(t, runs)
	eventually(t, mungedWait, func() error { return s.idle(t) })
}

// mungedWait bounds the end of a job while munged was away: what slurmctld and slurmd have lost of
// their own messages they ask for again after a minute or two.
const mungedWait = 3 * time.Minute

// TestRootMungedAway: what a step has to report is reported when munged is back, to srun as well,
// which Slurm's own step daemon gives up after some seconds (measured: srun waits for ever). With
// POINTS munged is away for more than two minutes.
func TestRootMungedAway(t *testing.T) {
	testkit.RequireRoot(t)
	t.Parallel()
	s := startFaultSite(t, hosting(t))
	away, limit := 4*time.Second, 30*time.Second // longer than one try
	if os.Getenv("POINTS") != "" {
		away, limit = 130*time.Second, 240*time.Second
	}
	var runs []*faultRun
	for _, k := range []kind{srunKind, batchKind} {
		f := &faultRun{fault: fault{"munged", moment{}, k}, site: s}
		f.prepare(t)
		f.started(t, limit)
		runs = append(runs, f)
	}
	must(t, s.End(t.Context(), "munged", syscall.SIGTERM))
	for _, f := range runs {
		f.open(t)
	}
	time.Sleep(away)
	must(t, s.StartMunged(t.Context()))
	for _, f := range runs {
		eventually(t, limit, func() error {
			out, err := s.Command(t.Context(), "root", "scontrol", "-o", "show", "job", strconv.Itoa(f.job)).Output()
			if text := string(out); err == nil && (!strings.Contains(text, " JobState=FAILED ") || !strings.Contains(text, " ExitCode=7:0 ")) {
				err = errors.New(text)
			}
			return err
		})
		eventually(t, endsIn, func() error { return left(s.Cluster, s.space, f.job) })
		if !f.kind.batch { // sbatch asks at times of its own
			<-f.done
		}
	}
	eventually(t, faultWait, func() error { return s.idle(t) })
}

// started starts the client, and waits for the step's tasks.
func (f *faultRun) started(t *testing.T, limit time.Duration) {
	t.Helper()
	f.limit = limit
	f.start(t)
	eventually(t, faultWait, func() error {
		out, err := f.site.Command(t.Context(), "root", "squeue", "-h", "-n", f.name, "-o", "%i").Output()
		if err == nil {
			f.job, err = strconv.Atoi(strings.TrimSpace(string(out)))
		}
		if err == nil && !slices.ContainsFunc(processes(f.site.space, f.job), func(p process) bool { return strings.HasPrefix(p.title, "sleep ") }) {
			err = errors.New("no task runs")
		}
		return err
	})
}
