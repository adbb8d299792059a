package jobcontainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// plan is what one job's namespace is made from.
type plan struct {
	job          uint32
	uid          string // the user's, "" is not known
	cfg          *Config
	jobDir       string   // BASE/TAG/N, and
	nsPath       string   // RUN/jobs/N/ns: for scripts
	pins         string   // RUN/jobs: the job does not see it
	env          []string // of scripts, beside what all have
	scriptInside bool     // InitScript runs in the job's namespace
	private      []private
	proc         *os.File // the /proc of the job's pid namespace, nil without one
	hook         func(string) error
}

// build makes the mount namespace and returns its file. The namespace lives as
// long as the file, a pin or a process in it does.
func (p *plan) build(ctx context.Context) (*os.File, error) {
	type result struct {
		ns  *os.File
		err error
	}
	done := make(chan result, 1) // the thread must not wait for us
	onDisposableThread(func() {
		ns, err := p.inThread(ctx)
		done <- result{ns, err}
	})
	r := <-done
	return r.ns, r.err
}

// onDisposableThread runs f on an operating system thread that ends with it.
//
// This is the only place where a thread of noded gets a mount namespace of its
// own. The kernel keeps namespaces per thread, and Go moves goroutines between
// threads at will. So the goroutine locks its thread and never unlocks it: Go
// then ends the thread with the goroutine, and as long as the thread is locked
// it starts no other thread from it (runtime.LockOSThread; since Go 1.10), so
// that no other goroutine can come to run in the job's namespace. A process
// cannot do without its first thread, and /proc/self shows that one's mounts:
// it is never used.
func onDisposableThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// While this goroutine holds the first thread, another one cannot get it.
		done := make(chan struct{})
		onDisposableThread(func() { defer close(done); f() })
		<-done
		runtime.UnlockOSThread() // untouched
	}()
}

// inThread makes the namespace in the calling thread, which must be disposable.
// The order counts: propagation is cut before anything is mounted, or the host
// would get it; the script runs before the private directories cover the
// host's, as in Slurm (job_container.conf(5), InitScript).
func (p *plan) inThread(ctx context.Context) (_ *os.File, err error) {
	if err := unshareMounts(); err != nil {
		return nil, fmt.Errorf("cannot make a mount namespace for job %d: %w", p.job, err)
	}
	// Opened before the script could mount something over /proc.
	ns, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("cannot open the mount namespace of job %d: %w", p.job, err)
	}
	defer func() {
		if err != nil {
			ns.Close()
		}
	}()
	propagation, name := uintptr(unix.MS_PRIVATE), "private"
	if p.cfg.Shared {
		propagation, name = unix.MS_SLAVE, "slave"
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
		return nil, fmt.Errorf("cannot make the mounts of job %d %s: %w", p.job, name, err)
	}
	// The copy of RUN/jobs: the pins were not copied, the kernel sees to that,
	// but it would keep RUN's file system busy on the host.
	err = unix.Unmount(p.pins, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("cannot unmount %q in the namespace of job %d: %w", p.pins, p.job, err)
	}
	if err := p.hook("unshared"); err != nil {
		return nil, err
	}
	if p.scriptInside {
		if err := p.runInitScript(ctx); err != nil {
			return nil, err
		}
	}
	if err := p.hook("script"); err != nil {
		return nil, err
	}
	for _, d := range p.private {
		if err := p.cover(d); err != nil {
			return nil, err
		}
	}
	if p.proc != nil {
		if err := p.cover(private{p.proc, "/proc"}); err != nil {
			return nil, err
		}
	}
	return ns, p.hook("covered")
}

// cover mounts one private directory over its target.
func (p *plan) cover(d private) error {
	target, err := openTrusted(d.target, failMissing)
	if err != nil {
		return fmt.Errorf("cannot cover directory %q for job %d: %w (Dirs= in job_container.conf)", d.target, p.job, err)
	}
	defer target.Close()
	if err := linux.Attach(d.tree, target); err != nil {
		return fmt.Errorf("cannot cover directory %q for job %d by %q: %w (Dirs= in job_container.conf)",
			d.target, p.job, path.Clean(d.tree.Name()), err)
	}
	return nil
}

// nsGetMountID is NS_GET_MNTNS_ID (linux/nsfs.h, Linux 6.11).
const nsGetMountID = 0x8008b705

// unshareMounts gives the calling thread, which must be disposable, a mount namespace
// that can be pinned in noded's.
//
// A mount namespace can be bound only in one with a lower number (fs/namespace.c,
// mnt_ns_loop). Since Linux 6.18 each CPU deals numbers from a lot of its own
// (kernel/nstree.c), so that a namespace that is made later may have a lower one.
// noded's own is beyond the first one's where it runs in a container, and a CPU is
// looked for then whose numbers are higher: the CPU of noded's own namespace is one.
func unshareMounts() error {
	own, _ := mountID("/proc/self/ns/mnt") // 0, and none is lower, where it is not known
	return unshareAbove(own)
}

// unshareAbove makes a mount namespace of a higher number than own.
func unshareAbove(own uint64) error {
	younger := func() (bool, error) {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return false, err
		}
		made, known := mountID("/proc/thread-self/ns/mnt")
		return !known || made > own, nil
	}
	if ok, err := younger(); ok || err != nil {
		return err
	}
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	for cpu := range len(all) * 64 {
		if !all.IsSet(cpu) {
			continue
		}
		one.Zero()
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return err
		}
		if ok, err := younger(); ok || err != nil {
			// What the thread starts may run anywhere.
			return errors.Join(err, unix.SchedSetaffinity(0, &all))
		}
	}
	return fmt.Errorf("none of noded's CPUs numbers it higher than noded's own (%d), in which it is to be held", own)
}

// mountID is the number of the mount namespace at path; false where the kernel does not
// tell.
func mountID(path string) (uint64, bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	id, err := unix.IoctlGetInt(int(f.Fd()), nsGetMountID) // into 64 bits
	return uint64(id), err == nil
}

// devShm is served from memory, as the node's own is.
const devShm = "/dev/shm"

// private is one private directory: a detached mount, and the path in the
// job's namespace that it covers.
type private struct {
	tree   *os.File
	target string
}

// makePrivate makes a directory, or a file system in memory, for each of Dirs.
func (p *plan) makePrivate(jobDir *os.File, user step.User) error {
	for i, target := range p.cfg.Dirs {
		var tree *os.File
		var err error
		if target == devShm {
			tree, err = linux.NewTmpfs("job", 0, [2]string{"mode", "1777"})
		} else {
			tree, err = makePrivateDir(jobDir, privateName(i, target), user)
		}
		if err != nil {
			return fmt.Errorf("cannot make the private %q of job %d: %w", target, p.job, err)
		}
		p.private = append(p.private, private{tree, target})
	}
	return nil
}

// makePrivateDir makes one directory of the user's and returns a mount of it.
// It was made by us in a directory of root's, so the name cannot be swapped;
// the owner is set through the descriptor all the same (CVE-2023-41914).
func makePrivateDir(jobDir *os.File, name string, user step.User) (*os.File, error) {
	dir, err := makeDir(jobDir, name, 0o700)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := unix.Fchown(int(dir.Fd()), int(user.UID), int(user.GID)); err != nil {
		return nil, &fs.PathError{Op: "chown", Path: dir.Name(), Err: err}
	}
	// As on the node's own /tmp of any distribution.
	return cloneMount(dir, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// privateName is "0-tmp" for /tmp: the index keeps "/a/b" and "/a-b" apart.
func privateName(i int, target string) string {
	name := fmt.Sprintf("%d-%s", i, strings.ReplaceAll(strings.TrimPrefix(target, "/"), "/", "-"))
	return name[:min(len(name), unix.NAME_MAX)]
}

// close drops the descriptors. A mount that was not attached goes with them.
func (p *plan) close() {
	for _, d := range p.private {
		d.tree.Close()
	}
}

const (
	// scriptOutputMax bounds what of the script's output gets into the error.
	scriptOutputMax = 2048
	// scriptDrain is how long a process that the script left behind may hold
	// its output open before we stop reading.
	scriptDrain = time.Second
)

// runInitScript runs InitScript in the calling thread's namespaces: a child begins
// in the namespaces of the thread that forks it. A failure fails the job's creation.
func (p *plan) runInitScript(ctx context.Context) error {
	return p.run(ctx, script{key: "InitScript", path: p.cfg.InitScript, timeout: p.cfg.InitTimeout, doing: "prepare"})
}

// cloneScript runs CloneNSScript outside of the job's namespaces, which are complete
// and pinned. A failure fails the job's creation.
func (p *plan) cloneScript(ctx context.Context) error {
	return p.run(ctx, script{key: "CloneNSScript", path: p.cfg.CloneNSScript, timeout: p.cfg.CloneNSScriptWait, doing: "prepare", ns: true})
}

// cloneEpilog runs CloneNSEpilog outside of the namespaces of a job that are about to
// end; dir is RUN/jobs/N. A job that came not so far has none. A failure is for the
// log: nothing else could be made of it.
func cloneEpilog(ctx context.Context, dir *os.File, job uint32, cfg *Config) error {
	if cfg.CloneNSEpilog == "" {
		return nil
	}
	ns, err := openPin(dir, pinName, unix.CLONE_NEWNS)
	if err != nil {
		return nil
	}
	ns.Close()
	p := &plan{job: job, cfg: cfg, nsPath: path.Join(dir.Name(), pinName)}
	if base, err := readSmall(dir, baseName); err == nil {
		p.jobDir = path.Join(base, cfg.NodeTag, jobName(job))
	}
	if uid, err := readSmall(dir, uidName); err == nil {
		p.uid = uid
	}
	return p.run(ctx, script{key: "CloneNSEpilog", path: cfg.CloneNSEpilog, timeout: cfg.CloneNSEpilogWait, doing: "clean up after", ns: true})
}

// script is one of the site's for job containers.
type script struct {
	key, path string
	timeout   time.Duration
	doing     string // what cannot be done to the job without it
	ns        bool   // it gets the path where the namespace is pinned
}

// run runs a script as root, if there is one. Its environment is made here and holds
// nothing of the user's (CVE-2017-15566, CVE-2021-31215). That it fails or overruns
// its time is an error.
func (p *plan) run(ctx context.Context, s script) error {
	if s.path == "" {
		return nil
	}
	if err := checkScript(s.path); err != nil {
		return &launch.FaultError{Err: fmt.Errorf("cannot run %q for job %d: %w (%s= in job_container.conf)", s.path, p.job, err, s.key)}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no end after %v", s.timeout))
	defer cancel()
	// What is bound to the thread that forks, below.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var out tail
	cmd := exec.CommandContext(ctx, s.path)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		fmt.Sprintf("SLURM_JOB_ID=%d", p.job),
		"SLURMD_NODENAME=" + p.cfg.NodeName,
	}
	for name, value := range map[string]string{"SLURM_JOB_UID": p.uid, "SLURM_JOB_MOUNTPOINT_SRC": p.jobDir} {
		if value != "" { // an earlier noded's job may lack it
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	if p.cfg.SlurmConf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+p.cfg.SlurmConf)
	}
	if s.ns {
		cmd.Env = append(cmd.Env, "SLURM_NS="+p.nsPath)
	}
	cmd.Env = append(cmd.Env, p.env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = scriptDrain
	// A session of its own, so that all of it can be killed. Pdeathsig: noded
	// killed outright takes the script along; it is bound to the thread that
	// forks, and this one waits here until the script has ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	err := cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("cannot %s job %d: %q: %w%s (%s= in job_container.conf)", s.doing, p.job, s.path, err, out.quoted(), s.key)
}

// checkScript refuses a script that others than root could have written.
func checkScript(script string) error {
	f, err := openTrusted(script, failMissing)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("not a regular file")
	}
	return checkOwn(f)
}

// tail keeps the last bytes written to it: a script says at the end why it failed.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - scriptOutputMax; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// quoted is the output as part of an error: one line, whatever was written.
func (t *tail) quoted() string {
	s := strings.TrimSpace(string(bytes.ToValidUTF8(t.b, []byte("?"))))
	if s == "" {
		return ""
	}
	return fmt.Sprintf(", it said %q", s)
}
