package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/api"
	"stepd/node/scripts"
	"stepd/step"
)

// scripted is a node with a prolog and an epilog, and a plugin stack.
type scripted struct {
	*testNode
	out string // what the scripts append to
	cfg func(*Config)
}

// newScripted makes the scripts; body is what each of them does after it has
// told its name and environment.
func newScripted(t *testing.T, prolog, epilog string, change func(*Config)) *scripted {
	t.Helper()
	dir := t.TempDir()
	s := &scripted{out: filepath.Join(dir, "out")}
	script := func(name, body string) string {
		path := filepath.Join(dir, name)
		// One write: a reader, or a kill, finds no part of a line.
		text := fmt.Sprintf("#!/bin/sh\nline=$(env | sort | while read -r e; do printf ' %%s' \"$e\"; done)\nprintf '%%s%%s\\n' %s \"$line\" >>%s\n%s\n", name, s.out, body)
		// A fork of another test must not keep it open for writing: ETXTBSY.
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	p, e := script("prolog.sh", prolog), script("epilog.sh", epilog)
	s.cfg = func(c *Config) {
		c.Scripts = scripts.Config{Prolog: []string{p}, Epilog: []string{e}, StackID: func() (string, string, error) { return "stack", "", nil }}
		c.Site.Cluster, c.Site.Partition, c.Site.SlurmConf = "golden", "p", "/etc/x.conf"
		if change != nil {
			change(c)
		}
	}
	s.testNode = start(t, filepath.Join(dir, "node"), s.cfg)
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *scripted) restart() {
	s.t.Helper()
	s.stop()
	s.testNode = start(s.t, s.dir, s.cfg)
}

// told returns the first words of what ran, in order.
func (s *scripted) told() []string {
	s.t.Helper()
	var words []string
	for _, line := range s.lines() {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		word := f[0]
		if word == "plugins" {
			word += " " + f[1]
		}
		words = append(words, word)
	}
	return words
}

func (s *scripted) lines() []string {
	b, err := os.ReadFile(s.out)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// control is a request whose plugins have set these.
func (s *scripted) control(req step.Request, env ...string) step.Request {
	for _, e := range append(env, "PLUGIN_OUT="+s.out) {
		if e == "" {
			continue
		}
		req.JobControl = append(req.JobControl, []byte(e))
	}
	return req
}

func (s *scripted) wantTold(want ...string) {
	s.t.Helper()
	if got := s.told(); !slices.Equal(got, want) {
		s.t.Errorf("ran %q, want %q", got, want)
	}
}

const bothHooks = "HOOKS=slurm_spank_job_prolog,slurm_spank_job_epilog"

// TestPrologAndEpilog: what runs, when, and with which environment.
func TestPrologAndEpilog(t *testing.T) {
	s := newScripted(t, "", "", nil)
	req := s.control(request("exit", "3"), bothHooks, "MINE=a b", "_SLURM_SPANK_OPTION_p_flag=(null)")
	req.Env = append(req.Env, "SECRET=1", "LD_PRELOAD=/evil.so")
	req.NTasks, req.Cwd = 2, "/usr"
	id := s.run(1000, req)
	if rec := s.wait(id); rec.State != step.Failed || *rec.ExitCode != 3 {
		t.Errorf("record %+v", rec)
	}
	s.idle()
	s.wantTold("plugins prolog", "prolog.sh", "plugins epilog", "epilog.sh")
	common := []string{
		"SPANK_MINE=a b", "SPANK__SLURM_SPANK_OPTION_p_flag=(null)", "SLURM_JOB_ID=1", "SLURM_JOBID=1", "SLURM_JOB_UID=1000",
		"SLURM_UID=1000", "SLURM_JOB_GID=1000", "SLURM_JOB_USER=user1000", "SLURM_JOB_WORK_DIR=/usr", "SLURM_NODELIST=n1",
		"SLURM_JOB_CPUS_PER_NODE=2", "SLURM_JOB_NTASKS=2", "SLURM_JOB_NUM_NODES=1", "SLURM_JOB_PARTITION=p",
		"SLURM_JOB_RESTART_COUNT=0", "SLURM_CLUSTER_NAME=golden", "SLURM_CONF=/etc/x.conf", "SLURMD_NODENAME=n1",
		"NODED_SOCKET=" + s.spool.Socket(),
	}
	for i, line := range s.lines() {
		for _, want := range common {
			if !strings.Contains(line+" ", " "+want+" ") {
				t.Errorf("line %d lacks %q: %s", i, want, line)
			}
		}
		if strings.Contains(line, " PATH=") || strings.Contains(line, "SECRET") || strings.Contains(line, "LD_PRELOAD") {
			t.Errorf("line %d has what it must not: %s", i, line)
		}
		context, end := "prolog_slurmd", strings.Contains(line, "SLURM_JOB_EXIT_CODE")
		if i >= 2 {
			context = "epilog_slurmd"
			end = strings.Contains(line, "SLURM_JOB_EXIT_CODE=768 ") && strings.Contains(line, "SLURM_JOB_EXIT_CODE2=3:0 ") &&
				strings.Contains(line, "SLURM_JOB_DERIVED_EC=768 ")
		}
		if !strings.Contains(line, "SLURM_SCRIPT_CONTEXT="+context) || end != (i >= 2) {
			t.Errorf("line %d: %s", i, line)
		}
	}
	if d := s.doc(); d.State != "IDLE" {
		t.Errorf("node %s: %s", d.State, d.Reason)
	}
}

// TestStackWithoutHooks: what is known not to be there is not asked for again.
func TestStackWithoutHooks(t *testing.T) {
	id := "one"
	s := newScripted(t, "", "", func(c *Config) {
		c.Scripts.Prolog, c.Scripts.Epilog = nil, nil
		c.Scripts.StackID = func() (string, string, error) { return id, "", nil }
	})
	run := func(want ...string) {
		t.Helper()
		s.wait(s.run(1000, s.control(request("exit", "0"))))
		s.idle()
		s.wantTold(want...)
	}
	run("plugins prolog")
	run("plugins prolog")
	id = "two"
	run("plugins prolog", "plugins prolog")
	s.scripts.LearnStack("two", []string{"slurm_spank_job_epilog"})
	run("plugins prolog", "plugins prolog", "plugins epilog")
	id = ""
	run("plugins prolog", "plugins prolog", "plugins epilog")
}

// TestPrologFails: the step does not start, the node is drained, the epilog runs.
func TestPrologFails(t *testing.T) {
	for _, c := range []struct {
		name, prolog, control, cause string
	}{
		{"script", "echo no disk; exit 7", "", `prolog "%s/prolog.sh": exited with code 7: no disk`},
		{"signal", "kill -9 $$", "", `prolog "%s/prolog.sh": was killed by SIGKILL`},
		{"plugin", "", `PLUGIN_prolog=fail plugin "x.so": slurm_spank_job_prolog: failed with rc=-1`, `plugin "x.so": slurm_spank_job_prolog: failed with rc=-1`},
		{"both", "echo no disk; exit 7", `PLUGIN_prolog=fail plugin "x.so": slurm_spank_job_prolog: failed with rc=-1`,
			`plugin "x.so": slurm_spank_job_prolog: failed with rc=-1; prolog "%s/prolog.sh": exited with code 7: no disk`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScripted(t, c.prolog, "", nil)
			if strings.Contains(c.cause, "%s") {
				c.cause = fmt.Sprintf(c.cause, filepath.Dir(s.out))
			}
			id := s.run(1000, s.control(request("exit", "0"), c.control, bothHooks))
			rec := s.wait(id)
			if rec.State != step.Failed || *rec.ExitCode != prologExitCode || rec.Reason != "Job prolog failed: "+c.cause || rec.StepdPID != 0 {
				t.Errorf("record %+v", rec)
			}
			s.until(id, step.Failed)
			if d := s.doc(); d.Reason != "Prolog error: job 1: "+c.cause {
				t.Errorf("node %s: %s", d.State, d.Reason)
			}
			s.idle()
			s.nothingLeft(id)
			// The program runs whatever the plugins came to.
			s.wantTold("plugins prolog", "prolog.sh", "plugins epilog", "epilog.sh")
			if n, err := s.svc.Events(as(0), id); err != nil || n != 6 {
				t.Errorf("%d events, %v", n, err)
			}
		})
	}
}

// TestPrologCrashOfOptional: it is told, and the job runs.
func TestPrologCrashOfOptional(t *testing.T) {
	s := newScripted(t, "", "", nil)
	rec := s.wait(s.run(1000, s.control(request("exit", "0"), "PLUGIN_prolog=crash /x.so", bothHooks)))
	if rec.State != step.Completed || s.doc().State == "DRAINED" {
		t.Errorf("record %+v, node %+v", rec, s.doc())
	}
	s.idle()
}

// TestEpilogFails: the step's result stays, the node is drained.
func TestEpilogFails(t *testing.T) {
	s := newScripted(t, "", "echo gone wrong >&2; exit 1", func(c *Config) {
		c.Scripts.Epilog = append(c.Scripts.Epilog, "/no/such/epilog", c.Scripts.Epilog[0])
	})
	rec := s.wait(s.run(1000, s.control(request("exit", "0"))))
	if rec.State != step.Completed || *rec.ExitCode != 0 {
		t.Errorf("record %+v", rec)
	}
	s.idle()
	d := s.doc()
	if want := fmt.Sprintf(`Epilog error: job 1: epilog "%s/epilog.sh": exited with code 1: gone wrong`, filepath.Dir(s.out)); !strings.HasPrefix(d.Reason, want) || d.State != "DRAINED" {
		t.Errorf("node %s: %q, want %q", d.State, d.Reason, want)
	}
	// One that fails does not keep the others from cleaning up.
	s.wantTold("plugins prolog", "prolog.sh", "epilog.sh", "epilog.sh")
}

// TestPrologTimeout: PrologEpilogTimeout ends what hangs, plugins too.
func TestPrologTimeout(t *testing.T) {
	t.Parallel()
	for name, control := range map[string]string{"script": "", "plugin": "PLUGIN_prolog=hang"} {
		t.Run(name, func(t *testing.T) {
			body := "sleep 1000"
			if control != "" {
				body = ""
			}
			s := newScripted(t, body, "", func(c *Config) { c.Scripts.Timeout = 300 * time.Millisecond })
			rec := s.wait(s.run(1000, s.control(request("exit", "0"), control)))
			if *rec.ExitCode != prologExitCode || !strings.HasSuffix(rec.Reason, "did not end within 300ms (PrologEpilogTimeout)") {
				t.Errorf("record %+v", rec)
			}
			s.idle()
		})
	}
}

// TestPrologOfAllocation: once, with the first step, which may add to the job
// control environment; others wait for it.
func TestPrologOfAllocation(t *testing.T) {
	s := newScripted(t, "sleep 0.1", "", nil)
	c := newClient(t, 1000)
	id, err := s.alloc(c, func(r *step.Request) { *r = s.control(*r, "A=alloc", "B=alloc") })
	if err != nil {
		t.Fatal(err)
	}
	s.wantTold()
	inner := request("exit", "0")
	inner.Job = &id
	first := s.reserve(c, inner)
	if err := s.launch(c.ctx, first, step.LaunchChange{JobControl: [][]byte{[]byte("B=step"), []byte("C=step")}}); err != nil {
		t.Fatal(err)
	}
	second := s.stepOf(id, 1000, "exit", "0")
	s.wait(first)
	s.wait(second)
	s.wantTold("plugins prolog", "prolog.sh")
	s.restart()
	s.wait(s.stepOf(id, 1000, "exit", "4"))
	s.wantTold("plugins prolog", "prolog.sh")
	if _, err := s.svc.Release(as(1000), &api.ReleaseRequest{JobID: id}); err != nil {
		t.Fatal(err)
	}
	// Release answers when the epilog has run. What hooks the stack has, the
	// new noded did not know.
	s.wantTold("plugins prolog", "prolog.sh", "plugins epilog", "epilog.sh")
	for i, line := range s.lines() {
		if !strings.Contains(line, "SPANK_A=alloc") || !strings.Contains(line, "SPANK_B=step") || !strings.Contains(line, "SPANK_C=step") {
			t.Errorf("line %d: %s", i, line)
		}
		if i >= 2 && (!strings.Contains(line, "SLURM_JOB_EXIT_CODE=0 ") || !strings.Contains(line, "SLURM_JOB_DERIVED_EC=1024 ")) {
			t.Errorf("line %d: %s", i, line)
		}
	}
	s.idle()
}

// TestPrologAtAlloc: PrologFlags=Alloc, in both directions.
func TestPrologAtAlloc(t *testing.T) {
	s := newScripted(t, "", "", func(c *Config) { c.Scripts.AtAlloc = true })
	c := newClient(t, 1000)
	id, err := s.alloc(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.wantTold("prolog.sh")
	s.wait(s.stepOf(id, 1000, "exit", "0"))
	s.wantTold("prolog.sh")
	c.kill()
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")

	s = newScripted(t, "exit 1", "", func(c *Config) { c.Scripts.AtAlloc = true })
	if id, err := s.alloc(newClient(t, 1000), nil); api.CodeOf(err) != api.Aborted || !strings.Contains(err.Error(), "Job prolog failed: ") {
		t.Errorf("job %d, %v", id, err)
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
	if d := s.doc(); d.State != "DRAINED" {
		t.Errorf("node %+v", d)
	}
}

// TestPrologNoHold: PrologFlags=Alloc,NoHold: the allocation is answered at once, its step
// waits for the prolog, and one that fails ends it.
func TestPrologNoHold(t *testing.T) {
	flags := func(c *Config) { c.Scripts.AtAlloc, c.Scripts.NoHold = true, true }
	hold := filepath.Join(t.TempDir(), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScripted(t, "while test -e "+hold+"; do sleep 0.01; done", "", flags)
	c := newClient(t, 1000)
	id, err := s.alloc(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	of := s.stepOf(id, 1000, "exit", "3")
	if rec := s.until(of, step.Starting); rec.State != step.Starting {
		t.Errorf("the step: %+v", rec)
	}
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	if rec := s.wait(of); *rec.ExitCode != 3 {
		t.Errorf("the step: %+v", rec)
	}
	s.wantTold("prolog.sh")
	c.kill()
	s.idle()

	s = newScripted(t, "exit 1", "", flags)
	if _, err := s.alloc(newClient(t, 1000), nil); err != nil {
		t.Fatal(err)
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
	if d := s.doc(); d.State != "DRAINED" {
		t.Errorf("node %+v", d)
	}
}

// TestFailedPrologEndsBatch: a batch job whose prolog fails is FAILED, and not run again.
func TestFailedPrologEndsBatch(t *testing.T) {
	s := newScripted(t, "echo no disk; exit 1", "", nil)
	id := s.batch("exit 4")
	if rec := s.wait(id); rec.State != step.Failed || *rec.ExitCode != prologExitCode || !strings.Contains(rec.Reason, "Job prolog failed: ") {
		t.Errorf("record %+v", rec)
	}
	s.idle()
	if d := s.doc(); d.State != "DRAINED" {
		t.Errorf("node %+v", d)
	}
}

// TestFailedPrologEndsAllocation: all of its steps fail, and the job with them.
func TestFailedPrologEndsAllocation(t *testing.T) {
	s := newScripted(t, "exit 1", "", nil)
	id, err := s.alloc(newClient(t, 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	if rec := s.wait(s.stepOf(id, 1000, "wait")); *rec.ExitCode != prologExitCode {
		t.Errorf("record %+v", rec)
	}
	if _, err := s.waits(as(1000), api.StepRef{JobID: id}); err != nil {
		t.Error(err)
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
}

// TestEpilogWithoutProlog: a reservation that is given back has an epilog.
func TestEpilogWithoutProlog(t *testing.T) {
	s := newScripted(t, "", "", nil)
	c := newClient(t, 1000)
	id := s.reserve(c, request("exit", "0"))
	c.kill()
	s.wait(id)
	s.idle()
	s.wantTold("epilog.sh")
}

// TestCancelDuringProlog: it runs to its end, and the step is not started.
func TestCancelDuringProlog(t *testing.T) {
	t.Parallel()
	s := newScripted(t, "sleep 0.3", "", nil)
	id := s.run(1000, request("exit", "0"))
	await(t, func() bool { return slices.Contains(s.told(), "prolog.sh") })
	if _, err := s.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id), Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	if rec := s.wait(id); rec.State != step.Cancelled || rec.Reason != `cancelled by uid 1000: "enough"` || rec.StepdPID != 0 {
		t.Errorf("record %+v", rec)
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
}

// hangs is a script that makes the file and does not end while it exists.
func hangs(t *testing.T, hold string) string {
	t.Helper()
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return "test ! -e " + hold + " || sleep 1000"
}

// await waits for what another process does.
func await(t testing.TB, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
		time.Sleep(2 * time.Millisecond)
	}
}
