package node

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/node/child"
	"stepd/srunopt"
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
	if err := srunopt.ValidateSpec(spec); err != nil {
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
func (n *Node) spawn(id step.ID, leaf *os.File, files ...*os.File) (*child.Process, error) {
	log, stderr, err := n.stepdLog()
	if err != nil {
		return nil, err
	}
	if log != nil {
		defer stderr.Close()
	}
	p, err := child.Program{
		Path: n.cfg.StepdPath, Argv: []string{fmt.Sprintf("stepd: [%s]", id.Name())}, Env: n.stepdEnv(), Dir: "/",
		Files: append([]*os.File{nil, nil, stderr}, files...), Leaf: leaf, Stderr: log,
	}.Start()
	if err != nil {
		if log != nil {
			log.Close()
		}
		return nil, fmt.Errorf("cannot start %q: %w", n.cfg.StepdPath, err)
	}
	return p, nil
}

// stepdEnv is the environment of every stepd.
func (n *Node) stepdEnv() []string {
	return []string{"PATH=" + child.SafePath, "SLURM_CONF=" + n.cfg.Site.SlurmConf, "SLURMD_NODENAME=" + n.cfg.NodeName, "GOMAXPROCS=1"}
}

// stepdLog is where a stepd's standard error goes: the site's log file, or
// through noded, which then has the other end.
func (n *Node) stepdLog() (*child.Stderr, *os.File, error) {
	if n.cfg.StepdLog != nil {
		return nil, n.cfg.StepdLog, nil
	}
	return child.NewStderr(n.log.Out, n.cfg.Site.Spank.JSONLog)
}
