package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"stepd/integration/slurm/cluster"
)

// TestRootConformanceUnderSlurmd runs what the traces ran by srun, salloc and sbatch of each
// release under slurmd, once with Slurm's own step daemon and once with ours, and compares
// every fact.
//
// testdata/differences-slurmd.tsv has releases where differences.tsv has traces: its rows hold
// for all traces.
func TestRootConformanceUnderSlurmd(t *testing.T) {
	waits(t)
	for _, release := range cluster.Releases() {
		t.Run(release, func(t *testing.T) {
			r := newReportWith(t, release, "testdata/differences-slurmd.tsv")
			t.Cleanup(func() { // after the logs, which are long
				if t.Failed() {
					t.Logf("facts that differ:\n%s", strings.Join(regexp.MustCompile("(?m)^DIFFERS.*").FindAllString(r.rows.String(), -1), "\n"))
				}
			})
			twins := startTwins(t, release)
			for _, tr := range traces {
				var facts [2]*table
				var wg sync.WaitGroup
				for i, c := range twins {
					wg.Go(func() {
						records := c.record(t, tr)
						facts[i] = reduce(records, slurmWorld(records, c.Cluster))
					})
				}
				wg.Wait()
				r.tables(tr.name+", ", callback, ofStepDaemon(facts[0]), ofStepDaemon(facts[1]))
			}
			r.end(33000)
		})
	}
}

// ofStepDaemon are the facts of a step daemon's own callbacks, and the order of all, without
// what is another in two runs.
func ofStepDaemon(facts *table) *table {
	out := &table{}
	for _, c := range facts.columns {
		actor, _, _ := strings.Cut(c, ":")
		for field, row := range facts.fields {
			value, ok := row[c]
			switch name := field[strings.LastIndexByte(field, '.')+1:]; {
			case !ok:
			case strings.HasPrefix(field, "before "):
				out.set(c, field, value)
			case actor != actors[2] && actor != batchActor && actor != actors[5]:
			case name == "SLURM_JOB_DERIVED_EC": // whether slurmctld knows it by then
			case field == "status.ShdPnd": // a signal that is pending for a moment
			case name == "others" && actor != actors[5] && openForAMoment.MatchString(value):
				out.set(c, field, strings.TrimRight(value, "0123456789"))
			case field == "status.SigIgn":
				out.set(c, field, withoutSignal32(value))
			case name == "SLURM_JOB_START_TIME" || name == "SLURM_JOB_END_TIME" || name == "SLURM_JOB_SLUID":
				out.set(c, field, "set")
			default:
				out.set(c, field, value)
			}
		}
		if actor == actors[2] || actor == batchActor || actor == actors[5] {
			out.add(c)
		}
	}
	return out
}

// openForAMoment is that one descriptor was open beside those that exec closes: Slurm's own
// step daemon has it while another thread opens a file. The descriptors of our host are compared under noded.
var openForAMoment = regexp.MustCompile(`closed by exec:\d+$`)

// withoutSignal32 leaves a signal out of a mask that what make starts has ignored, and what a
// cluster runs inherits.
func withoutSignal32(mask string) string {
	n, err := strconv.ParseUint(mask, 16, 64)
	if err != nil {
		return mask
	}
	return strconv.FormatUint(n&^(1<<31), 16)
}

// realSlurm is a private Slurm with the recording plugin.
type realSlurm struct {
	*cluster.Cluster
	release string
}

// startTwins starts a Slurm with its own step daemon, and one with ours. A release that
// Debian does not have any more is not run.
func startTwins(t *testing.T, release string) (twins [2]realSlurm) {
	t.Helper()
	for i, daemon := range []string{"", cluster.Programs + "/slurmstepd"} {
		twins[i] = startSlurm(t, cluster.Site{Release: release, StepDaemon: daemon})
	}
	return twins
}

// slurmCache is the folder of images.
func slurmCache() string {
	if dir := os.Getenv("SLURM_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/stepd-slurm"
}

// startSlurm starts a Slurm that the test's user may use, for the time of the test.
func startSlurm(t testing.TB, site cluster.Site) realSlurm {
	t.Helper()
	site.Cache, site.Programs, site.Users = slurmCache(), filepath.Dir(binary(t, "slurmstepd")), []string{alice.name}
	c, err := cluster.Start(context.Background(), site)
	if errors.Is(err, cluster.ErrMoved) && site.Release != "22.05" {
		t.Skipf("not run: %v", err)
	}
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(c.Path("slurmd.log"))
			t.Logf("slurmd.log of %q:\n%s", site.StepDaemon, log)
		}
		must(t, c.Stop())
	})
	return realSlurm{c, site.Release}
}

// run runs a command line of Slurm's as the test's user, in its directory.
func (s *realSlurm) run(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	cmd := s.Command(ctx, alice.name, args[0], args[1:]...)
	cmd.Env = append(cmd.Env, env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out: out.String(), err: errs.String(), code: cmd.ProcessState.ExitCode()}
}

// idle waits until no job is left and the node takes others.
func (s *realSlurm) idle(t testing.TB) {
	t.Helper()
	eventually(t, callTimeout, "the node is idle", func() error {
		jobs, err1 := s.Command(t.Context(), "root", "squeue", "-h", "-o", "%i %T").Output()
		node, err2 := s.Command(t.Context(), "root", "sinfo", "-h", "-o", "%T %E").Output()
		if err := errors.Join(err1, err2); err != nil || !strings.HasPrefix(string(jobs)+string(node), "idle") {
			return fmt.Errorf("%v: %s%s", err, jobs, node)
		}
		return nil
	})
}

// probe compiles the recording plugin for the release, once, and has slurmd load it: slurmd
// runs plugins before and after a job where it has found such when it started.
func (s *realSlurm) probe(t testing.TB) string {
	t.Helper()
	so := s.Path("probe.so")
	if _, err := os.Stat(so); err == nil {
		return so
	}
	out, err := s.Command(t.Context(), "root", "slurmd", "-V").Output()
	must(t, err)
	var year, month, micro int
	if _, err := fmt.Sscanf(string(out), "slurm-wlm %d.%d.%d", &year, &month, &micro); err != nil {
		t.Fatalf("slurmd -V: %q: %v", out, err)
	}
	compile(t, "-fPIC", "-shared", "-DPROBE_OUT=\""+s.Path("record.jsonl")+"\"", "-DNO_CRASH", "-I", ownHeaders, "testdata/probe/probe.c", "-o", so,
		fmt.Sprintf("-DSLURM_VERSION_NUMBER=SLURM_VERSION_NUM(%d,%d,%d)", year, month, micro))
	must(t, os.WriteFile(s.Path("plugstack.conf"), []byte("required "+so+" tag=A arg1 arg2=x\n"), 0o644))
	must(t, s.End(t.Context(), "slurmd", syscall.SIGTERM))
	must(t, s.StartSlurmd(t.Context()))
	// The node may still count as idle from before: the plugin's init in slurmd tells.
	eventually(t, callTimeout, "slurmd loads the plugin", func() error {
		_, err := os.Stat(s.Path("record.jsonl"))
		return err
	})
	return so
}

// record runs a trace's command under the recording plugin, and returns the records when
// the job is over.
func (s *realSlurm) record(t testing.TB, tr trace) []record {
	t.Helper()
	file, so := s.Path("record.jsonl"), s.probe(t)
	must(t, os.WriteFile(file, nil, 0o666))
	must(t, os.Chmod(file, 0o666)) // task_init writes as the user
	stack := "required " + so + " tag=A arg1 arg2=x\n"
	if tr.plugins != nil {
		stack = ""
	}
	for _, tag := range tr.plugins { // a copy has static data of its own
		copied := s.Path("probe" + tag + ".so")
		must(t, os.WriteFile(copied, []byte(readFile(t, so)), 0o755))
		stack += "required " + copied + " tag=" + tag + " lite\n"
	}
	must(t, os.WriteFile(s.Path("plugstack.conf"), []byte(stack), 0o644))
	program := map[string]string{"run": "srun", "alloc": "salloc", "batch": "sbatch"}
	args := []string{program[tr.args[0]]}
	for i, arg := range tr.args[1:] {
		switch {
		case arg == "STEPCTL":
			args = append(args, "srun")
		case arg == "run" && tr.args[i] == "STEPCTL":
		default:
			args = append(args, strings.ReplaceAll(arg, "WORKDIR", s.Path("work/"+alice.name)))
		}
	}
	if tr.script != "" {
		script := s.Path("work/" + alice.name + "/job.sh")
		must(t, os.WriteFile(script, []byte(strings.ReplaceAll(tr.script, "STEPCTL run", "srun")), 0o755))
		args[len(args)-1] = script
	}
	if r := s.run(t, tr.env, args...); r.code != tr.code {
		t.Errorf("want exit code %d, got %v", tr.code, r)
	}
	s.idle(t)
	return readRecords(t, file)
}

// slurmWorld is a private Slurm, as its own records know it.
func slurmWorld(records []record, c *cluster.Cluster) *world {
	w := traceWorld(records)
	w.words = map[string]string{alice.name: "USER", cluster.Node: "vm"}
	w.paths = strings.NewReplacer(c.Path("work/"+alice.name), "WORKDIR",
		c.Path("spool/job"+fmt.Sprintf("%05s", jobID(records))+"/slurm_script"), "SCRIPT", c.Dir, "ETC")
	return w
}
