package jobcontainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// scriptOutputMax bounds what of the script's output gets into the error.
	scriptOutputMax = 2048
	// scriptDrain is how long a process that the script left behind may hold
	// its output open before we stop reading.
	scriptDrain = time.Second
)

// runInitScript runs InitScript as root in the calling thread's namespaces: a
// child begins in those of the thread that forks it. Its environment is made
// here and holds nothing of the user's (CVE-2017-15566, CVE-2021-31215). A
// script that fails or overruns its time fails the job's creation.
func (p *plan) runInitScript(ctx context.Context) error {
	script := p.cfg.InitScript
	if err := checkScript(script); err != nil {
		return fmt.Errorf("cannot run %q for job %d: %w (InitScript= in job_container.conf)", script, p.job, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.InitTimeout, fmt.Errorf("no end after %v", p.cfg.InitTimeout))
	defer cancel()
	var out tail
	cmd := exec.CommandContext(ctx, script)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		fmt.Sprintf("SLURM_JOB_ID=%d", p.job),
		fmt.Sprintf("SLURM_JOB_UID=%d", p.uid),
		"SLURM_JOB_MOUNTPOINT_SRC=" + p.jobDir,
		"SLURMD_NODENAME=" + p.cfg.NodeName,
	}
	if p.cfg.SlurmConf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+p.cfg.SlurmConf)
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
	return fmt.Errorf("cannot prepare job %d: %q: %w%s (InitScript= in job_container.conf)", p.job, script, err, out.quoted())
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
