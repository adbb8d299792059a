package slurmstepd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/jobcontainer"
	"stepd/slurm/check"
	"stepd/slurm/oci"
	"stepd/slurm/spec"
	"stepd/slurm/wire"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task"
)

// tmpfs is the site's job_container/tmpfs, nil without it.
func (d *daemon) tmpfs() (*jobcontainer.Slurmd, error) {
	if d.conf.JobContainerType != "tmpfs" {
		return nil, nil
	}
	c, s := &d.conf.Container, d.stream.Conf
	return jobcontainer.NewSlurmd(jobcontainer.Config{
		BasePath: c.BasePath, AutoBasePath: c.AutoBasePath, Dirs: c.Dirs, InitScript: c.InitScript,
		CloneNSScript: c.CloneNSScript, CloneNSScriptWait: c.CloneNSScriptWait,
		CloneNSEpilog: c.CloneNSEpilog, CloneNSEpilogWait: c.CloneNSEpilogWait,
		Shared: c.Shared, EntireStepInNS: c.EntireStepInNS, NodeName: s.Node, HostName: s.Host, SlurmConf: d.conf.File,
	}, s.Release < wire.V2302)
}

// joinContainer opens the job's container, which the extern step makes before. The extern
// step's own processes stay outside, as the original's (measured).
func (d *daemon) joinContainer(ctx context.Context) error {
	t, err := d.tmpfs()
	if t == nil || err != nil {
		return err
	}
	job := d.spec.ID.Job
	if d.spec.ID.Step == step.ExternStep {
		if err := t.Create(ctx, job, d.spec.User, d.stream.Launch.Dir); err != nil {
			return err
		}
		d.container = t
	}
	if d.namespace, err = t.Open(job); err != nil {
		return err
	}
	if d.container == nil {
		d.joined = launch.Namespaces{Mount: d.namespace, EntireStep: t.EntireStep()}
		d.spec.Container, d.spec.ContainerNS, d.spec.EntireStepInNS = "tmpfs", true, t.EntireStep()
	}
	return nil
}

// containerPatience bounds how long a job's private directories take to be emptied.
const containerPatience = 5 * time.Minute

// removeContainer removes the container that this step has made for its job. Another step removes
// it as the job's last one here, whose extern step was killed together with its keeper: slurmd
// begins no new extern step of the job while this step has its socket.
func (d *daemon) removeContainer() error {
	if d.namespace != nil {
		d.namespace.Close()
	}
	switch {
	case d.container == nil && d.namespace == nil:
		return nil
	case d.container == nil:
		return d.sweepContainer(d.spec.ID.Job, d.socketConfig().Path())
	}
	ctx, cancel := context.WithTimeout(context.Background(), containerPatience)
	defer cancel()
	return d.container.Delete(ctx, d.spec.ID.Job, d.spec.User, d.stream.Launch.Dir)
}

// removeContainer removes the container of the job whose extern step has died, as soon as no
// other step of the job uses it. That may take as long as the job.
func (o *orphan) removeContainer(ctx context.Context) error {
	w := &o.will
	if w.Container == "" {
		return nil
	}
	spool, err := linux.NewInotify()
	if err != nil {
		return err
	}
	defer spool.Close()
	if err := spool.Watch(w.Spool, unix.IN_DELETE|unix.IN_MOVED_FROM); err != nil {
		return err
	}
	for {
		if used, err := hasSteps(w.Spool, w.Node, w.Step.Job, ""); err != nil || !used {
			return errors.Join(err, jobcontainer.Remove(ctx, w.Container, w.Step.Job))
		}
		if err := spool.Wait(time.Time{}); err != nil {
			return err
		}
	}
}

// hasSteps reports whether the job has a step here other than the one of the socket, by the sockets
// in slurmd's spool.
func hasSteps(spool, node string, job uint32, socket string) (bool, error) {
	entries, err := os.ReadDir(spool)
	prefix := fmt.Sprintf("%s_%d.", node, job)
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return strings.HasPrefix(e.Name(), prefix) && e.Name() != filepath.Base(socket)
	}), err
}

// sweepContainer removes the container of a job whose extern step and its keeper have died, if
// no other step of the job uses it than one that has ended, whose socket is named ("" for none).
func (d *daemon) sweepContainer(job uint32, ended string) error {
	t, err := d.tmpfs()
	if t == nil || err != nil {
		return err
	}
	if used, err := hasSteps(d.stream.Conf.Spool, d.stream.Conf.Node, job, ended); err != nil || used {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), containerPatience)
	defer cancel()
	return jobcontainer.Remove(ctx, t.Dir(), job)
}

// bundle is the path of the bundle that a step is to run in, "" for none.
func bundle(s *wire.Stream) string {
	switch {
	case s.Batch != nil:
		return s.Batch.Container
	case s.Launch.Step.Step == wire.StepExtern:
		return ""
	}
	return s.Launch.Container
}

// makeBundles prepares the containers of the step's tasks, where it is to have any. It asks as
// the user whether the bundle is one, and runs before anything else waits for children.
func (d *daemon) makeBundles(ctx context.Context) error {
	path := bundle(d.stream)
	if path == "" {
		return nil
	}
	conf, err := oci.Load(d.conf.File)
	if err != nil {
		return check.NoContainer(err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find the own program: %w", err)
	}
	s := &oci.Step{
		Conf: *conf, Bundle: absolute(d.spec.Cwd, path), Node: d.spec.NodeName, User: d.spec.User.Name, UID: d.spec.User.UID, Job: d.spec.ID.Job, StepID: d.spec.ID.Step,
		Cwd: d.spec.Cwd, Dir: bundleDir(d.stream.Conf.Spool, d.spec.ID), Env: os.Environ(), Terminal: -1, Speaker: d.spec.Speaker,
	}
	if spec.Variable(s.Env, "SLURMD_NODENAME") == "" {
		s.Env = append(s.Env, "SLURMD_NODENAME="+d.spec.NodeName)
	}
	shapeBundles(s, d.stream, d.plan)
	var ranks []int
	for _, rank := range d.plan.Ranks {
		ranks = append(ranks, d.spec.SeenRank(rank))
	}
	if err := s.Prepare(ranks, d.spec.User.GID); err != nil {
		return err
	}
	d.bundles = &oci.Plugin{Step: s, Program: self, Ranks: ranks, Argv: d.spec.Argv}
	if d.namespace != nil {
		return nil // only a task sees what lies in the job's /tmp: it says so itself
	}
	return s.Check(ctx, self, d.spec.User.GID, d.spec.User.Groups)
}

// bundleDir is the folder of a step's containers.
func bundleDir(spool string, id step.ID) string {
	return filepath.Join(spool, "oci-job"+strings.Replace(id.Name(), ".", "-", 1))
}

// shapeBundles sets what the release, the streams and a batch job ask for.
func shapeBundles(s *oci.Step, stream *wire.Stream, plan *task.Plan) {
	switch v := stream.Conf.Release; {
	case v < wire.V2302:
		s.EnvFirst, s.BeginInBundle = true, true
	case v < wire.V2605:
		s.Spool = oci.SpoolTask
	default:
		s.Spool = oci.SpoolStep
	}
	if plan.Spec.Terminal != nil {
		s.Terminal = plan.Spec.SeenRank(0)
	}
	if stream.Batch == nil {
		return
	}
	s.Script = spec.ScriptPath(stream.Conf.Spool, stream.Batch.Job)
	for _, f := range plan.Streams {
		if f.Path != "" && f.FD == 1 {
			s.Stdout = absolute(plan.Spec.Cwd, f.Path)
		}
		if f.Path != "" && f.FD == 2 {
			s.Stderr = absolute(plan.Spec.Cwd, f.Path)
		}
	}
	if plan.Spec.Stderr.Kind == step.StreamSame {
		s.Stderr = s.Stdout
	}
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
