package slurm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
)

// backupConf has a second slurmctld, on a host of its own, take over from the first one soon.
const backupConf = `SlurmctldHost=b1(10.77.0.2)
CommunicationParameters=NoCtldInAddrAny
SlurmctldTimeout=4
`

// takeover is how long the backup's taking over may take on a busy machine, and the step daemon's
// next try after it, 15 s later.
const takeover = 180 * time.Second

// TestRootBackupController: the first slurmctld is killed before a batch job ends. The backup, which
// refuses while it stands by, takes over, and is sent the end.
func TestRootBackupController(t *testing.T) {
	t.Parallel()
	c := startSite(t, cluster.Site{Release: os.Getenv("RELEASE"), Conf: backupConf})
	startBackup(t, c)
	out, err := c.Command(t.Context(), "alice", "sbatch", "--parsable", "-o", "/dev/null", "--wrap", "touch up; while [ ! -e go ]; do sleep 0.1; done; exit 7").Output()
	must(t, err)
	job := strings.TrimSpace(string(out))
	eventually(t, faultWait, func() error {
		_, err := os.Stat(c.Path("work/alice/up"))
		return err
	})
	running := time.Now()
	eventually(t, faultWait, func() error { // else the backup would begin the job anew
		saved, err := os.Stat(c.Path("state/job_state"))
		if err == nil && saved.ModTime().Before(running) {
			err = errors.New("slurmctld has not saved that the job runs")
		}
		return err
	})
	must(t, c.End(t.Context(), "slurmctld", syscall.SIGKILL))
	must(t, os.WriteFile(c.Path("work/alice/go"), nil, 0o644))
	eventually(t, takeover, func() error {
		out, err := c.Command(t.Context(), "root", "scontrol", "-o", "show", "job", job).CombinedOutput()
		if text := string(out); err == nil && (!strings.Contains(text, " JobState=FAILED ") || !strings.Contains(text, " ExitCode=7:0 ")) {
			err = errors.New(text)
		}
		return err
	})
	if out, err := c.Command(t.Context(), "alice", "timeout", "60", "srun", "echo", "next").CombinedOutput(); err != nil || string(out) != "next\n" {
		t.Errorf("the next step: %v\n%s", err, out)
	}
}

// startBackup starts the second slurmctld, and waits until it stands by.
func startBackup(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	conf, err := os.ReadFile(c.Path("slurm.conf"))
	must(t, err)
	must(t, os.WriteFile(c.Path("backup.conf"), append(conf, fmt.Sprintf("SlurmctldPidFile=%s\nSlurmctldLogFile=%s\n", c.Path("backup.pid"), c.Path("backup.log"))...), 0o644))
	hosts, err := os.OpenFile(c.Path("etc/hosts"), os.O_APPEND|os.O_WRONLY, 0) // slurmctld looks its own host up
	must(t, err)
	_, err = hosts.WriteString("10.77.0.2 b1\n")
	must(t, errors.Join(err, hosts.Close()))
	start := `ip addr add 10.77.0.2/32 dev lo; hostname b1; exec slurmctld -f "$0"`
	must(t, c.Command(t.Context(), "root", "unshare", "--uts", "sh", "-ec", start, c.Path("backup.conf")).Run())
	eventually(t, faultWait, func() error {
		out, err := c.Command(t.Context(), "root", "scontrol", "ping").CombinedOutput()
		if err != nil || strings.Count(string(out), " is UP") != 2 {
			return fmt.Errorf("two controllers are to be up (%v): %s", err, out)
		}
		return nil
	})
	if t.Failed() {
		t.FailNow()
	}
}
