package pmix

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"stepd/step"
	"stepd/step/launch"
)

// Keys of PMIx_Spawn's directives.
const (
	keyWdir     = "pmix.wdir"
	keyHost     = "pmix.host"
	keyAddHost  = "pmix.addhost"
	keySetEnvar = "pmix.envar.set"
)

// pmixName is the plugin's name as --mpi has it.
const pmixName = "pmix"

// spawnInfosMax bounds the directives for all commands of a spawn.
const spawnInfosMax = 256

// appMin is the least that a command takes in a frame.
const appMin = 24

// serveSpawn starts another step of the job (PMIx_Spawn, which MPI_Comm_spawn
// becomes).
func (p upcalls) serveSpawn(ctx context.Context, r *reader) (reply, error) {
	who, infos := r.proc(), r.infos()
	if len(infos) > spawnInfosMax || r.count() > launch.SpawnAppsMax {
		// Each command is given all directives: their product is the user's to choose.
		p.log(fmt.Sprintf("cannot spawn for MPI rank %d: more than %d commands or %d directives", who.rank, launch.SpawnAppsMax, spawnInfosMax))
		return status(stBadParam), nil
	}
	apps := elements(r, appMin, func() launch.SpawnApp { return readApp(r, infos) })
	if err := r.done(); err != nil {
		return reply{}, err
	}
	if p.job.Job == nil || who.nspace != p.world.nspace {
		return status(stNotSupported), nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(infos), errTimeout)
	defer cancel()
	p.waits([]int{int(who.rank)}, "spawn", "")
	id, err := p.job.Job.Spawn(ctx, launch.SpawnRequest{Rank: int(who.rank), Apps: apps, MPI: pmixName})
	p.note(who, func(*rank) {})
	if err != nil {
		p.log(fmt.Sprintf("cannot spawn for MPI rank %d: %v", who.rank, err))
		if _, ok := errors.AsType[*launch.SpawnError](err); ok {
			return status(stLaunchFailed), nil
		}
		return status(stError), nil
	}
	p.others.spawned(Nspace(id))
	return reply{fill: func(w *writer) { w.Str(Nspace(id)) }}, nil
}

// readApp reads one command; the options of the whole spawn count for each.
func readApp(r *reader, job []info) launch.SpawnApp {
	cmd, argv := r.str(), r.strs()
	a := launch.SpawnApp{Argv: argv, Env: r.strs(), Cwd: r.str(), NTasks: r.i32()}
	if len(argv) == 0 {
		a.Argv = []string{cmd}
	} else if cmd != "" {
		a.Argv[0] = cmd
	}
	for _, i := range append(append([]info(nil), job...), r.infos()...) {
		switch i.key {
		case keyWdir:
			a.Cwd = i.value.text
		case keyHost, keyAddHost:
			a.Info = append(a.Info, step.KeyValue{Key: "host", Value: []byte(i.value.text)})
		case keySetEnvar:
			a.Env = append(a.Env, i.value.text)
		}
	}
	// The server's own variables are the new step's server's to set.
	kept := a.Env[:0]
	for _, e := range a.Env {
		if !strings.HasPrefix(e, "PMIX_") || strings.HasPrefix(e, "PMIX_MCA_") {
			kept = append(kept, e)
		}
	}
	a.Env = kept
	return a
}
