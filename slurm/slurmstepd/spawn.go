package slurmstepd

import (
	"cmp"
	"context"
	"fmt"
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

// newInbox is the step's socket for srun's server of PMI-2 and for step daemons of others.
func (d *daemon) newInbox() *spawn.Inbox {
	user := &d.spec.User
	return &spawn.Inbox{
		Path: spawn.Address(d.stream.Conf.Spool, d.spec.ID), UID: user.UID, GID: user.GID,
		Log: func(text string) { d.log.Info(text) },
	}
}

// services are what srun does for the ranks: none where it has no server of PMI-2.
func (d *daemon) services() (launch.MPIServices, task.Spawned) {
	if d.stream.Launch == nil {
		return nil, nil
	}
	port := agent(d.stream.Launch.Env, "SLURM_PMI2_SRUN_PORT")
	if port == "" {
		return nil, nil
	}
	d.spawns = spawn.New(spawn.Config{
		Spec: d.spec, Port: port, Inbox: d.inbox, Timeout: d.spec.Site.MPIConf.PMI2.SpawnTimeout,
		Token: func(ctx context.Context) (string, error) {
			return d.peers.ctld.Munge.Encode(ctx, d.spec.User.UID, nil)
		},
		Forward: d.slurmds().forward,
		Log:     func(text string) { d.log.Info(text) },
		Abort:   func(rank, code int, text string) { d.st.SpawnedAborted(rank, code, text) },
		Ending:  func() <-chan struct{} { return d.st.Ending() },
	})
	return d.spawns, nil // srun waits for what they have spawned
}

// reportOrigin begins to report to the step that has spawned this one, if there is one.
func (d *daemon) reportOrigin() error {
	origin := spec.OriginOf(d.stream)
	if origin == nil {
		return nil
	}
	d.inbox.Cancel = func(reason string) { d.st.Cancel(reason) }
	if err := d.inbox.Open(); err != nil {
		return err
	}
	d.reporter = d.newReporter(origin)
	d.reporter.Gone = func(reason string) { d.st.Cancel(reason) }
	d.reporter.Start()
	return nil
}

func (d *daemon) newReporter(origin *spec.Origin) *spawn.Reporter {
	return &spawn.Reporter{
		Origin: origin, ID: d.spec.ID, Node: d.spec.NodeName, Ranks: len(d.spec.LocalRanks()), Forward: d.slurmds().forward,
		Log: func(text string) { d.log.Info(text) }, Gone: func(string) {},
	}
}

// reportRefused tells the step that has spawned this one that it does not begin.
func (d *daemon) reportRefused(why error) {
	origin := spec.OriginOf(d.stream)
	if origin == nil {
		return
	}
	if d.peers == nil {
		d.peers = d.newPeers()
	}
	r := d.newReporter(origin)
	r.Start()
	r.Ended(lostRecord(why.Error()))
}

// lostRecord is of a step whose tasks' ends are not known.
func lostRecord(reason string) *step.Record {
	return &step.Record{State: step.Failed, Reason: reason, Tasks: []step.Task{{State: step.TaskPending}}}
}

// closeSpawns ends what serves spawned and spawning steps.
func (d *daemon) closeSpawns() {
	if d.inbox != nil {
		d.inbox.Close()
	}
	if d.spawns != nil {
		d.spawns.Close()
	}
}

// slurmds are the slurmds of the job's nodes, which pass records on to other step daemons.
type slurmds struct {
	client    rpc.Client
	slurmUser uint32
	find      func(nodes []string) (map[string]slurmconf.Address, error)
}

func (d *daemon) slurmds() *slurmds {
	s := &slurmds{client: d.peers.ctld, slurmUser: d.peers.slurmUser, find: d.addresses}
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
