package integration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.ReplaceAll(b.buf.String(), logMark, "")
}

// call is one command line of stepctl, and who runs it where.
type call struct {
	program string // instead of stepctl
	args    []string
	uid     uint32 // 0 is the test user, see root
	root    bool
	env     []string // added to the standard environment
	clean   bool     // no standard environment
	dir     string
	stdin   string
	files   []*os.File // instead of pipes: stdin, stdout, stderr
	// terminal: stdin is the controlling terminal of a session of its own.
	terminal bool
	// limit is instead of callTimeout.
	limit time.Duration
}

// result is what the command left.
type result struct {
	out, err string
	code     int
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout: %q\nstderr: %q", r.code, r.out, r.err)
}

// ctl runs stepctl as the test user, in the working directory, with an empty
// stdin, and waits for its end.
func (n *node) ctl(t testing.TB, args ...string) result {
	t.Helper()
	return n.do(t, call{args: args})
}

// ctlRoot runs stepctl as root.
func (n *node) ctlRoot(t testing.TB, args ...string) result {
	t.Helper()
	return n.do(t, call{args: args, root: true})
}

// do runs one call to its end.
func (n *node) do(t testing.TB, c call) result {
	t.Helper()
	p := n.start(t, c)
	return p.wait(t)
}

// process is a stepctl that runs beside the test.
type process struct {
	cmd    *exec.Cmd
	args   []string
	out    bytes.Buffer
	err    bytes.Buffer
	cancel context.CancelFunc
	ctx    context.Context
	limit  time.Duration
}

// shell runs a shell script as the test user in dir.
func (n *node) shell(t testing.TB, dir, script string) result {
	t.Helper()
	return n.do(t, call{program: "/bin/sh", args: []string{script}, dir: dir})
}

// start starts one call.
func (n *node) start(t testing.TB, c call) *process {
	t.Helper()
	p := &process{args: c.args, limit: cmp.Or(c.limit, callTimeout)}
	p.ctx, p.cancel = context.WithTimeout(context.Background(), p.limit)
	program := n.bin
	if c.program != "" {
		program = c.program
	}
	user := testUser(t)
	p.cmd = exec.CommandContext(p.ctx, program, c.args...)
	p.cmd.WaitDelay = 2 * time.Second
	p.cmd.Dir = c.dir
	if c.dir == "" {
		p.cmd.Dir = n.wd
	}
	p.cmd.Env = append([]string{}, c.env...)
	if !c.clean {
		p.cmd.Env = append([]string{
			"PATH=/usr/bin:/bin", "HOME=" + n.path("home"), "USER=" + user.name, "LOGNAME=" + user.name,
			"SHELL=/bin/bash", "NODED_SOCKET=" + n.socket(),
		}, c.env...)
	}
	if !c.root {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user.uid, Gid: user.gid, Groups: user.groups}}
		if c.uid != 0 {
			p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.uid, Gid: c.uid}
		}
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = io.Reader(strings.NewReader(c.stdin)), &p.out, &p.err
	if c.terminal {
		if p.cmd.SysProcAttr == nil {
			p.cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		p.cmd.SysProcAttr.Setsid, p.cmd.SysProcAttr.Setctty = true, true
	}
	if c.files != nil {
		p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = c.files[0], c.files[1], c.files[2]
	}
	must(t, p.cmd.Start())
	return p
}

// wait waits for the end of a started call.
func (p *process) wait(t testing.TB) result {
	t.Helper()
	defer p.cancel()
	err := p.cmd.Wait()
	if p.ctx.Err() != nil {
		t.Fatalf("stepctl %q: still running after %v\nstdout: %q\nstderr: %q", p.args, p.limit, p.out.String(), p.err.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("stepctl %q: %v", p.args, err)
	}
	code := p.cmd.ProcessState.ExitCode()
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	return result{out: p.out.String(), err: p.err.String(), code: code}
}

// stepDoc is the STEP document of ps and show (design §7).
type stepDoc struct {
	JobID    uint32    `json:"job_id"`
	StepID   uint32    `json:"step_id"`
	Name     string    `json:"name"`
	UID      uint32    `json:"uid"`
	User     string    `json:"user"`
	Node     string    `json:"node"`
	State    string    `json:"state"`
	Reason   string    `json:"reason"`
	NTasks   int       `json:"ntasks"`
	ExitCode *int      `json:"exit_code"`
	Signal   *int      `json:"signal"`
	Command  []string  `json:"command"`
	Submit   string    `json:"submit_time"`
	Start    *string   `json:"start_time"`
	End      *string   `json:"end_time"`
	Tasks    []taskDoc `json:"tasks"`
	StepdPID int       `json:"stepd_pid"`
}

type taskDoc struct {
	Rank     int    `json:"rank"`
	LocalID  int    `json:"local_id"`
	PID      *int   `json:"pid"`
	State    string `json:"state"`
	ExitCode *int   `json:"exit_code"`
	Signal   *int   `json:"signal"`
	Stage    string `json:"stage"`
	Errno    int    `json:"errno"`
}

// ps lists the steps that run.
func (n *node) ps(t testing.TB, flags ...string) []stepDoc {
	t.Helper()
	r := n.ctlRoot(t, append([]string{"ps", "--json"}, flags...)...)
	var doc struct {
		Schema int       `json:"schema"`
		Steps  []stepDoc `json:"steps"`
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 || doc.Schema != 1 {
		t.Fatalf("stepctl ps --json: schema %d, %v, %v", doc.Schema, err, r)
	}
	return doc.Steps
}

// show returns the document of one step.
func (n *node) show(t testing.TB, id string) stepDoc {
	t.Helper()
	r := n.ctlRoot(t, "show", "--json", id)
	var doc struct {
		Schema int     `json:"schema"`
		Step   stepDoc `json:"step"`
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 || doc.Schema != 1 {
		t.Fatalf("stepctl show --json %s: schema %d, %v, %v", id, doc.Schema, err, r)
	}
	return doc.Step
}

// last returns the document of the newest step, running or ended.
func (n *node) last(t testing.TB) stepDoc {
	t.Helper()
	steps := n.ps(t, "--all")
	if len(steps) == 0 {
		t.Fatal("stepctl ps --all: no step")
	}
	newest := steps[0]
	for _, s := range steps {
		if s.JobID > newest.JobID || s.JobID == newest.JobID && s.StepID > newest.StepID {
			newest = s
		}
	}
	return newest
}

func (d stepDoc) id() string { return fmt.Sprintf("%d.%d", d.JobID, d.StepID) }

// running waits until the newest step runs with all of its tasks exec'd.
func (n *node) running(t testing.TB) stepDoc {
	t.Helper()
	var doc stepDoc
	eventually(t, callTimeout, "a running step", func() error {
		steps := n.ps(t)
		if len(steps) == 0 {
			return errors.New("ps shows no step")
		}
		doc = steps[len(steps)-1]
		if doc.State != "RUNNING" {
			return fmt.Errorf("step %s is %s", doc.id(), doc.State)
		}
		return nil
	})
	return doc
}

// runs waits until the step of that name (-J) runs. Until a client has reserved its step,
// running may find the one before it.
func (n *node) runs(t testing.TB, name string) (doc stepDoc) {
	t.Helper()
	eventually(t, callTimeout, "the running step "+name, func() error {
		steps := n.ps(t)
		i := slices.IndexFunc(steps, func(d stepDoc) bool { return d.Name == name && d.State == "RUNNING" })
		if i < 0 {
			return fmt.Errorf("ps has %+v", steps)
		}
		doc = steps[i]
		return nil
	})
	return doc
}

// awaitFile waits until there is a file.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	eventually(t, callTimeout, path, func() error {
		_, err := os.Stat(path)
		return err
	})
}
