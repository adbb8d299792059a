package slurmstepd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/quickjson"
	"stepd/proctrack"
	"stepd/slurm/keeper"
	"stepd/slurm/munge"
	"stepd/slurm/place"
	"stepd/slurm/rpc"
	"stepd/slurm/spec"
	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
)

// will is what the orphan must know to end a step whose daemon has died. It travels as JSON in
// memory that root's processes alone have; no key and no token is in it.
type will struct {
	Step    wire.StepID  `json:"step"`
	Name    string       `json:"name"` // "12.0", "12.0+1"
	Node    string       `json:"node"`
	NodeID  uint32       `json:"node_id"`
	Batch   bool         `json:"batch"`
	Ranks   []int        `json:"ranks"`
	Release wire.Release `json:"release"`
	// SrunRelease and the others are peers' fields.
	SrunRelease wire.Release `json:"srun_release"`
	User        uint32       `json:"user"`
	SlurmUser   uint32       `json:"slurm_user"`
	Launcher    string       `json:"launcher"`
	Controllers []string     `json:"controllers"`
	Parent      string       `json:"parent"`
	// Children are the nodes below this one, whose marks follow the ranks'.
	Children  int    `json:"children"`
	Munge     string `json:"munge"`
	TimeoutMS int64  `json:"timeout_ms"`
	LogFile   string `json:"log_file"`
	Debug     uint32 `json:"debug"`
	Spool     string `json:"spool"`
	// Remove are files of the step, and then directories if they are empty.
	Remove []string `json:"remove"`
	// MPI is the step as its MPI ranks name it, and MPIKey as files do.
	MPI    step.ID `json:"mpi"`
	MPIKey string  `json:"mpi_key"`
	// Neighbours are the step's nodes next to this one in its tree, where it has the place PeerSelf,
	// and PeerRelease is their messages'.
	Neighbours  map[int]slurmconf.Address `json:"neighbours"`
	PeerSelf    int                       `json:"peer_self"`
	PeerRelease wire.Release              `json:"peer_release"`
	// Container is the folder of the containers of the node's jobs, where this step has made its
	// job's, else "".
	Container string `json:"container"`
	// Origin is who has spawned the step, nil without; SlurmConf is where slurm.conf is.
	Origin    *spec.Origin `json:"origin,omitempty"`
	SlurmConf string       `json:"slurm_conf"`
	// Cgroups are the step's. A step without any is found by its session and by when its daemon
	// has started, in ticks.
	Cgroups     proctrack.StepCgroups `json:"cgroups"`
	Session     int                   `json:"session"`
	Started     uint64                `json:"started"`
	UnkillableS int                   `json:"unkillable_s"`
}

// The marks, by which the orphan knows what has been reported already. The ranks' marks
// follow, by local id.
const (
	markAnswered = iota // slurmd has been told that the step runs, or is told now
	markLaunched        // srun, of the tasks or of their failure
	markComplete        // slurmctld, of the step's end
	markRanks
)

// will is the daemon's.
func (d *daemon) will() (*will, error) {
	session, err := unix.Getsid(0)
	if err != nil {
		return nil, fmt.Errorf("cannot find the own session: %w", err)
	}
	started, err := linux.StartTime(os.Getpid())
	if err != nil {
		return nil, err
	}
	p, conf := d.peers, d.stream.Conf
	w := &will{
		Step: p.id, Name: stepName(d.stream), Node: p.node, NodeID: d.spec.NodeID, Batch: d.stream.Batch != nil,
		Ranks: d.plan.Ranks, Release: p.ctld.Release, SrunRelease: p.srun.Release, User: p.user, SlurmUser: p.slurmUser,
		Launcher: p.launcher, Controllers: p.addrs, Parent: p.parent, Munge: p.ctld.Munge.Socket, TimeoutMS: p.ctld.Timeout.Milliseconds(),
		LogFile: conf.LogFile, Spool: conf.Spool, Debug: conf.Debug, Remove: []string{d.socketConfig().Path(), filepath.Join(place.Dir(conf.Spool), mailboxName(d.spec.ID.Key())), filepath.Join(place.Dir(conf.Spool), mailboxName(d.spec.MPIKey())), d.spawning.inbox.Path},
		Cgroups: d.cgroups(), Session: session, Started: started, UnkillableS: d.spec.UnkillableS,
		Origin: spec.OriginOf(d.stream), SlurmConf: d.conf.File, MPI: d.spec.MPISpec().ID, MPIKey: d.spec.MPIKey(),
	}
	if d.office != nil {
		w.Neighbours, w.PeerSelf, w.PeerRelease = d.office.nodes, d.office.self, d.office.client.Release
	}
	w.Children = d.tree.Len()
	if d.container != nil {
		w.Container = d.container.Dir()
	}
	if w.Batch {
		script := spec.ScriptPath(conf.Spool, d.stream.Batch.Job)
		w.Remove = append(w.Remove, script, filepath.Dir(script))
	}
	if d.extern != nil && d.extern.Sign() != "" {
		w.Remove = append(w.Remove, d.extern.Sign(), filepath.Dir(d.extern.Sign()))
	}
	return w, nil
}

// cgroups are the step's, the zero value without any.
func (d *daemon) cgroups() proctrack.StepCgroups {
	return proctrack.StepCgroups{Dir: d.spec.Proctrack.Dir, Tasks: d.spec.Proctrack.Tasks, V1: d.spec.Confine.V1}
}

// peers are the daemon's peers.
func (w *will) peers(log *logrus.Logger) *peers {
	client := func(release wire.Release) rpc.Client {
		return rpc.Client{Release: release, Munge: munge.Client{Socket: w.Munge}, Timeout: time.Duration(w.TimeoutMS) * time.Millisecond}
	}
	return &peers{
		log: log, srun: client(w.SrunRelease), ctld: client(w.Release), id: w.Step, node: w.Node,
		user: w.User, slurmUser: w.SlurmUser, launcher: w.Launcher, addrs: w.Controllers, parent: w.Parent,
	}
}

// guard starts the keeper. A step without one runs as Slurm's own do: the log says so.
func (d *daemon) guard() error {
	w, err := d.will()
	if err != nil {
		return err
	}
	text, err := quickjson.Marshal(w)
	if err != nil {
		return fmt.Errorf("cannot write what the step's keeper must know: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find stepkeeper: %w", err)
	}
	cfg := keeper.Config{
		Program: filepath.Join(filepath.Dir(self), "stepkeeper"), Step: w.Name, Lock: d.place.Lock(), Stderr: d.file,
		Will: text, Marks: markRanks + len(w.Ranks) + w.Children, Log: func(text string) { d.log.Warn(text) },
	}
	if w.Cgroups.Dir != "" {
		cfg.Cgroups = []string{w.Cgroups.Tasks, w.Cgroups.Dir}
	}
	if d.keeper, err = keeper.Start(cfg); err != nil {
		d.log.Errorf("%v: should this daemon be killed, its tasks live on", err)
	}
	return nil
}

// The bits of a rank's mark. The low ones are its wait status once it has ended.
const (
	rankReported = 1 << 31 // srun knows of the end
	rankEnded    = 1 << 30
	rankStatus   = 1<<16 - 1
)

// mark notes for the orphan what has been reported.
func (d *daemon) mark(i int) { d.markBits(i, 1) }

func (d *daemon) markBits(i int, bits uint32) {
	if d.keeper != nil {
		d.keeper.Mark(i, bits)
	}
}

// markRank notes something of a task.
func (d *daemon) markRank(rank int, bits uint32) {
	if local := slices.Index(d.plan.Ranks, rank); local >= 0 {
		d.markBits(markRanks+local, bits)
	}
}

// markSent notes that srun has a message.
func (d *daemon) markSent(m wire.Message) {
	switch m := m.(type) {
	case *wire.LaunchResponse:
		d.mark(markLaunched)
	case *wire.TaskExit:
		for _, r := range m.Ranks {
			d.markRank(int(r), rankReported)
		}
	}
}
