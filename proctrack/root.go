package proctrack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// Root is the cgroup below which one noded keeps its steps, and the cgroups
// of the same name in the v1 hierarchies. The name carries a hash of the spool's path,
// so several nodeds never touch each other's. Root holds no descriptor; its
// methods may be called from several goroutines.
type Root struct {
	dir      string
	from     string
	jobTasks string
	v1       map[string]string // by controller
	// hierarchies are the values of v1, each once: controllers may share one.
	hierarchies []string
}

// RootConfig says where a Root lies. All directories are absolute.
type RootConfig struct {
	// Parent is the cgroup in which the root is made, on v2 or in v1's freezer hierarchy: any
	// one that the caller may write to. noded takes detect.Answer.Parent.
	Parent string
	// Freezer says that Parent is in v1's freezer hierarchy.
	Freezer bool
	// EnableFrom is a v2 cgroup above Parent from which on downwards controllers
	// are enabled; "" is Parent.
	EnableFrom string
	// V1 are the same in the v1 hierarchies, by controller; nil without any.
	V1 map[string]string
	// Spool is the noded's spool.
	Spool string
}

// RootName is the name of the root cgroup of the noded with this spool: the
// same before and after a restart. spool must be absolute.
func RootName(spool string) (string, error) {
	if !filepath.IsAbs(spool) {
		return "", fmt.Errorf("cannot name the cgroup root: spool %q is not absolute", spool)
	}
	sum := sha256.Sum256([]byte(filepath.Clean(spool)))
	return fmt.Sprintf("stepd-%x", sum[:4]), nil
}

// NewRoot returns the root of a noded. Nothing is touched before Ensure.
func NewRoot(cfg RootConfig) (*Root, error) {
	name, err := RootName(cfg.Spool)
	if err != nil {
		return nil, err
	}
	r := &Root{jobTasks: jobTasks, from: filepath.Clean(cfg.EnableFrom)}
	if cfg.Freezer {
		r.jobTasks = jobTasksV1
	}
	return r.at(cfg.Parent, cfg.V1, func(parent string) (string, error) {
		if !filepath.IsAbs(parent) {
			return "", fmt.Errorf("cannot place the cgroup root: %q is not absolute", parent)
		}
		return filepath.Join(parent, name), nil
	})
}

// at sets the root's directories: what root makes of dir, and of v1 by controller.
func (r *Root) at(dir string, v1 map[string]string, root func(string) (string, error)) (_ *Root, err error) {
	if r.dir, err = root(dir); err != nil {
		return nil, err
	}
	r.v1 = make(map[string]string)
	for controller, dir := range v1 {
		if r.v1[controller], err = root(dir); err != nil {
			return nil, err
		}
	}
	r.hierarchies = slices.Compact(slices.Sorted(maps.Values(r.v1)))
	return r, nil
}

// RootOf returns the root that a step's cgroups lie in, as MakeStep gave them. A
// noded that was started again elsewhere has a root of its own, and finds by
// this the steps that the former one started. A former version gave no Tasks.
func RootOf(id step.ID, place StepCgroups) (*Root, error) {
	r := &Root{jobTasks: jobTasks}
	if filepath.Base(filepath.Dir(place.Tasks)) == jobTasksV1 {
		r.jobTasks = jobTasksV1
	}
	suffix := filepath.Join("/", jobName(id.Job), stepName(id.Step))
	return r.at(place.Dir, place.V1, func(dir string) (string, error) {
		root, ok := strings.CutSuffix(filepath.Clean(dir), suffix)
		if !ok || !filepath.IsAbs(root) || !strings.HasPrefix(filepath.Base(root), "stepd-") {
			return "", fmt.Errorf("cannot find the cgroup root of step %s: %q is not one of its cgroups", id, dir)
		}
		return root, nil
	})
}

// Holds reports whether the step's cgroups, as MakeStep gave them, are this root's.
func (r *Root) Holds(id step.ID, place StepCgroups) bool {
	if place.Dir != r.StepDir(id) || (place.Tasks != "" && place.Tasks != r.TasksDir(id)) {
		return false
	}
	for controller, dir := range place.V1 {
		if root, ok := r.v1[controller]; !ok || dir != filepath.Join(root, jobName(id.Job), stepName(id.Step)) {
			return false
		}
	}
	return true
}

// Dir is the root's absolute path.
func (r *Root) Dir() string { return r.dir }

// V1 lists the v1 controllers for which MakeJob and MakeStep can make cgroups.
func (r *Root) V1() []string { return slices.Sorted(maps.Keys(r.v1)) }

// V1Dir is the root's path in the hierarchy of a v1 controller, "" where there is
// none.
func (r *Root) V1Dir(controller string) string { return r.v1[controller] }

// V1JobDir and V1StepDir are the paths of the cgroups of a job and of a step
// there, whether they exist or not.
func (r *Root) V1JobDir(controller string, job uint32) string {
	return r.v1Dir(controller, jobName(job))
}

func (r *Root) V1StepDir(controller string, id step.ID) string {
	return r.v1Dir(controller, jobName(id.Job), stepName(id.Step))
}

func (r *Root) v1Dir(controller string, names ...string) string {
	if r.v1[controller] == "" {
		return ""
	}
	return filepath.Join(append([]string{r.v1[controller]}, names...)...)
}

// StepDir is the path of the cgroup of the step's daemons, whether it exists or
// not; TasksDir the tasks' cgroup, JobTasksDir the cgroup of all tasks of the job.
func (r *Root) StepDir(id step.ID) string {
	return filepath.Join(r.dir, jobName(id.Job), stepName(id.Step))
}

// TasksDir is the path of the cgroup of the step's tasks.
func (r *Root) TasksDir(id step.ID) string {
	return filepath.Join(r.JobTasksDir(id.Job), stepName(id.Step))
}

// JobTasksDir is the path of the cgroup of all tasks of the job.
func (r *Root) JobTasksDir(job uint32) string { return filepath.Join(r.dir, jobName(job), r.jobTasks) }

// The cgroup of all tasks of a job: what limits the job. Each cgroup of v1 has a
// file by the name that it has on v2.
const (
	jobTasks   = "tasks"
	jobTasksV1 = "all_tasks"
)

func (g *group) jobTasks() string {
	if g.v1 {
		return jobTasksV1
	}
	return jobTasks
}

func jobName(job uint32) string   { return "job_" + strconv.FormatUint(uint64(job), 10) }
func stepName(step uint32) string { return "step_" + strconv.FormatUint(uint64(step), 10) }

// Ensure makes the root unless it exists: a former noded's steps may be in it.
// On v2 the controllers of the parent are enabled down to it as far as the
// kernel lets us; missing says of which this is not so, and why. Those that the
// kernel or the parent has not got are not among them.
func (r *Root) Ensure() (missing map[string]string, err error) {
	missing = make(map[string]string)
	for _, dir := range r.enabledFrom() {
		err := in(dir, func(g *group) error {
			there, err := controllers{g}.delegate()
			maps.Copy(missing, there)
			if err == nil && dir == filepath.Dir(r.dir) {
				err = g.ensureRoot(filepath.Base(r.dir))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// enabledFrom lists the groups that enable controllers, the highest first; the
// root is the last.
func (r *Root) enabledFrom() []string {
	dirs := []string{r.dir, filepath.Dir(r.dir)}
	for at := dirs[1]; strings.HasPrefix(at, r.from+"/"); {
		at = filepath.Dir(at)
		dirs = append(dirs, at)
	}
	slices.Reverse(dirs)
	return dirs
}

// ensureRoot makes the root unless it exists, and keeps it from being opened by users.
func (g *group) ensureRoot(name string) error {
	if err := g.mkdirAs(name, modePrivate); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	err := unix.Fstatat(g.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&0o777 != modePrivate { // a former version's, or the umask
		err = unix.Fchmodat(g.fd, name, modePrivate, 0)
	}
	if err != nil {
		return fmt.Errorf("cannot make cgroup %q private: %w", filepath.Join(g.path, name), err)
	}
	return nil
}

func ensureIn(g *group, name string) error {
	child, err := g.ensure(name)
	if err == nil {
		child.close()
	}
	return err
}

// Controllers lists the v2 controllers that limit what is below the root.
func (r *Root) Controllers() (names []string, err error) {
	err = in(r.dir, func(root *group) (err error) { names, err = controllers{root}.delegated(); return err })
	return names, err
}

// ensure makes a child unless it exists, and opens it.
func (g *group) ensure(name string) (*group, error) {
	if err := g.mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return g.child(name)
}

// StepCgroups are the cgroups of a step.
type StepCgroups struct {
	// Dir is the cgroup of the daemons, for step.Proctrack.Dir.
	Dir string
	// Tasks is the tasks' cgroup, for step.Proctrack.Tasks: on v2 it has all
	// limits.
	Tasks string
	// V1 are the step's cgroups in the v1 hierarchies, by controller, for
	// step.Confinement.V1.
	V1 map[string]string
}

// Steps lists the steps that have a cgroup in any hierarchy, running or left by
// a crash. Names that are none of ours are passed over.
func (r *Root) Steps() ([]step.ID, error) {
	ids, _, err := r.Scan()
	return ids, err
}

// Scan is Steps, and the jobs that have a cgroup, whether a step is in it or not.
func (r *Root) Scan() (ids []step.ID, jobs []uint32, err error) {
	found := &census{steps: make(map[step.ID]bool), jobs: make(map[uint32]bool)}
	for _, root := range append([]string{r.dir}, r.hierarchies...) {
		if err := found.root(root); err != nil {
			return nil, nil, err
		}
	}
	return found.ids, found.numbers, nil
}

// census is what a scan has found.
type census struct {
	ids     []step.ID
	numbers []uint32
	steps   map[step.ID]bool
	jobs    map[uint32]bool
}

func (c *census) root(dir string) error {
	return within(dir, func(root *group) error {
		return root.numbered("job_", func(job uint32, name string) error {
			if !c.jobs[job] {
				c.jobs[job] = true
				c.numbers = append(c.numbers, job)
			}
			for _, place := range []string{name, filepath.Join(name, root.jobTasks())} {
				if err := c.place(root, place, job); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// place looks for steps in a job's cgroup, or in its tasks' cgroup.
func (c *census) place(root *group, path string, job uint32) error {
	g, err := root.child(path)
	if err != nil {
		return unlessGone(err)
	}
	defer g.close()
	return g.numbered("step_", func(number uint32, _ string) error {
		if id := (step.ID{Job: job, Step: number}); !c.steps[id] {
			c.steps[id] = true
			c.ids = append(c.ids, id)
		}
		return nil
	})
}

// numbered calls do for the children whose names are prefix and a number.
func (g *group) numbered(prefix string, do func(n uint32, name string) error) error {
	names, err := g.children()
	for _, name := range names {
		if n, ok := number(name, prefix); ok && err == nil {
			err = do(n, name)
		}
	}
	return err
}

// number reads names as jobName and stepName write them, and no others:
// "job_07" and "job_+7" are not ours.
func number(name, prefix string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, false
	}
	return uint32(n), true
}

// KillStep kills all of the step, its stepd and host included, waits for its
// end and removes its cgroups, in every hierarchy; a step without one is done. StepDir goes
// last, and stays where the kill fails: it stands for the step.
// Former versions had the tasks below the step's own cgroup, which is covered.
// The error is a *SurvivorsError when ctx ends first.
func (r *Root) KillStep(ctx context.Context, id step.ID) error {
	job, name := jobName(id.Job), stepName(id.Step)
	// Side by side: a process of one cgroup that does not end must not keep the
	// other's processes alive.
	var daemons, tasks error
	var both sync.WaitGroup
	both.Go(func() { daemons = within(r.StepDir(id), func(g *group) error { return g.killKeepingFrozen(ctx) }) })
	both.Go(func() { tasks = destroyIn(ctx, r.JobTasksDir(id.Job), name) })
	both.Wait()
	err := errors.Join(daemons, tasks)
	// What is left in there was moved out of the tracker's hierarchy.
	for _, root := range r.hierarchies {
		err = errors.Join(err, destroyIn(ctx, filepath.Join(root, job), name))
	}
	if err != nil {
		return err
	}
	return destroyIn(ctx, filepath.Join(r.dir, job), name)
}

func destroyIn(ctx context.Context, parent, name string) error {
	return within(parent, func(g *group) error { return g.destroyChild(ctx, name) })
}

// RemoveJob removes the job's cgroups, whose steps KillStep removed; it kills
// nothing: a step that is left makes it fail with EBUSY.
func (r *Root) RemoveJob(job uint32) error {
	name := jobName(job)
	errs := []error{removeIn(filepath.Join(r.dir, name), r.jobTasks)}
	for _, root := range append([]string{r.dir}, r.hierarchies...) {
		errs = append(errs, removeIn(root, name))
	}
	return errors.Join(errs...)
}

// removeIn removes an empty group.
func removeIn(parent, name string) error {
	return within(parent, func(g *group) error { return g.rmdir(name) })
}

// Remove removes the root, in every hierarchy, and the empty cgroups of jobs in
// it; it kills nothing: a step that is left makes it fail with EBUSY.
func (r *Root) Remove() error {
	ids, jobs, err := r.Scan()
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return fmt.Errorf("cannot remove cgroup %q: step %s and %d others are left: %w", r.dir, ids[0], len(ids)-1, unix.EBUSY)
	}
	for _, job := range jobs {
		if err := r.RemoveJob(job); err != nil {
			return err
		}
	}
	var errs []error
	for _, root := range append([]string{r.dir}, r.hierarchies...) {
		errs = append(errs, removeIn(filepath.Dir(root), filepath.Base(root)))
	}
	return errors.Join(errs...)
}
