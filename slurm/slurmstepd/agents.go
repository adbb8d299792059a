package slurmstepd

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"stepd/slurm/munge"
	"stepd/slurm/rpc"
	"stepd/slurm/spawn"
	"stepd/slurm/spec"
	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task"
)

// abortPatience bounds the exchange with srun about an abort's code.
const abortPatience = 2 * time.Second

// agent is where srun waits for one of the step daemon's connections, HOST:PORT; "" where it
// does not: srun says so in the tasks' environment.
func agent(env []string, port string) string {
	host, port := spec.Variable(env, "SLURM_SRUN_COMM_HOST"), spec.Variable(env, port)
	if host == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// tellAbort tells srun the code that a task has aborted with: srun ends with it. It sends the
// code back.
func (d *daemon) tellAbort(ctx context.Context, rec *step.Record) {
	if !rec.Aborted || rec.ExitCode == nil || d.stream.Launch == nil || !strings.HasPrefix(d.spec.MPI, "pmix") {
		return
	}
	to := agent(d.stream.Launch.Env, "SLURM_PMIXP_ABORT_AGENT_PORT")
	if to == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, abortPatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err == nil {
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		_, err = conn.Write(binary.BigEndian.AppendUint32(nil, uint32(*rec.ExitCode)))
	}
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 4))
	}
	if err != nil {
		d.log.Errorf("cannot tell srun the abort's code %d: %v", *rec.ExitCode, err)
	}
}

// spawning is what steps that have spawned each other have of srun and of one another.
type spawning struct {
	d     *daemon
	inbox *spawn.Inbox
	// services are nil of a step without srun's PMI-2, reporter of one that no step has spawned.
	services *spawn.Services
	reporter *spawn.Reporter
}

func newSpawning(d *daemon) *spawning {
	user := &d.spec.User
	return &spawning{d: d, inbox: &spawn.Inbox{
		Path: spawn.Address(d.stream.Conf.Spool, d.spec.ID), UID: user.UID, GID: user.GID,
		Log: func(text string) { d.log.Info(text) },
	}}
}

// serve makes what srun does for the ranks: nothing where it has no server of PMI-2.
func (s *spawning) serve() (launch.MPIServices, task.Spawned) {
	d := s.d
	if d.stream.Launch == nil {
		return nil, nil
	}
	port := agent(d.stream.Launch.Env, "SLURM_PMI2_SRUN_PORT")
	if port == "" {
		return nil, nil
	}
	s.services = spawn.New(spawn.Config{
		Spec: d.spec, Port: port, Inbox: s.inbox, Timeout: d.spec.Site.MPIConf.PMI2.SpawnTimeout,
		Token: func(ctx context.Context) (string, error) {
			return d.peers.ctld.Munge.Encode(ctx, d.spec.User.UID, nil)
		},
		Forward: slurmdsOf(d).forward,
		Log:     func(text string) { d.log.Info(text) },
		Abort:   func(rank, code int, text string) { d.st.SpawnedAborted(rank, code, text) },
		Ending:  func() <-chan struct{} { return d.st.Ending() },
	})
	return s.services, nil // srun waits for what they have spawned
}

// report begins to report to the step that has spawned this one, if one has.
func (s *spawning) report() error {
	origin := spec.OriginOf(s.d.stream)
	if origin == nil {
		return nil
	}
	s.inbox.Cancel = func(reason string) { s.d.st.Cancel(reason) }
	if err := s.inbox.Open(); err != nil {
		return err
	}
	s.reporter = newReporter(s.d, origin)
	s.reporter.Gone = func(reason string) { s.d.st.Cancel(reason) }
	s.reporter.Start()
	return nil
}

// look reports the start of the tasks, once.
func (s *spawning) look(rec *step.Record) {
	if s != nil && s.reporter != nil {
		s.reporter.Look(rec)
	}
}

// ended reports the end of the step.
func (s *spawning) ended(rec *step.Record) {
	if s.reporter != nil {
		s.reporter.Ended(rec)
	}
}

// close ends what serves spawned and spawning steps.
func (s *spawning) close() {
	if s == nil {
		return
	}
	s.inbox.Close()
	if s.services != nil {
		s.services.Close()
	}
}

func newReporter(d *daemon, origin *spec.Origin) *spawn.Reporter {
	return &spawn.Reporter{
		Origin: origin, ID: d.spec.ID, Node: d.spec.NodeName, Ranks: len(d.spec.LocalRanks()), Forward: slurmdsOf(d).forward,
		Log: func(text string) { d.log.Info(text) }, Gone: func(string) {},
	}
}

// reportRefused tells the step that has spawned this one that it does not begin.
func reportRefused(d *daemon, why error) {
	origin := spec.OriginOf(d.stream)
	if origin == nil {
		return
	}
	if d.peers == nil {
		d.peers = d.newPeers()
	}
	r := newReporter(d, origin)
	r.Start()
	r.Ended(lostRecord(why.Error()))
}

// lostRecord is of a step whose tasks' ends are not known.
func lostRecord(reason string) *step.Record {
	return &step.Record{State: step.Failed, Reason: reason, Tasks: []step.Task{{State: step.TaskPending}}}
}

// slurmds are the slurmds of the job's nodes, which pass records on to other step daemons.
type slurmds struct {
	client    rpc.Client
	slurmUser uint32
	find      func(nodes []string) (map[string]slurmconf.Address, error)
}

func slurmdsOf(d *daemon) *slurmds {
	s := &slurmds{client: d.peers.ctld, slurmUser: d.peers.slurmUser, find: func(nodes []string) (map[string]slurmconf.Address, error) { return addressesIn(d, nodes) }}
	// Nodes with several releases have the oldest one's messages, which srun has.
	s.client.Release = min(d.stream.Conf.Release, cmp.Or(d.stream.ClientRelease, d.stream.Conf.Release))
	return s
}

// forwardRetry is for a slurmd that restarts, or is busy.
var forwardRetry = rpc.Retry{Tries: 5, Pause: 100 * time.Millisecond, Longest: 800 * time.Millisecond}

// forward is a spawn.Forward. It reads slurm.conf: few steps spawn others.
func (s *slurmds) forward(ctx context.Context, node string, to step.ID, record []byte) error {
	found, err := s.find([]string{node})
	at, ok := found[node]
	if !ok {
		return fmt.Errorf("cannot find where node %q is: %w", node, err)
	}
	peer := rpc.Peer{Addr: at.HostPort(), Reader: munge.Anyone, Signers: []uint32{0, s.slurmUser}}
	m := &wire.ForwardData{Address: spawn.Address(at.Spool, to), Data: record}
	return s.client.Deliver(ctx, []rpc.Peer{peer}, m, forwardRetry)
}
