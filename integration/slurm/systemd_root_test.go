package slurm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// slurmdUnit is Debian's slurmd.service for a slurmd that sees the cluster's files and network, and
// the machine's processes. It is the unit's main process.
const slurmdUnit = `[Service]
Type=simple
Environment=SLURM_CONF=%[2]s/slurm.conf
ExecStart=/usr/bin/nsenter --target %[1]d --mount --net --uts --root -- unshare --mount sh -ec 'mount -t proc proc /proc; exec slurmd -D -f %[2]s/slurm.conf -d %[3]s'
KillMode=process
LimitNOFILE=131072
LimitMEMLOCK=infinity
LimitSTACK=infinity
Delegate=yes
TasksMax=infinity
`

// slurmdService is the unit's name.
const slurmdService = "test-slurmd.service"

// slowly bounds what waits for several programs in the guest.
const slowly = 180 * time.Second

// TestRootSlurmdRestarted has systemd restart slurmd with a step of srun and one of sbatch running,
// whose processes systemd finds left in the unit's cgroup. They run on and end as they would have,
// and the next step runs.
func TestRootSlurmdRestarted(t *testing.T) {
	if !testkit.InGuest() {
		t.Skip("runs in the guest: make vm-test")
	}
	c := startSite(t, cluster.Site{Cgroup: "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"}) // the cluster's first slurmd finds no systemd
	s := &servedSite{c}
	must(t, c.End(t.Context(), "slurmd", syscall.SIGTERM))
	s.makeUnit(t)
	s.systemctl(t, "start", slurmdService)
	s.serves(t)

	p := s.startPair(t)
	s.systemctl(t, "restart", slurmdService)
	s.serves(t)
	p.end(t)
	if out, err := c.Command(t.Context(), "alice", "timeout", "60", "srun", "echo", "next").CombinedOutput(); err != nil || string(out) != "next\n" {
		t.Errorf("the next step: %v\n%s", err, out)
	}
	eventually(t, slowly, func() error {
		out, err := c.Command(t.Context(), "root", "sh", "-c", "sinfo -h -o %T; squeue -h").Output()
		if string(out) != "idle\n" {
			return fmt.Errorf("sinfo and squeue: %q (%v)", out, err)
		}
		return nil
	})
}

// servedSite is a cluster whose slurmd is systemd's.
type servedSite struct{ *cluster.Cluster }

// makeUnit makes the unit, for the length of the test.
func (s *servedSite) makeUnit(t *testing.T) {
	t.Helper()
	all := search(space(t, s.Cluster), func(string, []byte) bool { return true })
	if len(all) == 0 {
		t.Fatal("the cluster has no process")
	}
	path := "/run/systemd/system/" + slurmdService
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	text := fmt.Sprintf(slurmdUnit, all[0].pid, s.Dir, ours)
	must(t, os.WriteFile(path, []byte(text), 0o644))
	t.Cleanup(func() {
		s.systemctl(t, "stop", slurmdService)
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
		s.systemctl(t, "daemon-reload")
	})
	s.systemctl(t, "daemon-reload")
}

func (s *servedSite) systemctl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		status, _ := exec.Command("systemctl", "status", "--no-pager", slurmdService).CombinedOutput()
		t.Fatalf("systemctl %q: %v\n%s%s", args, err, out, status)
	}
}

// serves waits until slurmd, as it runs now, answers.
func (s *servedSite) serves(t *testing.T) {
	t.Helper()
	eventually(t, slowly, func() error {
		if out, err := s.Command(t.Context(), "root", "scontrol", "show", "slurmd", cluster.Node).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if t.Failed() {
		t.FailNow()
	}
}

// pair are a step of srun and one of sbatch, each of a job of its own, that run until they may end.
type pair struct {
	site *servedSite
	srun *exec.Cmd
	said strings.Builder
	job  string // sbatch's
}

func (s *servedSite) startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{site: s}
	task := func(kind string) string {
		return fmt.Sprintf("echo >> up.%s; while [ ! -e go ]; do sleep 0.2; done; exit 7", kind)
	}
	p.srun = s.Command(t.Context(), "alice", "timeout", "600", "srun", "-Q", "sh", "-c", task("srun"))
	p.srun.Stdout, p.srun.Stderr = &p.said, &p.said
	must(t, p.srun.Start())
	out, err := s.Command(t.Context(), "alice", "sbatch", "--parsable", "-o", "/dev/null", "--wrap", task("sbatch")).Output()
	must(t, err)
	p.job = strings.TrimSpace(string(out))
	for _, kind := range []string{"srun", "sbatch"} {
		eventually(t, slowly, func() error {
			_, err := os.Stat(s.Path("work/alice/up." + kind))
			return err
		})
	}
	return p
}

// end lets the two end, and looks at what srun and slurmctld have been told: of tasks that have run
// once.
func (p *pair) end(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(p.site.Path("work/alice/go"), nil, 0o644))
	_ = p.srun.Wait() // its exit code is looked at
	if code := p.srun.ProcessState.ExitCode(); code != 7 {
		t.Errorf("srun's exit code is %d, want 7: %s", code, p.said.String())
	}
	eventually(t, slowly, func() error {
		out, err := p.site.Command(t.Context(), "root", "scontrol", "-o", "show", "job", p.job).CombinedOutput()
		for _, word := range []string{" JobState=FAILED ", " ExitCode=7:0 ", " Restarts=0 "} {
			if !strings.Contains(string(out), word) {
				return fmt.Errorf("no%s(%v): %s", word, err, out)
			}
		}
		return nil
	})
	for _, kind := range []string{"srun", "sbatch"} {
		if runs, err := os.ReadFile(p.site.Path("work/alice/up." + kind)); err != nil || string(runs) != "\n" {
			t.Errorf("%s's task has begun %d times (%v)", kind, len(runs), err)
		}
	}
}
