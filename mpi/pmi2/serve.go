package pmi2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"stepd/step/launch"
)

// logsPerRank bounds the lines that one rank can make stepd log.
const logsPerRank = 8

// serve is a rank's goroutine: it answers until the rank's end of the socket
// is closed, then waits for the task's end, and judges it.
func (p *Plugin) serve(r *rank) {
	defer r.conn.close()
	err := p.talk(r)
	r.conn.shut()
	if r.spawning != nil {
		p.state.release(r.spawning)
		r.spawning = nil
	}
	if err != nil && !p.isClosing() {
		p.log(r, "connection closed: "+err.Error())
	}
	timer := time.After(p.conf.CloseGrace)
	for {
		select {
		case <-p.closing:
			return
		case <-r.exited:
			p.settle(p.state.ended(r, r.exitedAs))
			return
		case <-timer:
			// The task closed its end and lives on: no status will say why.
			p.settle(p.state.hungUp(r))
		}
	}
}

// talk reads the first line, which decides the protocol, and goes on in it.
// It returns nil where the rank's bytes ended cleanly.
func (p *Plugin) talk(r *rank) error {
	in := &reader{src: r.conn.file, max: p.conf.FrameBytes}
	err := p.greet(r, in)
	switch {
	case err == io.EOF:
		return nil
	case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrClosed):
		// Reset: the task ended with answers unread.
		return nil
	}
	return err
}

func (p *Plugin) greet(r *rank, in *reader) error {
	text, err := in.line()
	if err != nil {
		return err
	}
	m, err := parseLine(text, p.conf.Attributes)
	if err != nil {
		return err
	}
	if m.cmd != "init" || m.multi {
		return fmt.Errorf("cannot begin with PMI command %s: want cmd=init", quote(m.cmd))
	}
	switch version, _ := m.number("pmi_version"); version {
	case 1:
		r.speaks = 1
		if err := p.command1(r, m); err != nil {
			return err
		}
		return p.serve1(r, in)
	case 2:
		r.speaks = 2
		p.settle(p.state.advance(r, phaseHello))
		p.send(r, line1("response_to_init", pair{"pmi_version", "2"}, pair{"pmi_subversion", "0"}, pair{"rc", "0"}))
		return p.serve2(r, in)
	}
	p.send(r, line1("response_to_init", pair{"pmi_version", "2"}, pair{"pmi_subversion", "0"}, pair{"rc", "-1"}))
	text, _ = m.get("pmi_version")
	return fmt.Errorf("cannot speak PMI version %s: want 1 or 2", quote(text))
}

// answerAll reads a rank's messages and carries them out, until its end; a message that
// cannot be read and names its command is refused. The error says why the rank was cut
// off; io.EOF is a clean end.
func (p *Plugin) answerAll(r *rank, read func() (message, error), command func(*rank, message) error, refused func(message, *refusal) []byte) error {
	for {
		r.conn.waitIdle()
		m, err := read()
		switch {
		case err != nil && m.cmd == "":
			return err
		case err != nil:
			p.log(r, err.Error())
			p.send(r, refused(m, refuse(codeArgument, "%v", err)))
		default:
			if err := command(r, m); err != nil {
				return err
			}
		}
	}
}

// settle sends what an outcome holds, and ends the step if it says so. The
// state's lock is free: Abort may be slow.
func (p *Plugin) settle(out outcome) {
	for _, d := range out.deliveries {
		p.send(d.to, d.data)
	}
	if out.share != nil {
		p.running.Go(func() { p.exchange(out.share) })
	}
	if out.watch != nil {
		p.running.Go(func() { p.watch(out.watch) })
	}
	if out.abort != nil && !p.isClosing() {
		p.job.Abort(out.abort.rank, out.abort.code, out.abort.text)
	}
}

// watch looks at the clock while the ranks of this node come to a fence.
func (p *Plugin) watch(w *watch) {
	select {
	case <-w.whole:
	case <-p.closing:
	case <-time.After(p.conf.FenceTimeout):
		p.settle(p.state.late(w.seq, p.conf.FenceTimeout))
	}
}

func (p *Plugin) send(r *rank, data []byte) {
	if err := r.conn.send(data); err != nil {
		p.log(r, "connection closed: "+err.Error())
	}
}

// log writes a line about a rank, unless the rank had its share.
func (p *Plugin) log(r *rank, text string) {
	p.state.mu.Lock()
	r.logged++
	share := r.logged
	p.state.mu.Unlock()
	switch {
	case share > logsPerRank:
		return
	case share == logsPerRank:
		text += " (further messages of this rank are dropped)"
	}
	p.job.Log(fmt.Sprintf("mpi/pmi2: rank %d: %s", r.n, text))
}

func (p *Plugin) isClosing() bool {
	select {
	case <-p.closing:
		return true
	default:
		return false
	}
}

// later answers a request by do, which may ask noded, while the rank's other
// requests go on. do's context ends with the rank and with the plugin.
func (p *Plugin) later(r *rank, do func(ctx context.Context) []byte) *refusal {
	if p.job.Job == nil {
		return refuse(codeOther, "there is no noded to ask")
	}
	if why := p.state.countAsk(r, 1); why != nil {
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
		p.state.countAsk(r, -1)
		p.send(r, answer)
	})
	return nil
}

// countAsk counts a request that is answered later, by 1, and its end, by -1.
func (s *state) countAsk(r *rank, by int) *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by > 0 && r.asks >= s.conf.WaitsPerRank {
		return refuse(codeNoMemory, "rank %d waits for %d answers of noded: the limit (PMI2WaitsPerRank)", r.n, r.asks)
	}
	r.asks += by
	return nil
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
