package pmi2

import (
	"context"
	"errors"
	"fmt"

	"stepd/step/launch"
)

// later answers a request by do, which may ask noded, while the rank's other
// requests go on. do's context ends with the rank and with the plugin.
func (p *Plugin) later(r *rank, do func(ctx context.Context) []byte) *refusal {
	if p.job.Job == nil {
		return refuse(codeOther, "there is no noded to ask")
	}
	if why := p.state.beginAsk(r); why != nil {
		return why
	}
	p.running.Go(func() {
		ctx, cancel := context.WithCancel(p.ctx)
		defer cancel()
		stop := make(chan struct{})
		defer close(stop)
		p.running.Go(func() {
			select {
			case <-r.exited:
				cancel()
			case <-stop:
			}
		})
		answer := do(ctx)
		p.state.endAsk(r)
		p.send(r, answer)
	})
	return nil
}

// beginAsk counts a request that is answered later; endAsk ends it.
func (s *state) beginAsk(r *rank) *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.asks >= s.conf.WaitsPerRank {
		return refuse(codeNoMemory, "rank %d waits for %d answers of noded: the limit (PMI2WaitsPerRank)", r.n, r.asks)
	}
	r.asks++
	return nil
}

func (s *state) endAsk(r *rank) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.asks--
}

// publish binds a service name to a port for all steps of the job.
func (p *Plugin) publish(ctx context.Context, version int, name, port string) *refusal {
	if why := p.state.check(version, name, port); why != nil {
		return why
	}
	return refusalOf(p.job.Job.Publish(ctx, name, port))
}

// unpublish removes a service name; any rank of the job may.
func (p *Plugin) unpublish(ctx context.Context, name string) *refusal {
	return refusalOf(p.job.Job.Unpublish(ctx, name))
}

// resolve finds a service's port.
func (p *Plugin) resolve(ctx context.Context, name string) (string, *refusal) {
	port, found, err := p.job.Job.Lookup(ctx, name)
	if err != nil {
		return "", refusalOf(err)
	}
	if !found {
		return "", refuse(codeArgument, "service %s is not published", quote(name))
	}
	return port, nil
}

// refusalOf is noded's word for a rank; nil of nil.
func refusalOf(err error) *refusal {
	if err == nil {
		return nil
	}
	return &refusal{codeOther, err.Error()}
}

// spawn starts another step of the job, and returns its id.
func (p *Plugin) spawn(ctx context.Context, r *rank, s *spawnRequest) (id string, errs []int, why *refusal) {
	made, err := p.job.Job.Spawn(ctx, launch.SpawnRequest{Rank: r.n, Apps: s.apps, Preput: s.preput, MPI: Name})
	if err == nil {
		return made.String(), make([]int, s.ntasks()), nil
	}
	errs = make([]int, s.ntasks())
	failed, some := errors.AsType[*launch.SpawnError](err)
	for i := range errs {
		if some && len(failed.Failed) > 0 && failed.Failed[i] == "" {
			continue
		}
		errs[i] = codeOther
	}
	p.log(r, fmt.Sprintf("spawn: %v", err))
	return "", errs, refusalOf(err)
}
