package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/internal/linux"
	"stepd/step"
)

// controlPair makes the connection between noded and one stepd.
func controlPair() (ours *stepapi.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create control socket: %w", err)
	}
	ours, err = stepapi.FromFD(fds[0], "control")
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	return ours, os.NewFile(uintptr(fds[1]), "stepd's control"), nil
}

func encodeSpec(spec *step.Spec) (*os.File, error) {
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("internal error: step %s: %w", spec.ID, err)
	}
	packed := *spec
	packed.Pack()
	doc, err := json.Marshal(packed)
	if err != nil {
		return nil, fmt.Errorf("cannot encode spec of step %s: %w", spec.ID, err)
	}
	return stepapi.SealedMemfd("spec", doc)
}

// spawn starts stepd in a session of its own, so that it survives noded, and
// in the step's cgroup from its first instruction. files become its
// descriptors from stepapi.FDSpec on, in that order.
func (n *Node) spawn(id step.ID, leaf *os.File, files ...*os.File) (*process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	said, stderr, err := n.stepdLog()
	if err != nil {
		return nil, err
	}
	if said != nil {
		defer stderr.Close()
	}
	fds := []uintptr{null.Fd(), null.Fd(), stderr.Fd()}
	for _, f := range files {
		fds = append(fds, f.Fd())
	}
	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if leaf != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(leaf.Fd())
	}
	pid, _, err := syscall.StartProcess(n.cfg.StepdPath, []string{fmt.Sprintf("stepd: [%s]", id.Name())}, &syscall.ProcAttr{
		Dir: "/", Files: fds, Sys: sys,
		Env: n.stepdEnv(),
	})
	if err != nil {
		err = fmt.Errorf("cannot start %q: %w", n.cfg.StepdPath, err)
	}
	var p *process
	if err == nil {
		p, err = newChild(pid, pidfd)
	}
	if err != nil {
		if said != nil {
			said.close()
		}
		return nil, err
	}
	p.words = said
	return p, nil
}

// stepdEnv is the environment of every stepd.
func (n *Node) stepdEnv() []string {
	return []string{"PATH=" + safePath, "SLURM_CONF=" + n.cfg.SlurmConf, "SLURMD_NODENAME=" + n.cfg.NodeName, "GOMAXPROCS=1"}
}

// stepdLog is where a stepd's standard error goes: the site's log file, or
// through noded, which then has the other end.
func (n *Node) stepdLog() (*words, *os.File, error) {
	if n.cfg.StepdLog != nil {
		return nil, n.cfg.StepdLog, nil
	}
	return newWords(n.log.Out, n.cfg.Spank.JSONLog)
}

// newChild describes the child that was just started.
func newChild(pid, pidfd int) (*process, error) {
	p := &process{pid: pid, pidfd: pidfd, child: true}
	if pidfd < 0 {
		err := errors.New("the kernel gave no pidfd (Linux 5.2 or newer is needed)")
		return nil, errors.Join(fmt.Errorf("cannot follow stepd (pid %d): %w", pid, err), syscall.Kill(pid, syscall.SIGKILL), p.reap())
	}
	var err error
	if p.start, err = linux.StartTime(pid); err != nil {
		// Not reaped yet, so it has a start time whatever it does: /proc is not there.
		return nil, errors.Join(err, syscall.Kill(pid, syscall.SIGKILL), p.reap(), unix.Close(pidfd))
	}
	return p, nil
}
