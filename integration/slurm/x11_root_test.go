package slurm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
)

// TestRootX11: of a job's display nothing is left, however its daemons end, and no other user keeps
// the job's user from it. What users see of it, the checks compare.
func TestRootX11(t *testing.T) {
	t.Parallel()
	onReleases(t, func(t *testing.T, release string) {
		c := startSite(t, cluster.Site{Release: release, Users: []string{"alice", "bob"}, Conf: x11Conf, Files: cluster.Sites["x11"].Files})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		n := &displayNode{t: t, ctx: ctx, c: c, space: space(t, c)}
		n.server = strings.TrimSpace(n.run("alice", "$DIR/xserver 101"))
		for _, part := range []func(){n.secrets, n.crowd, n.launcherKilled, n.daemonKilled, n.bothKilled, n.places} {
			part()
		}
	})
}

const x11Conf = "PrologFlags=X11\nProctrackType=proctrack/pgid\n"

// displayNode is a node with jobs that have displays.
type displayNode struct {
	t      *testing.T
	ctx    context.Context
	c      *cluster.Cluster
	space  string
	server string // the X server's process there
}

func (n *displayNode) command(user, script string) *exec.Cmd {
	return n.c.Command(n.ctx, user, "timeout", "120", "sh", "-c", `
till() { until eval "$1" >/dev/null 2>&1; do sleep .05; done; }
export XAUTHORITY=$DIR/work/alice/xa DISPLAY=localhost:101
`+script)
}

// run is what a script prints.
func (n *displayNode) run(user, script string) string {
	n.t.Helper()
	out, err := n.command(user, script).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// display is a running job with a display.
type display struct {
	n         *displayNode
	job       int
	port      int
	authority string
	launcher  *exec.Cmd
}

// start starts a job whose step runs a script of alice's, and waits for its display.
func (n *displayNode) start(launcher, script string) *display {
	n.t.Helper()
	up := n.c.Path("work/alice/up")
	must(n.t, os.RemoveAll(up))
	cmd := n.command("alice", fmt.Sprintf(`exec %s sh -c 'echo $SLURM_JOB_ID $DISPLAY $XAUTHORITY > up.new; mv up.new up; %s'`, launcher, script))
	must(n.t, cmd.Start())
	d := &display{n: n, launcher: cmd}
	eventually(n.t, time.Minute, func() error {
		text, err := os.ReadFile(up)
		if err == nil {
			_, err = fmt.Sscanf(strings.ReplaceAll(string(text), ":", " "), "%d localhost %d.0 %s", &d.job, &d.port, &d.authority)
		}
		return err
	})
	if d.port == 0 {
		n.t.FailNow()
	}
	d.port += 6000
	return d
}

// end ends the job, and holds that nothing of it is left.
func (d *display) end() {
	d.n.t.Helper()
	d.n.run("root", fmt.Sprintf("scancel %d; till '! squeue -h | grep -q .'", d.job))
	_ = d.launcher.Wait() // the job was cancelled
	d.gone()
	eventually(d.n.t, time.Minute, func() error { return remains(d.n.c, d.n.space, d.job) })
}

// gone waits until the display's key, its note and its port are gone.
func (d *display) gone() {
	d.n.t.Helper()
	eventually(d.n.t, time.Minute, func() error {
		script := fmt.Sprintf("ls -d %s spool/stepd/x11-%d 2>/dev/null; grep -h ':%04X 0*:0000 0A' /proc/net/tcp /proc/net/tcp6 || true", d.authority, d.job, d.port)
		if left := d.n.run("root", script); left != "" {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	})
}

// secrets holds that the key is in the user's file, and nowhere else.
func (n *displayNode) secrets() {
	d := n.start("srun -Q --x11", "exec sleep 1000")
	key := strings.Fields(n.run("alice", "xauth list"))[2]
	if out := n.run("root", "XAUTHORITY="+d.authority+" xauth list; stat -c '%a %U' "+d.authority); !strings.Contains(out, key+"\n600 alice\n") {
		n.t.Errorf("the file of the key: %s", out)
	}
	holds := func(title string, env []byte) bool {
		return strings.Contains(title, key) || bytes.Contains(env, []byte(key))
	}
	if found := search(n.space, holds); len(found) > 0 {
		n.t.Errorf("the key is in the arguments or the environment of %v", found)
	}
	d.end()
	if out := n.run("root", "grep -rl "+key+" slurmd.log spool || true"); out != "" {
		n.t.Errorf("the key is in %s", out)
	}
}

// crowd holds that connections of another user, which say nothing, leave room for the job's user.
func (n *displayNode) crowd() {
	d := n.start("srun -Q --x11", "until test -e crowded; do sleep .05; done; $DIR/xclient > taken; exec sleep 1000")
	crowd := n.command("bob", fmt.Sprintf(`exec perl -MIO::Socket -e 'my @s = map { IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => %d) or die "$_: $!" } 1 .. 600; $| = 1; print "up\n"; <STDIN>'`, d.port))
	stdin, err := crowd.StdinPipe()
	must(n.t, err)
	out, err := crowd.StdoutPipe()
	must(n.t, err)
	must(n.t, crowd.Start())
	if _, err := out.Read(make([]byte, 1)); err != nil {
		n.t.Error(err)
	}
	n.run("alice", "touch crowded; till 'grep -q . taken'; cat taken | grep -qx taken")
	stdin.Close()
	must(n.t, crowd.Wait())
	d.end()
}

// launcherKilled holds that a client's connection ends with the salloc that has carried it.
func (n *displayNode) launcherKilled() {
	d := n.start("salloc -Q --x11 srun", `$DIR/xclient hold > ended; touch over; exec sleep 1000`)
	n.run("alice", "till 'grep -q taken ended'")
	killed := false
	for _, p := range search(n.space, func(title string, _ []byte) bool { return strings.HasPrefix(title, "salloc ") }) {
		killed = kill(n.t, p, unix.SIGKILL) || killed
	}
	if !killed {
		n.t.Error("no salloc was killed")
	}
	if got := n.run("alice", "till 'test -e over'; cat ended"); got != "taken\nthe connection has ended\n" {
		n.t.Errorf("the client printed %q", got)
	}
	d.end()
}

// externs are the daemon of the job's extern step and its keeper.
func (d *display) externs() (all []process) {
	for _, p := range processes(d.n.space, d.job) {
		if strings.HasSuffix(p.title, fmt.Sprintf("[%d.extern]", d.job)) {
			all = append(all, p)
		}
	}
	return all
}

// daemonKilled holds that the keeper removes a display.
func (n *displayNode) daemonKilled() {
	d := n.start("srun -Q --x11", "exec sleep 1000")
	if !kill(n.t, named(d.externs(), "slurmstepd"), unix.SIGKILL) {
		n.t.Errorf("no extern step's daemon among %v", d.externs())
	}
	d.gone()
	d.end()
}

// bothKilled holds that a later step removes a display whose keeper has died as well.
func (n *displayNode) bothKilled() {
	d := n.start("srun -Q --x11", "exec sleep 1000")
	if !killBoth(n.t, d.externs()) {
		n.t.Errorf("no extern step's daemon and keeper among %v", d.externs())
	}
	n.run("alice", "srun -Q sleep 0.1")
	d.gone()
	d.end()
}

// places holds where the key goes as slurm.conf says, and that a job runs without a display where
// the user cannot write there.
func (n *displayNode) places() {
	conf, err := os.ReadFile(n.c.Path("slurm.conf"))
	must(n.t, err)
	set := func(line string) {
		must(n.t, os.WriteFile(n.c.Path("slurm.conf"), append(bytes.Clone(conf), line...), 0o644))
	}
	set("TmpFS=/nonexistent\n")
	if got := n.run("alice", "srun -Q --x11 sh -c 'echo $DISPLAY'"); got != "SLURM_X11_SETUP_FAILED\n" {
		n.t.Errorf("without a place for the key: %q", got)
	}
	log, err := os.ReadFile(n.c.Path("slurmd.log"))
	if err != nil || !bytes.Contains(log, []byte("error: the job has no display: cannot forward X11: cannot write the display's key")) {
		n.t.Errorf("slurmd's log does not say why: %v", err)
	}
	set("X11Parameters=home_xauthority\n")
	n.run("alice", "unset XAUTHORITY; xauth -q add :7 . 00 2>/dev/null; xauth list > before")
	if got := n.run("alice", "srun -Q --x11 sh -c '$DIR/xclient; xauth list | wc -l'"); got != "taken\n2\n" {
		n.t.Errorf("with the key in the user's own file: %q", got)
	}
	n.run("alice", "unset XAUTHORITY; till 'xauth list | cmp -s - before'")
	n.run("root", "chown 0:0 work/alice; chmod 755 work/alice")
	// srun's own xauth waits for a lock beside its file.
	if got := n.run("alice", "cp xa /tmp/alice.xa; export XAUTHORITY=/tmp/alice.xa; srun -Q --x11 --chdir=/tmp sh -c 'echo $DISPLAY'"); got != "SLURM_X11_SETUP_FAILED\n" {
		n.t.Errorf("with a home that is not the user's: %q", got)
	}
	if left, _ := filepath.Glob(n.c.Path("spool/stepd/x11-*")); len(left) > 0 {
		n.t.Errorf("left: %q", left)
	}
}
