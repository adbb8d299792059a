package slurmstepd

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/slurm/munge"
	"stepd/slurm/rpc"
	"stepd/slurm/wire"
)

// peers are the programs that wait for the step: srun and slurmctld.
type peers struct {
	log        *logrus.Logger
	srun, ctld rpc.Client
	id         wire.StepID
	node       string
	user       uint32
	slurmUser  uint32
	launcher   string   // srun's HOST:PORT, "" without one
	addrs      []string // of the controllers
}

// tellLauncher sends a message to srun. srun may be gone: the step goes on.
func (p *peers) tellLauncher(ctx context.Context, m wire.Message) {
	if p.launcher == "" {
		return
	}
	if err := p.srun.Send(ctx, rpc.Peer{Addr: p.launcher, Reader: p.user, Signers: []uint32{p.user, 0}}, m); err != nil {
		p.log.Errorf("cannot report to srun: %v", err)
	}
}

// againAfter is the time between two rounds of the controllers, as in Slurm.
const againAfter = 60 * time.Second

// tellController sends a message to the first controller that takes it, again and again for
// as long as patience says; 0 is for ever.
func (p *peers) tellController(ctx context.Context, patience time.Duration, m wire.Message) {
	began := time.Now()
	for {
		for _, addr := range p.addrs {
			err := p.ctld.Send(ctx, rpc.Peer{Addr: addr, Reader: munge.Anyone, Signers: []uint32{p.slurmUser, 0}}, m)
			if err == nil {
				return
			}
			var refused *rpc.ReturnError
			if errors.As(err, &refused) {
				p.log.Infof("slurmctld: %v", err)
				return
			}
			p.log.Error(err)
		}
		if patience > 0 && time.Since(began) > patience {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(againAfter):
		}
	}
}
