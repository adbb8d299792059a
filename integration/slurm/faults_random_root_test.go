package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
	"stepd/internal/linux"
	"stepd/internal/testkit"
)

const (
	// randomPoints is how many make test tries, and randomLanes in how many clusters a longer
	// run tries them at once: within one they follow each other.
	randomPoints = 8
	randomLanes  = 4
	// launchTime is how long a launch may take, and shortTask less than what the tasks take.
	launchTime = 20 * time.Millisecond
	shortTask  = 50 * time.Millisecond
	// stoppedFor is how long a process that is stopped stands still.
	stoppedFor = 100 * time.Millisecond
)

// TestRootSlurmRandomKills kills the step daemon, its host of plugins, its keeper, or daemon and
// keeper, or has one of them crash or stand still, at moments of srun's and sbatch's steps that
// have no name. POINTS is how many have to find their process, and SEED chooses them.
func TestRootSlurmRandomKills(t *testing.T) {
	testkit.RequireRoot(t)
	t.Parallel()
	number := func(name string, otherwise int) int {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.Atoi(text)
			must(t, err)
			return n
		}
		return otherwise
	}
	points, lanes := number("POINTS", randomPoints), 1
	if points > randomPoints {
		lanes = randomLanes
	}
	seed := uint64(number("SEED", int(time.Now().UnixNano()&0xffffff)))
	t.Logf("SEED=%d", seed)
	var wg sync.WaitGroup
	for i := range lanes {
		l := &randomLane{site: startFaultSite(t, hosting(t)), random: rand.New(rand.NewPCG(seed, uint64(i))), job: cluster.FirstJob}
		wg.Go(func() { l.run(t, points/lanes) })
	}
	wg.Wait()
}

// randomLane is a cluster in which steps are killed, one after the other: which step the next
// slurmstepd serves is known.
type randomLane struct {
	site   *faultSite
	random *rand.Rand
	job    int // the latest: the cluster's first step was one's
	starts int // an inotify descriptor that has an event when slurmstepd is run
	// found is how many kills found their process, and hits whose it was.
	found int
	hits  map[string]int
	// requeued is how many batch jobs slurmctld had begin anew, whose launch had failed.
	requeued int
}

func (l *randomLane) run(t *testing.T, points int) {
	l.hits = make(map[string]int)
	var err error
	l.starts, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(l.starts)
	_, err = unix.InotifyAddWatch(l.starts, filepath.Join(l.site.programs, "slurmstepd"), unix.IN_OPEN)
	must(t, err)
	began := time.Now()
	steps := 0
	for ; l.found < points && steps < 3*points && !t.Failed(); steps++ {
		p := l.choose()
		t.Run(p.String(), p.run)
	}
	if l.found < points {
		t.Errorf("%d of %d kills found their process", l.found, steps)
	}
	t.Logf("%d steps, of which these were killed: %v; slurmctld had %d batch jobs begin anew", steps, l.hits, l.requeued)
	l.site.report(t, time.Since(began))
}

// randomPoint is one kill.
type randomPoint struct {
	lane   *randomLane
	victim string
	signal unix.Signal
	kind   kind
	after  time.Duration // from slurmd's exec to the signal
	job    int
	name   string

	client  *exec.Cmd
	said    bytes.Buffer
	done    chan struct{} // closed with the client's end
	killed  time.Time
	ended   time.Time // the client
	hit     bool
	watched bool // the step had a keeper
	early   bool // its tasks cannot have ended
	anew    bool // slurmctld has the job begin anew
	code    int  // srun's or the batch job's
}

func (p *randomPoint) String() string {
	return fmt.Sprintf("%v to %s of %s after %v", p.signal, p.victim, p.kind.name, p.after)
}

// choose chooses the next: half of the kills come in the launch.
func (l *randomLane) choose() *randomPoint {
	l.job++
	within := launchTime
	if l.random.IntN(2) == 0 {
		within += shortTask
	}
	p := &randomPoint{
		lane: l, job: l.job, done: make(chan struct{}),
		victim: []string{"slurmstepd", "spankhost", "stepkeeper", both}[l.random.IntN(4)],
		signal: []unix.Signal{unix.SIGKILL, unix.SIGKILL, unix.SIGSEGV, unix.SIGSTOP}[l.random.IntN(4)],
		kind:   []kind{shortSrun, shortBatch}[l.random.IntN(2)],
		after:  time.Duration(l.random.Int64N(int64(within))).Round(10 * time.Microsecond),
	}
	if p.victim == both { // one after the other, which a crash's traceback would part
		p.signal = unix.SIGKILL
	}
	return p
}

// The steps end by themselves, with 7.
var (
	shortCommand = fmt.Sprintf("setsid sleep 1000 & sleep %.3f; exit 7", shortTask.Seconds())
	shortSrun    = kind{name: "srun", args: func(name string) []string {
		return []string{"srun", "-Q", "-J", name, "-n2", "sh", "-c", shortCommand}
	}}
	shortBatch = kind{name: "sbatch", batch: true, args: func(name string) []string {
		return []string{"sbatch", "-Q", "-J", name, "-o", "/dev/null", "--wrap", shortCommand}
	}}
)

func (p *randomPoint) run(t *testing.T) {
	p.start(t)
	if !p.await(t) {
		return
	}
	p.strike(t)
	site := p.lane.site
	switch {
	case !p.hit:
	case p.victim == both, p.victim == "slurmstepd" && !p.watched:
		p.lane.job++ // the next step's
		site.swept(t, p.job, p.name)
	case p.victim == "slurmstepd":
		eventually(t, endsIn, p.left)
		site.note(&site.slow, time.Since(p.killed), p)
	case p.victim == "stepkeeper":
		eventually(t, keeperIn, p.again)
	}
	p.wait(t)
	p.judge(t)
	eventually(t, endsIn, p.left)
	eventually(t, faultWait, func() error { return site.idle(t) })
	if t.Failed() {
		t.Logf("it printed: %s", p.said.String())
		site.log(t, p.job)
	}
}

// left is what is left of the step. One whose daemon was killed at once may have no event log.
func (p *randomPoint) left() error {
	if p.hit && (p.victim == "slurmstepd" || p.victim == both) {
		return remains(p.lane.site.Cluster, p.lane.site.space, p.job)
	}
	return left(p.lane.site.Cluster, p.lane.site.space, p.job)
}

// start starts the client.
func (p *randomPoint) start(t *testing.T) {
	t.Helper()
	p.name = p.lane.site.number()
	p.drain() // what earlier steps have opened
	p.client = p.lane.site.Command(t.Context(), "alice", "timeout", append([]string{"-k", "1", "40"}, p.kind.args(p.name)...)...)
	p.client.Stdout, p.client.Stderr = &p.said, &p.said
	must(t, p.client.Start())
	go func() {
		defer close(p.done)
		_ = p.client.Wait() // its exit code is looked at
		p.ended = time.Now()
	}()
}

// drain forgets the starts of slurmstepd so far, and reports whether there were any.
func (p *randomPoint) drain() bool {
	n, err := unix.Read(p.lane.starts, make([]byte, 4096))
	return err == nil && n > 0
}

// await waits for slurmd's exec, and then as long as was chosen.
func (p *randomPoint) await(t *testing.T) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.lane.starts), Events: unix.POLLIN}}
	for end := time.Now().Add(faultWait); !p.drain(); {
		if _, err := unix.Poll(fds, int(time.Until(end).Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Errorf("slurmd has started no step daemon")
			return false
		}
	}
	time.Sleep(p.after)
	return true
}

// strike kills. The daemon has no title yet when it begins.
func (p *randomPoint) strike(t *testing.T) {
	t.Helper()
	all := processes(p.lane.site.space, p.job)
	for _, begins := range search(p.lane.site.space, func(title string, _ []byte) bool { return title == ours }) {
		all = append(all, process{begins.pid, "slurmstepd: [" + p.String()})
	}
	p.watched = named(all, "stepkeeper").pid != 0
	began, err := linux.StartTime(named(all, "slurmstepd").pid)
	p.killed = time.Now()
	if p.victim == both {
		p.hit = killBoth(t, all)
	} else {
		p.hit = kill(t, named(all, p.victim), p.signal)
	}
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
	p.early = err == nil && time.Duration(now.Nano())-time.Duration(began)*time.Second/100 < shortTask
	if p.hit {
		p.lane.hits[fmt.Sprintf("%v to %s", p.signal, p.victim)]++
		p.lane.found++
	}
	if p.signal == unix.SIGSTOP && p.hit { // it stands still for a while, and all goes on
		time.Sleep(stoppedFor)
		kill(t, named(all, p.victim), unix.SIGCONT)
		p.hit = false
	}
}

// again is an error while the step runs and has no other keeper, and the log does not say so.
func (p *randomPoint) again() error {
	all := processes(p.lane.site.space, p.job)
	if named(all, "slurmstepd").pid == 0 || named(all, "stepkeeper").pid != 0 {
		p.lane.site.note(&p.lane.site.again, time.Since(p.killed), p)
		return nil
	}
	text, err := os.ReadFile(p.lane.site.Path("slurmd.log"))
	if err == nil && !strings.Contains(string(text), fmt.Sprintf("[%d.", p.job)) {
		err = errors.New("no new keeper, and no word of it")
	}
	return err
}

// wait waits for the client's end, and for the job's.
func (p *randomPoint) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(faultWait):
		t.Errorf("%v after the kill the client has not ended", time.Since(p.killed))
		<-p.done // timeout(1)
	}
	p.code = p.client.ProcessState.ExitCode()
	eventually(t, faultWait, func() error { return p.over(t) })
}

// over is an error while the job has not ended; the exit code of a batch job is its own. slurmctld
// has a batch job begin anew, and holds it, whose daemon was killed before it had answered slurmd:
// for slurmd the launch has failed, as under Slurm's own.
func (p *randomPoint) over(t *testing.T) error {
	out, err := p.lane.site.Command(t.Context(), "root", "scontrol", "-o", "show", "job", strconv.Itoa(p.job)).Output()
	if err != nil {
		return err
	}
	value := func(name string) string {
		_, rest, _ := strings.Cut(string(out), " "+name+"=")
		word, _, _ := strings.Cut(rest, " ")
		return word
	}
	switch state := value("JobState"); {
	case state == "PENDING" && value("Restarts") == "1" && !p.anew:
		p.anew = true
		p.lane.requeued++
		must(t, p.lane.site.Command(t.Context(), "root", "scancel", strconv.Itoa(p.job)).Run())
		return errors.New("it is cancelled")
	case state == "PENDING" || state == "RUNNING" || state == "COMPLETING":
		return fmt.Errorf("job %d is %s", p.job, state)
	}
	if p.kind.batch {
		var signal int
		if _, err := fmt.Sscanf(value("ExitCode"), "%d:%d", &p.code, &signal); err != nil {
			return fmt.Errorf("exit code %q: %w", value("ExitCode"), err)
		}
		p.code += signal
	}
	return nil
}

// judge looks at what the client has been told, and at how soon.
func (p *randomPoint) judge(t *testing.T) {
	t.Helper()
	switch code := p.code; {
	case p.hit && p.victim == both, p.anew: // cancelled
	case p.hit && p.victim == "slurmstepd" && !p.watched && p.kind.batch: // cancelled as well
	case code <= 0:
		t.Errorf("exit code %d", code)
	case p.hit && p.victim != "stepkeeper" && p.early && code == 7:
		t.Error("exit code 7, of a step that was killed")
	case (!p.hit || p.victim == "stepkeeper") && code != 7:
		t.Errorf("exit code %d, want 7", code)
	}
	if p.hit && p.victim == "slurmstepd" && !p.kind.batch {
		p.lane.site.note(&p.lane.site.told, p.ended.Sub(p.killed), p)
	}
}
