package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// preamble is before each check's script.
const preamble = `
till() { n=0; until eval "$@" >/dev/null 2>&1; do n=$((n+1)); [ $n -lt 1200 ] || { echo "gave up: $*"; return 1; }; sleep .05; done; }
jobs_() { squeue -h -u $USER -o %i; }
step_() { squeue -h -s -u $USER -o %i | grep -v -e batch -e extern -e interactive | head -1; }
pty_() { [ -p typed ] || mkfifo typed; { script -qec "$1" /dev/null <>typed; echo $? >typed.rc; } | tr -d '\r'; return $(cat typed.rc); }
export READY='echo $SLURM_JOB_ID.$SLURM_STEP_ID >up; echo ready; until test -e go; do sleep .05; done'
attach_() { till test -s up; till 'scontrol listpids $(cat up) | grep " 0  *0 "'; sattach "$@" $(cat up); }
go_() { for s; do till grep -q ready $s; done; >go; }
user() { setpriv --reuid=$WHO --regid=$WHO --init-groups --inh-caps=-all env -C $DIR/work/$WHO HOME=$DIR/work/$WHO USER=$WHO LOGNAME=$WHO "$@"; }
end_() { p=$(cat $DIR/$1.pid); kill $p; till "! kill -0 $p"; }
up_() { till "sinfo -h -o %T | grep -E 'idle|mix|alloc|drain'"; }
slurmd_() { case $1 in stop|restart) end_ slurmd;; esac; case $1 in start|restart) slurmd $SLURMD_ARGS -f $SLURM_CONF; up_;; esac; }
slurmctld_() { case $1 in stop) end_ slurmctld;; start) slurmctld -f $SLURM_CONF; till "scontrol ping | grep UP"; esac; }
`

// sweep is what runs as root after each check: it reports what the check has left.
const sweep = `n=0
while j=$(squeue -h -u $WHO -o %T); p=$(ps -o comm= -u $WHO | sort | tr '\n' ' '); [ -n "$j$p" ] && [ $n -lt 40 ]; do n=$((n+1)); sleep .2; done
[ -z "$j" ] || echo "left: job $j"
[ -z "$p" ] || echo "left: processes $p"
[ -z "$j$p" ] || { scancel -u $WHO; pkill -KILL -u $WHO; true; }
`

// run runs a check and returns its outcome: the masked lines of stdout and stderr, the exit
// code, and what it has left.
func (c check) run(ctx context.Context, t testing.TB, on *cluster.Cluster, stepDaemon string) []string {
	user := c.user()
	if c.root {
		user = "root"
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit+time.Minute)
	defer cancel()
	empty(t, on.Path("work/"+c.user())) // of an earlier run
	// Files: a process that the check leaves behind keeps a pipe open.
	var streams [2]*os.File
	for i, name := range []string{".out", ".err"} {
		f, err := os.Create(on.Path(c.id + name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		streams[i] = f
	}
	script := preamble + c.script
	if stepDaemon != "" {
		script = "SLURMD_ARGS='-d " + stepDaemon + "'\n" + script
	}
	cmd := on.Command(ctx, user, "timeout", "-k", "2", fmt.Sprint(c.limit.Seconds()), "sh", "-c", script)
	cmd.Env = append(cmd.Env, "WHO="+c.user())
	cmd.Stdout, cmd.Stderr = streams[0], streams[1]
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	end := on.Command(ctx, "root", "sh", "-c", sweep)
	end.Env = append(end.Env, "WHO="+c.user())
	left, err := end.Output()
	if err != nil {
		t.Errorf("%s: cannot look at what is left: %v", c.id, err)
	}
	out, err1 := os.ReadFile(streams[0].Name())
	errs, err2 := os.ReadFile(streams[1].Name())
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	lines := slices.Concat(labelled("out: ", mask(out, on.Dir), c.sorted), labelled("err: ", mask(errs, on.Dir), true))
	lines = slices.DeleteFunc(lines, c.dropped)
	return slices.Concat(lines, []string{fmt.Sprintf("rc=%d", cmd.ProcessState.ExitCode())}, labelled("", left, false))
}

// empty removes what is in a folder.
func empty(t testing.TB, dir string) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	if err != nil {
		t.Error(err)
	}
}

// labelled splits a stream's text into lines. stderr's have several writers and so no
// order.
func labelled(label string, text []byte, sorted bool) (lines []string) {
	for _, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if line != "" || len(text) > 0 {
			lines = append(lines, label+line)
		}
	}
	if sorted {
		slices.Sort(lines)
	}
	return lines
}

var (
	// That a job waits for its turn is slurmctld's concern.
	waitsForTurn = regexp.MustCompile(`(srun|salloc): (job JOB (queued and waiting for|has been allocated) resources|Pending job allocation JOB|Job JOB step creation temporarily disabled, .*|Step created for .*)$`)
	racyLines    = regexp.MustCompile(`srun: (Force Terminated StepId=|Job step aborted(: Waiting .*)?$)|salloc: Job allocation JOB has been revoked`)
)

// Without systemd Slurm's own step daemon moves itself to the root of the machine's tree,
// which the guest's clusters do not have.
var withoutSystemd = regexp.MustCompile(`error: (common_file_write_uint32s: write pid \d+ to /sys/fs/cgroup/cgroup.procs failed|Unable to move pid \d+ to init root cgroup|error unlocking cgroup '/sys/fs/cgroup/system.slice/)`)

// dropped reports whether a line is not compared.
func (c check) dropped(line string) bool {
	return testkit.InGuest() && withoutSystemd.MatchString(line) || waitsForTurn.MatchString(line) || c.racy && racyLines.MatchString(line) ||
		c.drop != "" && regexp.MustCompile(c.drop).MatchString(line)
}

var (
	jobNumber = regexp.MustCompile(`(^|\D)1000\d\d\d(\D|$)`)
	dateTime  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?`)
	// From 26.05 on Slurm's step daemon writes when it speaks; ours who, in each release.
	speaker = regexp.MustCompile(`(?m)^((?:\d+: )?)\[TIME\] error: `)
	bound   = regexp.MustCompile(`(mem-bind.* task +\d+ +\d+ )\[\d+\]: `)
	sluid   = regexp.MustCompile(`\bs[0-9A-Z]{13}\b`) // a job's number that no other has, from 26.05 on
)

// mask replaces what differs between two clusters, and between two runs.
func mask(text []byte, dir string) []byte {
	text = bytes.ReplaceAll(text, []byte(dir), []byte("DIR"))
	for range 2 { // two numbers that share what is between them
		text = jobNumber.ReplaceAll(text, []byte("${1}JOB${2}"))
	}
	text = bound.ReplaceAll(text, []byte("${1}[PID]: "))
	return speaker.ReplaceAll(sluid.ReplaceAll(dateTime.ReplaceAll(text, []byte("TIME")), []byte("SLUID")), []byte("${1}slurmstepd-"+cluster.Node+": error: "))
}

func TestMask(t *testing.T) {
	got := mask([]byte("1000001 1000002 /x/y/job1000003/s 21000001 at 2026-11-23T03:10:10 *** [2026-11-23T03:10:10.123] s571M84Z9XG700\nmem-bind=MAP - n1, task  0  0 [179]: mask\n[2026-11-23T03:10:10.123] error: x\n"), "/x/y")
	if want := "JOB JOB DIR/jobJOB/s 21000001 at TIME *** [TIME] SLUID\nmem-bind=MAP - n1, task  0  0 [PID]: mask\nslurmstepd-n1: error: x\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
