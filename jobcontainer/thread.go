package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"

	"golang.org/x/sys/unix"
)

// plan is what one job's namespace is made from.
type plan struct {
	job     uint32
	uid     string // the user's, "" is not known
	cfg     *Config
	jobDir  string // BASE/TAG/N, and
	nsPath  string // RUN/jobs/N/ns: for scripts
	private []private
	proc    *os.File // the /proc of the job's pid namespace, nil without one
	hook    func(string) error
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
	err = unix.Unmount(p.cfg.RunDir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("cannot unmount %q in the namespace of job %d: %w", p.cfg.RunDir, p.job, err)
	}
	if err := p.hook("unshared"); err != nil {
		return nil, err
	}
	if err := p.runInitScript(ctx); err != nil {
		return nil, err
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
	if err := attach(d.tree, target); err != nil {
		return fmt.Errorf("cannot cover directory %q for job %d by %q: %w (Dirs= in job_container.conf)",
			d.target, p.job, path.Clean(d.tree.Name()), err)
	}
	return nil
}
