package slurmstepd

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/slurm/munge"
	"stepd/slurm/rpc"
	"stepd/slurm/tree"
	"stepd/slurm/wire"
	"stepd/slurmconf"
)

// peers are the programs that wait for the step: srun and slurmctld.
type peers struct {
	log        *logrus.Logger
	srun, ctld rpc.Client
	id         wire.StepID
	node       string
	nodes      uint32 // of the step
	user       uint32
	slurmUser  uint32
	launcher   string   // srun's HOST:PORT, "" without one
	addrs      []string // of the controllers
	parent     string   // the slurmd that takes the step's end, "" is a controller
	// attempted is called when a controller has the step's end in its socket, and when none has
	// taken it so far; nil does nothing.
	attempted func()
	// soon ends the pause before slurmctld is tried again; newPeers makes it.
	soon chan struct{}
}

// tryAgain says that slurmctld can be reached: a command of its has come.
func (p *peers) tryAgain() {
	select {
	case p.soon <- struct{}{}:
	default:
	}
}

// tellLauncher sends a message to srun. srun may be gone: the step goes on.
func (p *peers) tellLauncher(ctx context.Context, m wire.Message) {
	if p.launcher == "" {
		return
	}
	to := []rpc.Peer{{Addr: p.launcher, Reader: p.user, Signers: []uint32{p.user, 0}}}
	retry := rpc.ToSrun(p.nodes)
	retry.Failed = func(err error, again time.Duration) {
		if errors.As(err, new(*rpc.SignError)) {
			p.log.Errorf("%v; again in %v", err, again)
		}
	}
	if err := p.srun.Deliver(ctx, to, m, retry); err != nil {
		p.log.Errorf("cannot report to srun: %v", err)
	}
}

// openDisplay opens a connection to the X server of the job's user, by srun or salloc.
func (p *peers) openDisplay(ctx context.Context, to *wire.X11) (*net.TCPConn, error) {
	by := rpc.Peer{Addr: net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))), Reader: p.user, Signers: []uint32{p.user, 0}}
	return p.srun.Open(ctx, by, &wire.NetForward{Step: p.id, Port: to.TargetPort, Target: to.Target})
}

// tellController sends a message to the first controller that takes it, again and again as
// retry says.
func (p *peers) tellController(ctx context.Context, retry rpc.Retry, m wire.Message) {
	var to []rpc.Peer
	for _, addr := range p.addrs {
		to = append(to, rpc.Peer{Addr: addr, Reader: munge.Anyone, Signers: []uint32{p.slurmUser, 0}})
	}
	attempted := p.attempted
	if attempted == nil {
		attempted = func() {}
	}
	retry.Soon = p.soon
	retry.Failed = func(err error, again time.Duration) {
		attempted()
		p.log.Errorf("%v; again in %v", err, again)
	}
	ctld := p.ctld
	ctld.Written = func(m wire.Message) {
		if _, ok := m.(*wire.StepComplete); ok {
			attempted()
		}
	}
	err := ctld.Deliver(ctx, to, m, retry)
	var refused *rpc.ReturnError
	switch {
	case errors.As(err, &refused) && refused.Over():
		p.log.Infof("slurmctld: %v", err)
	case err != nil:
		p.log.Error(err)
	}
}

// drain takes the node away from the scheduler: processes of the step live on that SIGKILL does
// not end. The reason begins as Slurm's own, by which sites find it.
func (p *peers) drain(ctx context.Context, which string) {
	p.log.Errorf("processes of the step cannot be killed: the node is drained")
	p.tellController(ctx, rpc.StepEnd(), &wire.UpdateNode{Node: p.node, Reason: "Kill task failed: " + which})
}

// parentOf is the address of the parent's slurmd in the step's tree, "" where slurmctld is told.
func parentOf(s *wire.Stream, conf string, log *logrus.Logger) string {
	if !tree.In(s) || s.Tree.Parent < 0 {
		return ""
	}
	if s.ParentAddr.IsValid() && !s.ParentAddr.Addr().IsUnspecified() {
		return s.ParentAddr.String()
	}
	if s.Parent == "" {
		return ""
	}
	at, err := slurmconf.Addresses(conf, []string{s.Parent})
	if err != nil {
		log.Warnf("%v: to it this node is to report the step's end, and it reports to slurmctld", err)
		return ""
	}
	return at[s.Parent].HostPort()
}

// tellEnd reports the step's end to the parent, or to slurmctld where there is none or where it
// does not take it.
func (p *peers) tellEnd(ctx context.Context, end *wire.StepComplete) {
	if p.parent != "" && p.tellParent(ctx, end) {
		return
	}
	p.tellController(ctx, rpc.StepEnd(), end)
}

// tellParent reports whether the parent has taken the end. A refusal is no last word: the parent's
// own step daemon may be about to start.
func (p *peers) tellParent(ctx context.Context, end *wire.StepComplete) bool {
	self := uint32(os.Geteuid()) // slurmd's
	to := []rpc.Peer{{Addr: p.parent, Reader: self, Signers: []uint32{self}}}
	for try := 1; ; try++ {
		err := p.ctld.Deliver(ctx, to, end, rpc.Retry{})
		if p.attempted != nil {
			p.attempted()
		}
		if err == nil {
			return true
		}
		p.log.Infof("the step's end, to the parent's slurmd: %v", err)
		if try == tree.ParentTries {
			p.log.Warnf("slurmd at %s does not take the step's end: it is reported to slurmctld", p.parent)
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Second):
		}
	}
}

// passOn gives slurmctld an end that is not this node's. It is tried once: its reporter
// gets an error, and reports it by itself.
func (p *peers) passOn(ctx context.Context, end *wire.StepComplete) error {
	var to []rpc.Peer
	for _, addr := range p.addrs {
		to = append(to, rpc.Peer{Addr: addr, Reader: munge.Anyone, Signers: []uint32{p.slurmUser, 0}})
	}
	return p.ctld.Deliver(ctx, to, end, rpc.Retry{})
}
