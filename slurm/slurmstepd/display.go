package slurmstepd

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"stepd/internal/linux"
	"stepd/slurm/extern"
	"stepd/slurm/place"
	"stepd/slurm/rpc"
	"stepd/slurm/wire"
	"stepd/slurm/x11"
	"stepd/slurmconf"
)

// externConfig is the extern step's, with the job's display where it is to have one here. A job
// whose display cannot be made runs without: slurmd then gives DISPLAY a value that says so.
func (d *daemon) externConfig() extern.Config {
	cfg := extern.Config{Cgroups: d.cgroups(), Log: func(line string) { d.log.Info(line) }}
	if d.stream.Launch.X11.Flags == 0 {
		return cfg
	}
	var err error
	if d.x11, err = d.openDisplay(); err != nil {
		d.log.Errorf("the job has no display: %v", err)
		return cfg
	}
	cfg.Display, cfg.Authority = d.x11.Display()
	d.log.Infof("X11 is forwarded from display %d", cfg.Display)
	return cfg
}

// openDisplay makes the job's display.
func (d *daemon) openDisplay() (*x11.Forward, error) {
	dir, home, err := d.keyPlace()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(place.Dir(d.stream.Conf.Spool), 0o755); err != nil { // of a step without cgroups
		return nil, fmt.Errorf("cannot note the job's display: %w", err)
	}
	u, to := &d.spec.User, &d.stream.Launch.X11
	srun := rpc.Peer{Addr: net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))), Reader: u.UID, Signers: []uint32{u.UID, 0}}
	client := d.srunClient()
	return x11.Start(x11.Config{
		Owner: linux.FileUser{UID: u.UID, GID: u.GID, Groups: u.Groups},
		Dir:   dir, Home: home, Namespace: d.namespace,
		Note: displayNote(d.stream.Conf.Spool, d.spec.ID.Job), Cookie: to.Cookie,
		Open: func(ctx context.Context) (*net.TCPConn, error) {
			return client.Open(ctx, srun, &wire.NetForward{Step: d.id(), Port: to.TargetPort, Target: to.Target})
		},
		Log: func(line string) { d.log.Error(line) },
	})
}

// keyPlace is the directory of the file of the display's key, or the home whose file it is
// (X11Parameters=home_xauthority).
func (d *daemon) keyPlace() (dir, home string, err error) {
	set, err := slurmconf.Settings(d.conf.File)
	if err != nil {
		return "", "", err
	}
	shared := false
	for _, s := range set {
		switch {
		case s.On != "":
		case strings.EqualFold(s.Key, "TmpFS"):
			dir = s.Value
		case strings.EqualFold(s.Key, "X11Parameters"):
			shared = strings.Contains(strings.ToLower(s.Value), "home_xauthority")
		}
	}
	if shared {
		if home = d.cred().Dir; !filepath.IsAbs(home) {
			return "", "", fmt.Errorf("cannot find the home of uid %d, where X11Parameters=home_xauthority has the display's key", d.spec.User.UID)
		}
	}
	dir = strings.NewReplacer("%h", d.stream.Conf.Host, "%n", d.stream.Conf.Node).Replace(cmp.Or(dir, "/tmp"))
	return dir, home, nil
}

// displayNote is where the job's display is noted, for the case that the daemon is killed.
func displayNote(spool string, job uint32) string {
	return filepath.Join(place.Dir(spool), fmt.Sprintf("x11-%d", job))
}

// closeDisplay ends the job's display.
func (d *daemon) closeDisplay() error {
	if d.x11 == nil {
		return nil
	}
	return d.x11.Close()
}
