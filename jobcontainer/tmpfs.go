package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/printable"
	"stepd/step"
	"stepd/step/launch"
)

// Tmpfs is job_container/tmpfs: private directories per job; and, with the other
// namespaces that Config asks for, job_container/linux. Its methods may be called
// from any goroutine; those on one job run one after the other.
type Tmpfs struct {
	pins *pinRoot
	// hook is called at each point where a kill or an error would leave
	// something behind; tests put faults there. It is set before first use.
	hook func(point string) error
	// killMax is the constant of that name, but in tests.
	killMax time.Duration

	// claim is held while BASE/TAG is made: two jobs that begin at once would
	// write the same temporary file there.
	claim sync.Mutex

	cfg Config // complete

	mu    sync.Mutex
	jobs  map[uint32]*container // guarded by mu
	conts map[uint64]uint32     // guarded by mu; proctrack container to job
}

// container is what is known of one job. Its lock is held over all the work on
// the job, file system calls included: two steps of a job may arrive at once.
type container struct {
	users int // guarded by Tmpfs.mu

	mu     sync.Mutex
	ns     *os.File       // guarded by mu; nil before Create and after Delete
	spaces *spaces        // guarded by mu; beside ns
	lost   error          // guarded by mu; why a running job's namespace is missing
	pids   map[int]uint32 // guarded by mu; the job's own processes and their users, for messages
}

// forget closes what is beside ns. It is called with mu held.
func (c *container) forget() {
	if c.spaces != nil {
		c.spaces.close()
		if c.spaces.keeper != nil {
			c.spaces.keeper.close()
		}
	}
	c.ns, c.spaces, c.pids = nil, nil, nil
}

// NewTmpfs checks the configuration and returns the plugin. It touches no
// file; Restore does, and must come before anything else.
func NewTmpfs(cfg Config) (*Tmpfs, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	t := &Tmpfs{
		hook:    func(string) error { return nil },
		killMax: killMax,
		cfg:     cfg,
		jobs:    make(map[uint32]*container),
		conts:   make(map[uint64]uint32),
	}
	t.pins = &pinRoot{path: cfg.RunDir, last: t.dropTag}
	return t, nil
}

// tag opens BASE/TAG, and makes it where it is missing.
func (t *Tmpfs) tag() (*os.File, error) {
	t.claim.Lock()
	defer t.claim.Unlock()
	return makeTag(&t.cfg)
}

// dropTag leaves BasePath as it was found when no job is left.
func (t *Tmpfs) dropTag() error {
	return dropTag(t.cfg.BasePath, t.cfg.NodeTag, t.cfg.NodeName)
}

// lock returns the job's container, locked.
func (t *Tmpfs) lock(job uint32) *container {
	t.mu.Lock()
	c := t.jobs[job]
	if c == nil {
		c = new(container)
		t.jobs[job] = c
	}
	c.users++
	t.mu.Unlock()
	c.mu.Lock()
	return c
}

// unlock gives the container back, and forgets it when nothing is left to know.
func (t *Tmpfs) unlock(job uint32, c *container) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.users--; c.users == 0 && c.ns == nil && c.lost == nil {
		delete(t.jobs, job)
		for cont, j := range t.conts {
			if j == job {
				delete(t.conts, cont)
			}
		}
	}
	c.mu.Unlock()
}

// Create makes the job's container: the private directories, owned by user and
// closed to all others, and the pinned namespace in which they cover the
// node's. A job that has one keeps it, so Create may be called for every step.
// What an earlier attempt left is removed first; after an error nothing is
// left, or the error says what.
func (t *Tmpfs) Create(ctx context.Context, job uint32, user step.User) error {
	if job == 0 {
		return errors.New("internal error: job 0 has no container")
	}
	c := t.lock(job)
	defer t.unlock(job, c)
	if c.ns != nil {
		return nil
	}
	if c.lost != nil {
		// A new one would take the files from under the steps that run.
		return fmt.Errorf("%w; its steps go on, but none can be added", c.lost)
	}
	pins, err := t.pins.acquire()
	if err != nil {
		return fmt.Errorf("cannot create the container of job %d: %w", job, err)
	}
	tag, err := t.tag()
	if err != nil {
		return printable.JoinErrors(err, t.pins.release())
	}
	defer tag.Close()
	ns, s, err := t.create(ctx, pins, tag, job, user)
	if err != nil {
		// The undo must run although the caller has given up.
		undo := context.WithoutCancel(ctx)
		return printable.JoinErrors(err, t.clear(undo, pins, job), t.pins.release())
	}
	c.ns, c.spaces = ns, s // and the pin root stays acquired until Delete
	return nil
}

func (t *Tmpfs) create(ctx context.Context, pins, tag *os.File, job uint32, user step.User) (_ *os.File, _ *spaces, err error) {
	// Of an earlier container the job needs nothing: its epilog fails for the log alone.
	if err := t.epilog(ctx, pins, job); err != nil && t.cfg.Warn != nil {
		t.cfg.Warn(err)
	}
	if err := t.clearAll(ctx, pins, job); err != nil {
		return nil, nil, err
	}
	if err := t.hook("mounted"); err != nil {
		return nil, nil, err
	}
	pinDir, err := recordJob(pins, job, t.cfg.BasePath, user.UID)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create the container of job %d: %w", job, err)
	}
	defer pinDir.Close()
	if err := t.hook("recorded"); err != nil {
		return nil, nil, err
	}
	jobDir, err := t.makeJobDir(tag, job)
	if err != nil {
		return nil, nil, err
	}
	defer jobDir.Close()
	p := &plan{job: job, uid: strconv.FormatUint(uint64(user.UID), 10), cfg: &t.cfg, jobDir: jobDir.Name(), nsPath: path.Join(pinDir.Name(), pinName), pins: t.cfg.RunDir, scriptInside: true, hook: t.hook}
	defer p.close()
	if err := p.makePrivate(jobDir, user); err != nil {
		return nil, nil, err
	}
	if err := t.hook("private"); err != nil {
		return nil, nil, err
	}
	s, err := t.makeSpaces(pinDir, job)
	if err != nil {
		return nil, nil, err
	}
	ns, err := t.settle(ctx, p, s, pinDir)
	if err != nil {
		s.drop()
		return nil, nil, err
	}
	return ns, s, nil
}

// settle makes the mount namespace beside the others, pins it, and lets all of them
// stay.
func (t *Tmpfs) settle(ctx context.Context, p *plan, s *spaces, pinDir *os.File) (*os.File, error) {
	if s.keeper != nil {
		p.proc = s.keeper.proc
	}
	ns, err := p.build(ctx)
	if err != nil {
		return nil, err
	}
	err = pin(pinDir, pinName, ns)
	if err == nil {
		err = t.hook("pinned")
	}
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("cannot pin the mount namespace of job %d: %w", p.job, err)
	}
	err = p.cloneScript(ctx)
	if err == nil {
		err = s.commit()
	}
	if err == nil {
		err = t.hook("committed")
	}
	if err != nil {
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// recordJob makes RUN/jobs/N and writes the BasePath there before anything is
// made below it, so that a later noded with another configuration finds it; and whose
// job it is, for CloneNSEpilog.
func recordJob(pins *os.File, job uint32, base string, uid uint32) (*os.File, error) {
	dir, err := makeDir(pins, jobName(job), 0o700)
	if err != nil {
		return nil, err
	}
	err = writeSmall(dir, baseName, base)
	if err == nil {
		err = writeSmall(dir, uidName, strconv.FormatUint(uint64(uid), 10))
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// makeJobDir makes BASE/TAG/N, which root alone may enter.
func (t *Tmpfs) makeJobDir(tag *os.File, job uint32) (*os.File, error) {
	if err := mkdirAt(tag, jobName(job), 0o700); err != nil {
		return nil, baseError(&t.cfg, err)
	}
	if err := t.hook("jobdir"); err != nil {
		return nil, err
	}
	dir, err := openDir(tag, jobName(job))
	if err != nil {
		return nil, baseError(&t.cfg, err)
	}
	return dir, nil
}

// Join returns the namespaces of a job, for setns(2) in processes with one thread;
// the zero value for a job without a container. The files are the caller's. An error
// says why the job takes no more processes.
func (t *Tmpfs) Join(job uint32) (ns launch.Namespaces, err error) {
	c := t.lock(job)
	defer t.unlock(job, c)
	if c.ns == nil {
		return ns, nil
	}
	own := []*os.File{c.ns, nil, nil}
	ns.EntireStep = t.cfg.EntireStepInNS
	if c.spaces != nil {
		if err := c.spaces.usable(); err != nil {
			return ns, fmt.Errorf("cannot join the container of job %d: %w", job, err)
		}
		own[1], own[2] = c.spaces.pid, c.spaces.user
	}
	for i, to := range []**os.File{&ns.Mount, &ns.PID, &ns.User} {
		if own[i] == nil {
			continue
		}
		fd, err := unix.FcntlInt(own[i].Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			ns.Close()
			return launch.Namespaces{}, fmt.Errorf("cannot join the container of job %d: %w", job, err)
		}
		*to = os.NewFile(uintptr(fd), own[i].Name())
	}
	return ns, nil
}

// Restore finds the containers of an earlier noded: containers of running
// jobs are opened again, all others deleted. It also tries the configuration: what would
// fail every job, one after the other, is a *launch.FaultError in its error. It goes on after
// an error and returns all of them; a running job that it could not restore
// can start no more steps, but its processes are not touched.
func (t *Tmpfs) Restore(ctx context.Context, running []uint32) error {
	pins, err := t.pins.acquire()
	if err != nil {
		return &launch.FaultError{Err: fmt.Errorf("cannot make job containers: %w", err)}
	}
	errs := []error{t.checkScripts()}
	found, err := jobNames(pins)
	errs = append(errs, err)
	tag, err := t.tag()
	errs = append(errs, err)
	if err == nil {
		more, err := jobNames(tag)
		errs = append(errs, err, tag.Close())
		found = append(found, more...)
	}
	slices.Sort(found)
	for _, job := range slices.Compact(found) {
		if !slices.Contains(running, job) {
			errs = append(errs, t.Delete(ctx, job))
		}
	}
	for _, job := range running {
		errs = append(errs, t.adopt(pins, job))
	}
	return printable.JoinErrors(append(errs, t.pins.release())...)
}

// Try returns why no container can be made: it does what Create does first, writes a file in
// BASE/TAG, and leaves nothing.
func (t *Tmpfs) Try() error {
	if err := t.checkScripts(); err != nil {
		return err
	}
	if _, err := t.pins.acquire(); err != nil {
		return fmt.Errorf("cannot make job containers: %w", err)
	}
	tag, err := t.tag()
	if err == nil {
		err = printable.JoinErrors(writeSmall(tag, tryName, ""), removeAt(tag, tryName, 0), tag.Close())
	}
	return printable.JoinErrors(err, t.pins.release())
}

// Fini closes all that is open, when nothing goes on any more. The containers stay, and
// Restore finds them.
func (t *Tmpfs) Fini() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, c := range t.jobs {
		if c.ns != nil {
			errs = append(errs, c.ns.Close())
			c.forget()
		}
	}
	clear(t.jobs)
	return errors.Join(append(errs, t.pins.leave())...)
}

// adopt opens the pinned namespace of a running job.
func (t *Tmpfs) adopt(pins *os.File, job uint32) error {
	c := t.lock(job)
	defer t.unlock(job, c)
	if c.ns != nil {
		return nil
	}
	ns, s, err := openJobPins(pins, job)
	if err != nil {
		c.lost = fmt.Errorf("cannot restore the container of running job %d: %w", job, err)
		return c.lost
	}
	c.ns, c.spaces, c.lost = ns, s, nil
	// One use for as long as the job has its container; it cannot fail, since
	// the root is mounted.
	_, err = t.pins.acquire()
	return err
}

func openJobPins(pins *os.File, job uint32) (*os.File, *spaces, error) {
	dir, err := openDir(pins, jobName(job))
	if err == nil {
		defer dir.Close()
		var ns *os.File
		if ns, err = openPin(dir, pinName, unix.CLONE_NEWNS); err == nil {
			s, err := openSpaces(dir)
			if err != nil {
				ns.Close()
			}
			return ns, s, err
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("no mount namespace is pinned at %q", path.Join(pins.Name(), jobName(job), pinName))
	}
	return nil, nil, err
}

// AddCont notes that a step's proctrack container belongs to the job. A
// container belongs to one job: a second one is an error.
func (t *Tmpfs) AddCont(job uint32, cont uint64) error {
	c := t.lock(job)
	defer t.unlock(job, c)
	if c.ns == nil {
		return fmt.Errorf("cannot add container %d to job %d: the job has no job container", cont, job)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if other, ok := t.conts[cont]; ok && other != job {
		return fmt.Errorf("cannot add container %d to job %d: it belongs to job %d", cont, job, other)
	}
	t.conts[cont] = job
	return nil
}

// AddPID notes that a process of user uid is of the job: its stepd, one that was adopted. No
// process can be put into a mount namespace by another one, so nothing is
// moved; a Delete that fails names the processes that are inside.
func (t *Tmpfs) AddPID(job uint32, pid int, uid uint32) error {
	c := t.lock(job)
	defer t.unlock(job, c)
	if c.ns == nil {
		return fmt.Errorf("cannot add process %d to job %d: the job has no job container", pid, job)
	}
	if _, err := c.holds(pid); err != nil {
		return fmt.Errorf("cannot add process %d to job %d: %w", pid, job, err)
	}
	if c.pids == nil {
		c.pids = make(map[int]uint32)
	}
	c.pids[pid] = uid
	return nil
}

// holds reports whether the process is in the job's namespace. It fails for a
// process that is gone.
func (c *container) holds(pid int) (bool, error) {
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return false, err
	}
	ours, err := c.ns.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(theirs, ours), nil
}

// survivors names the known processes that still are in the namespace, which
// explains a directory that fills while it is emptied.
func (c *container) survivors(job uint32) error {
	var left []string
	for pid, uid := range c.pids {
		if in, err := c.holds(pid); err == nil && in {
			left = append(left, fmt.Sprintf("%d of uid %d", pid, uid))
		}
	}
	slices.Sort(left)
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("processes of job %d are still there: %s", job, strings.Join(left, ", "))
}

// None is job_container/none: jobs share the node's directories. The zero
// value is ready; every method succeeds and does nothing.
type None struct{}

// Create does nothing.
func (None) Create(context.Context, uint32, step.User) error { return nil }

// Join reports that there is nothing to join.
func (None) Join(uint32) (launch.Namespaces, error) { return launch.Namespaces{}, nil }

// AddCont does nothing.
func (None) AddCont(uint32, uint64) error { return nil }

// AddPID does nothing.
func (None) AddPID(uint32, int, uint32) error { return nil }

// Delete does nothing.
func (None) Delete(context.Context, uint32) error { return nil }

// Restore does nothing.
func (None) Restore(context.Context, []uint32) error { return nil }

// Try does nothing.
func (None) Try() error { return nil }

// Fini does nothing.
func (None) Fini() error { return nil }
