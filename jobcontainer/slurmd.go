package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/printable"
	"stepd/internal/rmtree"
	"stepd/step"
)

// Slurmd is job_container/tmpfs as Slurm's own daemons have it: of jobs whose steps slurmd
// starts. A job's extern step makes the container and removes it, and its other steps find it
// by its place, which is the original's (measured: 22.05, 24.11, 26.05):
//
//	BASE/NODE/N           bind mount on itself, private; only root enters it
//	BASE/NODE/N/.ns       job N's mount namespace, pinned
//	BASE/NODE/N/.N        the job's /tmp in 22.05, and later
//	BASE/NODE/N/.N/_tmp   a private directory for each of Dirs
//
// It keeps nothing in memory. Its methods may be called by several processes, but for one job
// one after the other.
type Slurmd struct {
	cfg  Config
	flat bool
}

// nsName is where Slurm pins a job's mount namespace.
const nsName = ".ns"

// NewSlurmd checks the configuration, of which RunDir, NodeTag and the keys of
// job_container/linux do not count. flat is of 22.05: the one private directory is /tmp's. It
// touches no file.
func NewSlurmd(cfg Config, flat bool) (*Slurmd, error) {
	cfg.PIDNamespace, cfg.UserNamespace = false, false
	cfg, err := cfg.completeFile()
	return &Slurmd{cfg: cfg, flat: flat}, err
}

// Dir is the folder of the node, BASE/NODE: what Remove has to know.
func (s *Slurmd) Dir() string { return path.Join(s.cfg.BasePath, s.cfg.NodeName) }

// Create makes the job's container, of which whatever there is is removed first. workDir is for
// InitScript, which runs in the namespaces of the caller, before the job's directories are
// made. After an error nothing is left, or the error says what. The caller needs several
// threads (see onDisposableThread).
func (s *Slurmd) Create(ctx context.Context, job uint32, user step.User, workDir string) (err error) {
	if err := Remove(ctx, s.Dir(), job); err != nil {
		return err
	}
	node, err := s.openNode()
	if err != nil {
		return err
	}
	defer node.Close()
	defer func() {
		if err != nil { // although the caller has given up
			err = printable.JoinErrors(err, Remove(context.WithoutCancel(ctx), s.Dir(), job))
		}
	}()
	dir, err := makeDir(node, jobName(job), 0o700)
	if err != nil {
		return baseError(&s.cfg, err)
	}
	if dir, err = mountOnItself(dir); err != nil {
		return baseError(&s.cfg, err)
	}
	defer dir.Close()
	p := s.plan(job, user, workDir)
	defer p.close()
	if err := p.runInitScript(ctx); err != nil {
		return err
	}
	if err := s.makePrivate(p, dir, user); err != nil {
		return err
	}
	ns, err := p.build(ctx)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := pin(dir, nsName, ns); err != nil {
		return fmt.Errorf("cannot pin the mount namespace of job %d: %w", job, err)
	}
	return p.cloneScript(ctx)
}

// openNode opens BASE/NODE, and makes it where it is missing. BASE may be one in which users
// write, if the sticky bit keeps them from what is root's.
func (s *Slurmd) openNode() (*os.File, error) {
	m := failMissing
	if s.cfg.AutoBasePath {
		m = makeMissing
	}
	base, err := openTrusted(s.cfg.BasePath, m)
	if err != nil {
		return nil, baseError(&s.cfg, err)
	}
	defer base.Close()
	if err := checkKept(base); err != nil {
		return nil, baseError(&s.cfg, err)
	}
	node, err := ownDir(makeDir(base, s.cfg.NodeName, 0o755))
	if err != nil {
		return nil, baseError(&s.cfg, err)
	}
	return node, nil
}

func (s *Slurmd) plan(job uint32, user step.User, workDir string) *plan {
	dir := path.Join(s.Dir(), jobName(job))
	return &plan{
		job: job, uid: strconv.FormatUint(uint64(user.UID), 10), cfg: &s.cfg,
		jobDir: path.Join(dir, "."+jobName(job)), nsPath: path.Join(dir, nsName), pins: dir, hook: func(string) error { return nil },
		env: []string{fmt.Sprintf("SLURM_JOB_GID=%d", user.GID), "SLURM_JOB_USER=" + user.Name, "SLURM_JOB_WORK_DIR=" + workDir},
	}
}

// makePrivate makes the private directories. InitScript may have made .N, or mounted something
// there: dir is root's alone.
func (s *Slurmd) makePrivate(p *plan, dir *os.File, user step.User) error {
	name := path.Base(p.jobDir)
	if err := mkdirAt(dir, name, 0o700); err != nil {
		return baseError(&s.cfg, err)
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return baseError(&s.cfg, &fs.PathError{Op: "open", Path: p.jobDir, Err: err})
	}
	top := os.NewFile(uintptr(fd), p.jobDir)
	defer top.Close()
	user.GID = 0 // as the original's
	if err := unix.Fchown(fd, int(user.UID), int(user.GID)); err != nil {
		return baseError(&s.cfg, &fs.PathError{Op: "chown", Path: p.jobDir, Err: err})
	}
	for _, target := range s.cfg.Dirs {
		var tree *os.File
		switch {
		case target == devShm:
			tree, err = linux.NewTmpfs("job", 0, [2]string{"mode", "1777"})
		case s.flat:
			tree, err = cloneMount(top, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
		default:
			tree, err = makePrivateDir(top, strings.ReplaceAll(target, "/", "_"), user)
		}
		if err != nil {
			return fmt.Errorf("cannot make the private %q of job %d: %w", target, p.job, err)
		}
		p.private = append(p.private, private{tree, target})
	}
	return nil
}

// Open returns the job's mount namespace; the error wraps fs.ErrNotExist where it has none. The
// file is the caller's.
func (s *Slurmd) Open(job uint32) (*os.File, error) {
	dir, err := openTrusted(path.Join(s.Dir(), jobName(job)), failMissing)
	if err == nil {
		defer dir.Close()
		var ns *os.File
		if ns, err = openPin(dir, nsName, unix.CLONE_NEWNS); err == nil {
			return ns, nil
		}
	}
	return nil, fmt.Errorf("cannot join the container of job %d: %w (it is made by the job's extern step: PrologFlags=Contain in slurm.conf)", job, err)
}

// EntireStep reports whether a step's SPANK host joins the container, and not the tasks alone.
func (s *Slurmd) EntireStep() bool { return s.cfg.EntireStepInNS }

// Delete removes the job's container, if it has one; before, CloneNSEpilog runs.
func (s *Slurmd) Delete(ctx context.Context, job uint32, user step.User, workDir string) error {
	var late error
	if s.cfg.CloneNSEpilog != "" {
		if ns, err := s.Open(job); err == nil {
			ns.Close()
			late = s.plan(job, user, workDir).run(ctx, script{key: "CloneNSEpilog", path: s.cfg.CloneNSEpilog, timeout: s.cfg.CloneNSEpilogWait, doing: "clean up after", ns: true})
		}
	}
	return printable.JoinErrors(late, Remove(ctx, s.Dir(), job))
}

// Remove removes what there is of a job in a Slurmd's Dir: its mounts, and its directories with
// all that is in them. Processes that still are in the namespace keep it, emptied.
func Remove(ctx context.Context, nodeDir string, job uint32) error {
	if job == 0 {
		return errors.New("internal error: job 0 has no container")
	}
	node, err := openTrusted(nodeDir, failMissing)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		defer node.Close()
		if err = checkOwn(node); err == nil {
			if err = linux.UnmountAt(node, jobName(job)); err == nil { // with the namespace's pin
				err = rmtree.Remove(ctx, node, jobName(job))
			}
		}
	}
	if err != nil {
		return fmt.Errorf("cannot remove the container of job %d: %w", job, err)
	}
	return nil
}
