package slurmstepd

import (
	"context"
	"net"

	"stepd/internal/linux"
	"stepd/slurm/extern"
	"stepd/slurm/place"
	"stepd/slurm/spec"
	"stepd/slurm/x11"
	"stepd/slurmconf"
)

// externConfig is the extern step's. A job whose display cannot be made runs without.
func (d *daemon) externConfig() extern.Config {
	u, to := &d.spec.User, &d.stream.Launch.X11
	cfg := extern.Config{
		Job: d.spec.ID.Job, Cgroups: d.cgroups(), Notes: place.Dir(d.stream.Conf.Spool),
		Log: func(line string) { d.log.Info(line) }, Error: func(line string) { d.log.Error(line) },
	}
	if d.conf.ProctrackType == "proctrack/cgroup" { // Slurm's own makes the directory then
		cfg.Sign = extern.Sign(d.conf.Cgroup.CgroupMountpoint, u.UID, d.spec.ID.Job)
	}
	if to.Flags == 0 {
		return cfg
	}
	set, err := slurmconf.Settings(d.conf.File)
	if err != nil {
		d.log.Errorf("the job has no display: %v", err)
		return cfg
	}
	dir, home := spec.DisplayKey(d.stream.Conf, d.cred(), set)
	cfg.Display = &x11.Config{
		Owner: linux.User{UID: u.UID, GID: u.GID, Groups: u.Groups},
		Dir:   dir, Home: home, Namespace: d.namespace, Cookie: to.Cookie,
		Open: func(ctx context.Context) (*net.TCPConn, error) { return d.peers.openDisplay(ctx, to) },
	}
	return cfg
}
