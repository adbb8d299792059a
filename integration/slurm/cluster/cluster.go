package cluster

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed init.sh
var initScript string

// Programs is where a cluster sees the Site's folder of programs.
const Programs = "/usr/libexec/stepd"

// startTime ends a daemon's start, and stopTime its stop.
const (
	startTime = 60 * time.Second
	stopTime  = 30 * time.Second
)

// A Site is what a cluster is made of. In the files that it brings, DIR/ is the cluster's
// folder; one that begins with #! is a program.
type Site struct {
	Release    string            // of Slurm: one of Releases
	Cache      string            // the folder of images
	Programs   string            // a folder of programs that the cluster sees at Programs; empty for none
	StepDaemon string            // slurmd -d: a path that the cluster sees; empty for Slurm's own
	Conf       string            // lines of slurm.conf, each with its newline; they win over the harness's
	Cgroup     string            // cgroup.conf
	Files      map[string]string // other files of the cluster's folder: plugstack.conf
	Users      []string          // accounts with homes below Dir/work, user ids from 7001 on
	// Accounting has slurmctld keep accounts in a slurmdbd with a database, so that sacct works: of
	// AccountingRelease alone.
	Accounting bool
	// Devices are device nodes of the cluster's folder, by their names, that no driver serves: who
	// opens one is told so (ENXIO), or that a cgroup keeps it from him (EPERM).
	Devices []string
	// Others are nodes beside Node, with the addresses 10.77.0.2 and on: slurmds that differ in
	// their host's name. Conf describes them and Node, and where %n is in each one's paths.
	Others []string
	// Nodes, where it is not 0, is the number of nodes, n1 and on, each a machine of its own to
	// Slurm: with a link, a name, /tmp, /run and /dev/shm. The users' folders are one on all of them. Slurmctld and the Site's users are on the host
	// Login then, and no node.
	Nodes int
	// Env is beside their own in the environment of slurmds, and so of step daemons: NAME=VALUE.
	Env []string
	// OwnCgroups gives the cluster a tree of cgroups of its own, which its processes see as the
	// whole machine's. The machine has cgroup v2 alone.
	OwnCgroups bool
}

// A Cluster is a private Slurm. Its methods may be called by several goroutines at once.
type Cluster struct {
	Dir   string // its files; inside and outside the same path
	init  *exec.Cmd
	hold  io.Closer // closed, it ends process 1
	users map[string]uint32
	site  Site
	// cgroups is where its tree of cgroups begins, "" without one, and leaf the place there of
	// process 1 and of commands.
	cgroups string
	leaf    *os.File
}

// Start starts a private Slurm and waits until its node is idle. The caller stops it. It
// needs root. Its error wraps ErrMoved where Debian does not have the release.
func Start(ctx context.Context, site Site) (*Cluster, error) {
	root, err := Image(ctx, site.Cache, site.Release)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/var/tmp", "slurm") // short: spool paths become socket names
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, users: map[string]uint32{"root": 0}, site: site}
	if err := errors.Join(os.Chmod(dir, 0o755), c.write(site, root)); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("cannot make the cluster's folder: %w", err)
	}
	if err := c.startInit(root); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	for _, start := range []func(context.Context) error{c.startNodes, c.StartMunged, c.startAccounting, c.StartSlurmctld, c.StartSlurmd} {
		if err := start(ctx); err != nil {
			err = fmt.Errorf("%w\n%s", err, c.logs())
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

// startInit starts process 1 in its namespaces, and waits until its tree stands.
func (c *Cluster) startInit(root string) error {
	line := unshared([]string{"--mount"}, []string{"sh", "-c", initScript, "init", root, c.Dir, c.site.host(), c.site.Programs})
	if c.site.OwnCgroups {
		// The namespace begins where the process is that makes it (cgroup_namespaces(7)).
		c.cgroups = filepath.Join("/sys/fs/cgroup", filepath.Base(c.Dir))
		controllers := []byte("+cpuset +cpu +memory +io +pids")
		if err := errors.Join(os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", controllers, 0), os.Mkdir(c.cgroups, 0o755)); err != nil {
			return fmt.Errorf("cannot make cgroups for the cluster: %w", err)
		}
		line = append([]string{"sh", "-ec", `echo 0 > "$0/cgroup.procs"; exec unshare --cgroup -- "$@"`, c.cgroups}, append(line, "own")...)
	}
	c.init = exec.Command(line[0], line[1:]...)
	// Were the thread that forks it to end, the parent-death signal would come: so there is
	// none, and the pipe's end does it.
	c.init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS}
	var said strings.Builder
	c.init.Stderr = &said
	hold, err := c.init.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.init.StdoutPipe()
	if err != nil {
		return err
	}
	c.hold = hold
	if err := c.init.Start(); err != nil {
		return fmt.Errorf("cannot make the cluster's namespaces (root is needed): %w", err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		_ = c.init.Process.Kill()
		_ = c.init.Wait()
		return fmt.Errorf("cannot build the cluster's tree: %s", said.String())
	}
	if c.cgroups != "" {
		c.leaf, err = os.Open(filepath.Join(c.cgroups, "init"))
	}
	return err
}

// Stop ends all of the cluster's processes and removes its folder. The caller reads the
// logs before.
func (c *Cluster) Stop() error {
	_ = c.hold.Close()
	// The processes end with process 1, also those that do not heed it.
	err := c.init.Wait()
	return errors.Join(err, c.removeCgroups(), os.RemoveAll(c.Dir))
}

// Path returns the path of a file of the cluster's folder.
func (c *Cluster) Path(name string) string { return filepath.Join(c.Dir, name) }

// Command is a program as a user of the Site (or root), in the user's folder, with a
// login's environment. The program inherits no signal of the caller: a limit of time is
// coreutils' timeout, inside.
func (c *Cluster) Command(ctx context.Context, user, name string, args ...string) *exec.Cmd {
	id, ok := c.users[user]
	if !ok {
		panic("no such user in the Site: " + user)
	}
	home := c.Path("work/" + user)
	if id == 0 {
		home = c.Dir
	}
	line := []string{"--target", strconv.Itoa(c.init.Process.Pid), "--mount", "--uts", "--net", "--pid", "--cgroup", "--root", "--"}
	if id != 0 {
		line = append(line, "setpriv", fmt.Sprintf("--reuid=%d", id), fmt.Sprintf("--regid=%d", id), "--init-groups", "--inh-caps=-all")
	}
	line = append(line, "env", "--chdir="+home, name)
	cmd := exec.CommandContext(ctx, "nsenter", append(line, args...)...)
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "SHELL=/bin/bash",
		"HOME=" + home, "USER=" + user, "LOGNAME=" + user,
		"SLURM_CONF=" + c.Path("slurm.conf"), "DIR=" + c.Dir,
	}
	if c.leaf != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(c.leaf.Fd())}
	}
	return cmd
}

// do runs a program as root. Its error has what the program said.
func (c *Cluster) do(ctx context.Context, name string, args ...string) error {
	return c.run(c.Command(ctx, "root", name, args...))
}

// run runs a program. Its error has what the program said.
func (c *Cluster) run(cmd *exec.Cmd) error {
	// A file, no pipe: a daemon that a command starts may keep it open.
	said, err := os.CreateTemp(c.Dir, "said")
	if err != nil {
		return err
	}
	defer os.Remove(said.Name())
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		_, line, _ := strings.Cut(strings.Join(cmd.Args, " "), " --chdir="+c.Dir+" ")
		return fmt.Errorf("cannot run %s: %w: %s", line, err, strings.TrimSpace(string(text)))
	}
	return nil
}

// SlurmdLogs are the names of the slurmds' logs, where the step daemons' lines are as well.
func (c *Cluster) SlurmdLogs() []string {
	if c.site.Nodes == 0 {
		return []string{"slurmd.log"}
	}
	var names []string
	for _, node := range c.Nodes() {
		names = append(names, "slurmd."+node+".log")
	}
	return names
}

// logs returns the end of each daemon's log.
func (c *Cluster) logs() string {
	var all strings.Builder
	for _, name := range append([]string{"munged.log", "slurmdbd.log", "slurmctld.log"}, c.SlurmdLogs()...) {
		data, err := os.ReadFile(c.Path(name))
		if err == nil {
			fmt.Fprintf(&all, "%s: %s\n", name, data[max(0, len(data)-2000):])
		}
	}
	return all.String()
}
