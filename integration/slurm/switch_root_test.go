package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// held starts steps that end when the file go exists, each with its own exit code, and one
// more that is cancelled; it returns when all run. Their exit codes are in the file codes.NAME
// at the end.
const held = `
for i in $(seq $N); do
	srun -J $NAME sh -c "touch $NAME.$i; until [ -e go ]; do sleep .1; done; exit $i" & pids="$pids $!"
done
srun -J $NAME.cancelled sh -c "touch $NAME.cancelled; exec sleep 600" & pids="$pids $!"
for p in $pids; do wait $p; echo $?; done > new.$NAME
mv new.$NAME codes.$NAME
`

// switcher is a cluster whose step daemon is changed while steps run.
type switcher struct {
	*cluster.Cluster
	t   *testing.T
	ctx context.Context
}

const switchUser = "ann"

// sh runs a script as the user and returns what it prints.
func (s switcher) sh(script string) string {
	s.t.Helper()
	out, err := s.Command(s.ctx, switchUser, "sh", "-c", preamble+script).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// hold starts n held steps, and waits until they run.
func (s switcher) hold(name string, n int) {
	s.t.Helper()
	cmd := s.Command(s.ctx, switchUser, "sh", "-c", fmt.Sprintf("NAME=%s N=%d\n%s", name, n, held))
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Wait() }) // the codes are in its file
	s.sh(fmt.Sprintf("till '[ $(ls -d %s.* | wc -l) = %d ]'", name, n+1))
}

// to restarts slurmd with another step daemon, whose tasks have that parent.
func (s switcher) to(stepDaemon, parent string) {
	s.t.Helper()
	if err := errors.Join(s.End(s.ctx, "slurmd", syscall.SIGTERM), s.StartSlurmdWith(s.ctx, stepDaemon)); err != nil {
		s.t.Fatal(err)
	}
	if got := s.sh("srun sh -c 'cat /proc/$PPID/comm'"); !strings.HasSuffix(got, parent+"\n") {
		s.t.Errorf("with step daemon %q a task's parent is %q, want %s", stepDaemon, got, parent)
	}
}

// ended reports the exit codes of held steps: what each has chosen, and a cancel's.
func (s switcher) ended(name string, n int) {
	s.t.Helper()
	var want strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&want, i)
	}
	fmt.Fprintln(&want, 128+int(syscall.SIGTERM))
	if got := s.sh(fmt.Sprintf("till '[ -e codes.%s ]'; cat codes.%[1]s", name)); got != want.String() {
		s.t.Errorf("exit codes of the steps %s: %q, want %q", name, got, want.String())
	}
}

// install puts the programs into a folder as a package's upgrade does: the old files of steps
// that run are deleted ones.
func install(t *testing.T, dir string) {
	t.Helper()
	from := programs(t)
	for _, name := range []string{"slurmstepd", "stepkeeper", "spankhost"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".new"), text, 0o755)
		}
		if err = errors.Join(err, os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRootSwitch: our step daemon is upgraded, exchanged for Slurm's and taken back, with 50
// steps running. Each of them ends as it would have, whichever daemon it has, and a cancel
// reaches it.
func TestRootSwitch(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	dir := t.TempDir()
	install(t, dir)
	s := switcher{startSite(t, cluster.Site{Programs: dir, Users: []string{switchUser}}), t, t.Context()}
	s.hold("old", 25)
	install(t, dir)
	s.hold("upgraded", 15)
	s.to("", "slurmstepd")
	s.sh("scancel -n old.cancelled")
	s.hold("theirs", 10)
	s.to(ours, "spankhost")
	s.sh("scancel -n upgraded.cancelled; scancel -n theirs.cancelled; touch go")
	s.ended("old", 25)
	s.ended("upgraded", 15)
	s.ended("theirs", 10)
	s.sh("till '[ -z \"$(squeue -h)\" ]'; till '[ $(sinfo -h -o %T) = idle ]'")
	if left, err := filepath.Glob(s.Path("spool") + "/" + cluster.Node + "_*"); err != nil || len(left) > 0 {
		t.Errorf("sockets of steps are left: %q (%v)", left, err)
	}
	if got := strings.TrimSpace(s.sh("ps -o pid= -C stepkeeper,spankhost | wc -l")); got != strconv.Itoa(0) {
		t.Errorf("%s processes of step daemons are left", got)
	}
}
