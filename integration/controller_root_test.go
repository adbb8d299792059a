package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// controlled is the program integration/controller, at work.
type controlled struct {
	t      *testing.T
	orders io.WriteCloser
	news   chan line
}

// line is what the controller says of a step.
type line struct {
	Event  string
	Job    uint32
	Step   uint32
	State  string
	Exit   *int `json:"exit_code"`
	Reason string
}

func (l line) String() string {
	exit := "-"
	if l.Exit != nil {
		exit = fmt.Sprint(*l.Exit)
	}
	return fmt.Sprintf("%s %d.%d %s %s %q", l.Event, l.Job, l.Step, l.State, exit, l.Reason)
}

// startController builds the controller and starts it, as root.
func startController(t *testing.T, n *node) *controlled {
	t.Helper()
	program := filepath.Join(t.TempDir(), "controller")
	build := exec.Command("go", "build", "-o", program, "./controller")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.Command(program, n.socket())
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &controlled{t: t, orders: orders, news: make(chan line)}
	done := make(chan struct{})
	go func() { // ends with the controller
		defer close(done)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			var l line
			if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
				l.Event = sc.Text()
			}
			c.news <- l
		}
		close(c.news)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended where all is well
		for range c.news {
		}
		<-done
		_ = cmd.Wait() // killed
	})
	return c
}

// order writes one.
func (c *controlled) order(text string) {
	c.t.Helper()
	_, err := fmt.Fprintln(c.orders, text)
	must(c.t, err)
}

// says takes so many lines and compares them, in any order.
func (c *controlled) says(want ...string) {
	c.t.Helper()
	missing := map[string]int{}
	for _, w := range want {
		missing[w]++
	}
	for range want {
		if l := c.next(); missing[l.String()] == 0 {
			c.t.Errorf("the controller says %v, want %q", l, want)
		} else {
			missing[l.String()]--
		}
	}
}

// next is the next line.
func (c *controlled) next() line {
	c.t.Helper()
	select {
	case l, ok := <-c.news:
		if !ok {
			c.t.Fatal("the controller has ended")
		}
		return l
	case <-time.After(callTimeout):
		c.t.Fatal("the controller says nothing")
	}
	panic("unreachable")
}

// TestRootController: a controller that starts each step by itself, with numbers and places
// in job arrays of its own, on the importable client. It outlives noded.
func TestRootController(t *testing.T) {
	waits(t)
	testkit.RequireRoot(t)
	n := startNode(t, site{})
	out := n.path("out")
	must(t, os.Mkdir(out, 0o777))
	must(t, os.Chmod(out, 0o777))
	c := startController(t, n)
	wrote := func(name, want string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || string(b) != want {
			t.Errorf("%s has %q, %v; want %q", name, b, err, want)
		}
	}
	// order is a step of a user's that runs a shell.
	order := func(job, step uint32, who account, command, more string) string {
		argv, err := json.Marshal([]string{"sh", "-c", command})
		must(t, err)
		return fmt.Sprintf(`{"job":%d,"step":%d,"uid":%d,"argv":%s,"cwd":%q%s}`, job, step, who.uid, argv, out, more)
	}
	const env = `echo $(id -u) $SLURM_JOB_ID $SLURM_STEP_ID $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT ` +
		`$SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP ${SLURM_RESTART_COUNT-none}`
	array := func(task, restarts int) string {
		return fmt.Sprintf(`,"out":"%%A_%%a.%%s.%d","array":{"job":100,"task":%d,"count":2,"min":1,"max":4,"step":3},"restarts":%d`, restarts, task, restarts)
	}

	t.Run("numbers, array and restarts", func(t *testing.T) {
		c.t = t
		c.order(order(100, 0, alice, env, array(1, 0)))
		c.order(order(103, 7, bob, env+"; exit 9", array(4, 2)))
		c.says(`started 100.0  - ""`, `started 103.7  - ""`, `ended 100.0 COMPLETED 0 ""`, `ended 103.7 FAILED 9 "task 0: Exited with exit code 9"`)
		wrote("100_1.0.0", fmt.Sprintf("%d 100 0 100 1 2 1 4 3 none\n", alice.uid))
		wrote("100_4.7.2", fmt.Sprintf("%d 103 7 100 4 2 1 4 3 2\n", bob.uid))
		// The job runs again, and what has run does not.
		c.order(order(100, 0, alice, env, array(1, 1)))
		c.order(order(103, 7, bob, env, array(4, 2)))
		c.says(`started 100.0  - ""`, `started 103.7  - ""`, `ended 100.0 COMPLETED 0 ""`, `ended 103.7 FAILED 9 "task 0: Exited with exit code 9"`)
		wrote("100_1.0.1", fmt.Sprintf("%d 100 0 100 1 2 1 4 3 1\n", alice.uid))
	})
	t.Run("a job of two steps, one cancelled", func(t *testing.T) {
		c.t = t
		c.order(order(200, 3, alice, ": > ready; sleep 1000", `,"out":"%j.%s"`))
		c.says(`started 200.3  - ""`)
		c.order(order(200, 5, alice, "while [ ! -e ready ]; do sleep 0.05; done; echo $SLURM_JOB_ID.$SLURM_STEP_ID", `,"out":"%j.%s","joins":true`))
		c.says(`started 200.5  - ""`, `ended 200.5 COMPLETED 0 ""`)
		wrote("200.5", "200.5\n")
		c.order(`{"job":200,"step":3,"cancel":true}`)
		c.says(`ended 200.3 CANCELLED 143 "cancelled by uid 0: \"its controller ends it\""`)
	})
	t.Run("a refusal", func(t *testing.T) {
		c.t = t
		c.order(fmt.Sprintf(`{"job":300,"step":0,"uid":%d,"argv":["true"],"cwd":"here","out":"x"}`, alice.uid))
		c.says(`failed 300.0  - "cwd: \"here\" is not an absolute path"`)
		c.order(`{"job":299,"step":0,"cancel":true}`)
		c.says(`failed 299.0  - "no such step \"299.0\""`)
	})
	t.Run("noded dies", func(t *testing.T) {
		c.t = t
		c.order(order(400, 0, alice, "while [ ! -e go ]; do sleep 0.05; done; echo gone on", `,"out":"%j"`))
		c.order(order(401, 0, bob, "sleep 1000", `,"out":"%j"`))
		c.says(`started 400.0  - ""`, `started 401.0  - ""`)
		n.running(t)
		n.kill9(t)
		c.order(order(402, 2, bob, "echo meanwhile", `,"out":"%j"`))
		c.order(`{"job":401,"step":0,"cancel":true}`)
		must(t, os.WriteFile(filepath.Join(out, "go"), nil, 0o644))
		n.boot(t)
		c.says(`started 402.2  - ""`, `ended 402.2 COMPLETED 0 ""`, `ended 400.0 COMPLETED 0 ""`,
			`ended 401.0 CANCELLED 143 "cancelled by uid 0: \"its controller ends it\""`)
		wrote("400", "gone on\n")
		wrote("402", "meanwhile\n")
	})
	t.Run("noded dies while it launches", func(t *testing.T) {
		c.t = t
		const lost = "noded ended while it started the step"
		for round := range uint32(4) {
			job := 500 + 10*round
			launch := func(i uint32, restarts int) {
				c.order(order(job+i, i, alice, "echo done $SLURM_RESTART_COUNT", fmt.Sprintf(`,"out":"%%j","restarts":%d`, restarts)))
			}
			for i := range uint32(8) {
				launch(i, 0)
			}
			// After some of them have started, others may be at any point of it.
			ended, again := 0, map[uint32]bool{}
			for started := uint32(0); ended < 8; {
				if started == 2*round {
					n.kill9(t)
					n.boot(t)
					started++
				}
				switch l := c.next(); {
				case l.Event == "started":
					started++
				case l.Event == "ended" && l.State == "FAILED" && l.Reason == lost && !again[l.Step]:
					again[l.Step] = true
					launch(l.Step, 1)
				case l.Event == "ended" && l.State == "COMPLETED":
					ended++
				default:
					t.Fatalf("the controller says %v", l)
				}
			}
			for i := range uint32(8) {
				want := "done\n"
				if again[i] {
					want = "done 1\n"
				}
				wrote(fmt.Sprint(job+i), want)
			}
		}
	})
	must(t, c.orders.Close())
	select {
	case l, ok := <-c.news:
		if ok {
			t.Errorf("the controller says %v", l)
		}
	case <-time.After(callTimeout):
		t.Error("the controller does not end")
	}
}
