package jobcontainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step/launch"
)

const (
	// scriptOutputMax bounds what of the script's output gets into the error.
	scriptOutputMax = 2048
	// scriptDrain is how long a process that the script left behind may hold
	// its output open before we stop reading.
	scriptDrain = time.Second
)

// runInitScript runs InitScript in the calling thread's namespaces: a child begins
// in the namespaces of the thread that forks it. A failure fails the job's creation.
func (p *plan) runInitScript(ctx context.Context) error {
	return p.run(ctx, script{key: "InitScript", path: p.cfg.InitScript, timeout: p.cfg.InitTimeout, doing: "prepare"})
}

// cloneScript runs CloneNSScript outside of the job's namespaces, which are complete
// and pinned. A failure fails the job's creation.
func (p *plan) cloneScript(ctx context.Context) error {
	return p.run(ctx, script{key: "CloneNSScript", path: p.cfg.CloneNSScript, timeout: p.cfg.CloneNSScriptWait, doing: "prepare", ns: true})
}

// cloneEpilog runs CloneNSEpilog outside of the namespaces of a job that are about to
// end; dir is RUN/jobs/N. A job that came not so far has none. A failure is for the
// log: nothing else could be made of it.
func cloneEpilog(ctx context.Context, dir *os.File, job uint32, cfg *Config) error {
	if cfg.CloneNSEpilog == "" {
		return nil
	}
	ns, err := openPin(dir, pinName, unix.CLONE_NEWNS)
	if err != nil {
		return nil
	}
	ns.Close()
	p := &plan{job: job, cfg: cfg, nsPath: path.Join(dir.Name(), pinName)}
	if base, err := readSmall(dir, baseName); err == nil {
		p.jobDir = path.Join(base, cfg.NodeTag, jobName(job))
	}
	if uid, err := readSmall(dir, uidName); err == nil {
		p.uid = uid
	}
	return p.run(ctx, script{key: "CloneNSEpilog", path: cfg.CloneNSEpilog, timeout: cfg.CloneNSEpilogWait, doing: "clean up after", ns: true})
}

// script is one of the site's for job containers.
type script struct {
	key, path string
	timeout   time.Duration
	doing     string // what cannot be done to the job without it
	ns        bool   // it gets the path where the namespace is pinned
}

// run runs a script as root, if there is one. Its environment is made here and holds
// nothing of the user's (CVE-2017-15566, CVE-2021-31215). That it fails or overruns
// its time is an error.
func (p *plan) run(ctx context.Context, s script) error {
	if s.path == "" {
		return nil
	}
	if err := checkScript(s.path); err != nil {
		return &launch.FaultError{Err: fmt.Errorf("cannot run %q for job %d: %w (%s= in job_container.conf)", s.path, p.job, err, s.key)}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no end after %v", s.timeout))
	defer cancel()
	// What is bound to the thread that forks, below.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var out tail
	cmd := exec.CommandContext(ctx, s.path)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		fmt.Sprintf("SLURM_JOB_ID=%d", p.job),
		"SLURMD_NODENAME=" + p.cfg.NodeName,
	}
	for name, value := range map[string]string{"SLURM_JOB_UID": p.uid, "SLURM_JOB_MOUNTPOINT_SRC": p.jobDir} {
		if value != "" { // an earlier noded's job may lack it
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	if p.cfg.SlurmConf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+p.cfg.SlurmConf)
	}
	if s.ns {
		cmd.Env = append(cmd.Env, "SLURM_NS="+p.nsPath)
	}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = scriptDrain
	// A session of its own, so that all of it can be killed. Pdeathsig: noded
	// killed outright takes the script along; it is bound to the thread that
	// forks, and this one waits here until the script has ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	err := cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("cannot %s job %d: %q: %w%s (%s= in job_container.conf)", s.doing, p.job, s.path, err, out.quoted(), s.key)
}

// checkScript refuses a script that others than root could have written.
func checkScript(script string) error {
	f, err := openTrusted(script, failMissing)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("not a regular file")
	}
	return checkOwn(f)
}

// tail keeps the last bytes written to it: a script says at the end why it failed.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - scriptOutputMax; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// quoted is the output as part of an error: one line, whatever was written.
func (t *tail) quoted() string {
	s := strings.TrimSpace(string(bytes.ToValidUTF8(t.b, []byte("?"))))
	if s == "" {
		return ""
	}
	return fmt.Sprintf(", it said %q", s)
}
