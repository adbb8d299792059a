// Package place is what holds a node's steps on the machine: the tracker makes the cgroups in
// which steps run and kills what is left in them, the limits say what each of them may use,
// and the scope is systemd's unit around all of them.
//
// It decides where and how, not for whom: that is package node, whose interfaces Tracker and
// Limits it implements. Begin with NewTracker and NewLimits.
package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/sirupsen/logrus"

	"stepd/internal/linux"
	"stepd/node"
	"stepd/proctrack"
	"stepd/proctrack/detect"
	"stepd/slurmconf"
	"stepd/step"
)

var (
	_ node.Tracker = (*cgroupTracker)(nil)
	_ node.Tracker = (*plainTracker)(nil)
)

// Config is what the site and the command line say of tracking.
type Config struct {
	// ProctrackType is slurm.conf's key; "" chooses what the host has.
	ProctrackType string
	// Spool is the directory after which the cgroups are named. IsDefault says that it is
	// the one that a noded has by default.
	Spool     string
	IsDefault bool
	// Spankhost is the program that keeps the scope.
	Spankhost string
	Cgroup    slurmconf.Cgroup
}

// NewTracker finds out what the host can do, and logs each fallback. It makes nothing:
// Prepare does. An error says what the site wants and the host does not have.
func NewTracker(log *logrus.Logger, cfg Config) (node.Tracker, error) {
	answer, err := detect.Detect(detect.Wish{
		ProctrackType: cfg.ProctrackType, Plugin: cfg.Cgroup.CgroupPlugin,
		Mountpoint: cfg.Cgroup.CgroupMountpoint, IgnoreSystemd: cfg.Cgroup.IgnoreSystemd,
	})
	if err != nil {
		return nil, err
	}
	fell := &announcer{log: log}
	for _, f := range answer.Fallbacks {
		fell.back(f.What, f.Why)
	}
	if answer.Parent == "" {
		return &plainTracker{announcer: fell, kind: answer.Kind}, nil
	}
	t := &cgroupTracker{announcer: fell, kind: answer.Kind, roots: proctrack.RootConfig{
		Parent: answer.Parent, Freezer: answer.Kind == proctrack.KindCgroupV1, V1: answer.V1, Spool: cfg.Spool,
	}}
	if cfg.Cgroup.EnableControllers {
		t.roots.EnableFrom = answer.Mount // "" on v1
	}
	if t.root, err = proctrack.NewRoot(t.roots); err != nil {
		return nil, err
	}
	if answer.Scope {
		t.scope = &scope{
			name: filepath.Base(t.root.Dir()) + ".scope", slice: cfg.Cgroup.CgroupSlice, mount: answer.Mount,
			program: cfg.Spankhost, spool: cfg.Spool, patience: cfg.Cgroup.SystemdTimeout + scopePatience,
		}
		if cfg.IsDefault {
			t.scope.name = scopeName
		}
	}
	return t, nil
}

// announcer reports each fallback once, to the log and to the node document.
type announcer struct {
	log *logrus.Logger

	mu   sync.Mutex
	list []node.Fallback // guarded by mu
}

// back announces that what was asked for is not had.
func (a *announcer) back(what, why string) {
	f := node.Fallback{What: what, Why: why}
	a.mu.Lock()
	known := slices.Contains(a.list, f)
	if !known {
		a.list = append(a.list, f)
	}
	a.mu.Unlock()
	if !known {
		a.log.Warnf("fallback: no %s: %s", what, why)
	}
}

// Fallbacks are the tracker's, for the node document.
func (a *announcer) Fallbacks() []node.Fallback {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

// cgroupTracker is proctrack.Root as noded wants it.
type cgroupTracker struct {
	*announcer
	kind  string
	roots proctrack.RootConfig
	root  *proctrack.Root
	// scope is systemd's scope in which the root lies, nil without one.
	scope *scope
	// moved: stepds are moved into their leaves, since none can be born there.
	moved bool
	v2    []string // the controllers that limit
}

func (t *cgroupTracker) Kind() string { return t.kind }

// Prepare makes the root and finds out what can be done below it.
func (t *cgroupTracker) Prepare() error {
	if err := t.enterScope(); err != nil {
		return err
	}
	missing, err := t.root.Ensure()
	if err != nil {
		return err
	}
	for _, c := range slices.Sorted(maps.Keys(missing)) {
		t.back("cgroup controller "+c, missing[c])
	}
	if t.v2, err = t.root.Controllers(); err != nil {
		return err
	}
	ok, why, err := t.root.CanBeBornInside()
	if err != nil {
		return err
	}
	t.moved = !ok
	if !ok && t.kind != proctrack.KindCgroupV1 { // there it is never had
		t.back("stepd that is born in its cgroup (it is moved there)", why)
	}
	return nil
}

// enterScope places the root in the scope, or leaves it where it is.
func (t *cgroupTracker) enterScope() error {
	if t.scope == nil {
		return nil
	}
	dir, err := t.scope.ensure(context.Background())
	if err != nil {
		t.back("scope of systemd for the steps", err.Error())
		_, counted := MemoryAbove(t) // in what jobs are given
		t.scope = nil
		if limit, file := MemoryAbove(t); file != counted && file != "" {
			t.back("memory limit of the scope", fmt.Sprintf("%s allows noded and all steps together %d MB", file, limit>>20))
		}
		return nil
	}
	t.roots.Parent = dir
	t.root, err = proctrack.NewRoot(t.roots)
	return err
}

// again does something with the root, and once more where the scope has gone
// with it: that an administrator has stopped, or whose keeper has died.
func (t *cgroupTracker) again(do func() error) error {
	err := do()
	if t.scope == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t.log.Warnf("making %s again: %v", t.scope.name, err)
	dir, err := t.scope.ensure(context.Background())
	if err != nil {
		return err
	}
	if dir != t.roots.Parent {
		return fmt.Errorf("cannot go on with %s: its cgroup is %q and was %q", t.scope.name, dir, t.roots.Parent)
	}
	if _, err := t.root.Ensure(); err != nil {
		return err
	}
	return do()
}

// AddStepd moves a stepd into its leaf.
func (t *cgroupTracker) AddStepd(id step.ID, pid int) error { return t.root.AddStepd(id, pid) }

func (t *cgroupTracker) MakeJob(job uint32, v1 []string) error {
	return t.again(func() error { return t.root.MakeJob(job, v1) })
}

func (t *cgroupTracker) MakeStep(id step.ID, v1 []string) (place node.StepPlace, err error) {
	err = t.again(func() error {
		made, err := t.root.MakeStep(id, v1)
		place = node.StepPlace{Dir: made.Dir, Tasks: made.Tasks, V1: made.V1}
		return err
	})
	if err == nil && !t.moved {
		place.Leaf, err = t.root.OpenStepLeaf(id)
	}
	return place, err
}

// MakeScripts uses a step's place without a stepd: its leaf is the scripts'.
func (t *cgroupTracker) MakeScripts(id step.ID) (*os.File, error) {
	err := t.again(func() error { return t.root.MakeScripts(id) })
	if err != nil || t.moved {
		return nil, err
	}
	return t.root.OpenStepLeaf(id)
}

func (t *cgroupTracker) Adopt(rec *step.Record, pid int) error {
	return proctrack.Adopt(proctrack.StepCgroups{Dir: rec.Cgroup, Tasks: rec.CgroupTasks, V1: rec.CgroupV1}, pid)
}

func (t *cgroupTracker) Left(id step.ID) ([]string, error) {
	left, err := t.root.Processes(id)
	if err != nil {
		return nil, err
	}
	var words []string
	for _, p := range left {
		words = append(words, fmt.Sprintf("pid %d %q", p.PID, p.Comm))
	}
	return words, nil
}

func (t *cgroupTracker) EndStep(ctx context.Context, rec *step.Record) error {
	place := proctrack.StepCgroups{Dir: rec.Cgroup, Tasks: rec.CgroupTasks, V1: rec.CgroupV1}
	if err := t.root.KillStep(ctx, rec.ID); err != nil || place.Dir == "" || t.root.Holds(rec.ID, place) {
		return err
	}
	// An earlier noded, started elsewhere, had another root.
	root, err := proctrack.RootOf(rec.ID, place)
	if err != nil {
		return err
	}
	if err := root.KillStep(ctx, rec.ID); err != nil {
		return err
	}
	return root.RemoveJob(rec.ID.Job)
}

func (t *cgroupTracker) EndJob(job uint32) error   { return t.root.RemoveJob(job) }
func (t *cgroupTracker) Steps() ([]step.ID, error) { return t.root.Steps() }

func (t *cgroupTracker) Remove() error {
	err := t.root.Remove()
	if err == nil && t.scope != nil {
		t.scope.close()
	}
	return err
}

// plainTracker stands for the trackers without cgroups: a step has no place,
// and what is left of a dead stepd is found by its session.
type plainTracker struct {
	*announcer
	kind string
}

func (t *plainTracker) Kind() string   { return t.kind }
func (t *plainTracker) Prepare() error { return nil }

func (t *plainTracker) MakeJob(uint32, []string) error { return nil }

func (t *plainTracker) MakeStep(step.ID, []string) (node.StepPlace, error) {
	return node.StepPlace{}, nil
}

func (t *plainTracker) Adopt(*step.Record, int) error {
	return fmt.Errorf("steps of proctrack/%s have no cgroups (ProctrackType=proctrack/cgroup has): %w", t.kind, errors.ErrUnsupported)
}

func (t *plainTracker) AddStepd(step.ID, int) error { return nil }

func (t *plainTracker) MakeScripts(step.ID) (*os.File, error) { return nil, nil }
func (t *plainTracker) Left(step.ID) ([]string, error)        { return nil, nil }

func (t *plainTracker) EndStep(ctx context.Context, rec *step.Record) error {
	if rec.StepdPID == 0 {
		return nil // no stepd was ever started
	}
	boot, err := linux.BootID()
	if err != nil {
		return err
	}
	if !linux.SameBoot(rec.BootID, boot) {
		return nil // its processes ended with that boot
	}
	var known []proctrack.Process
	for _, s := range rec.Survivors {
		known = append(known, proctrack.Process{PID: s.PID, Start: s.Start})
	}
	err = proctrack.KillSession(ctx, proctrack.Process{PID: rec.StepdPID, Start: rec.StepdStart}, known)
	if err != nil {
		return fmt.Errorf("step %s: %w", rec.ID, err)
	}
	return nil
}

func (t *plainTracker) EndJob(uint32) error       { return nil }
func (t *plainTracker) Steps() ([]step.ID, error) { return nil, nil }
func (t *plainTracker) Remove() error             { return nil }

// scope is the one unit of systemd that all steps of this noded lie in, by
// plain mkdir: systemd leaves a delegated cgroup alone, a daemon-reload
// included, and it has nothing to do for each step.
//
// A scope lasts as long as it has a process. While noded runs that is a keeper,
// which ends with noded's end of a pipe; after that the steps are. One that has
// gone is made again.
type scope struct {
	name    string // of the unit
	slice   string // that it lies in, "" is systemd's own choice, system.slice
	mount   string // of cgroup v2
	program string // spankhost
	spool   string
	// patience bounds the wait for systemd.
	patience time.Duration

	mu     sync.Mutex
	keeper *keeper // guarded by mu; nil before ensure
}

const (
	// scopeName is the scope of the noded with the default spool.
	scopeName = "stepd.scope"
	// scopePatience is added to SystemdTimeout, which is short for a host that
	// boots.
	scopePatience = 30 * time.Second
	// scopeTries bounds how often a scope is asked for whose name is taken by one
	// that goes away, and scopePause is between them.
	scopeTries = 20
	scopePause = 100 * time.Millisecond
	// keeperLeaf is the cgroup of the keeper: the scope's own must have no process
	// for its controllers to reach the steps.
	keeperLeaf = "keeper"
)

// ensure makes the scope, or takes the one that an earlier noded has made, and
// returns its directory.
func (s *scope) ensure(ctx context.Context) (dir string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeper != nil {
		s.keeper.end() // its scope has gone
		s.keeper = nil
	}
	conn, err := systemd.NewWithContext(ctx)
	if err != nil {
		return "", fmt.Errorf("cannot make %s: cannot talk to systemd: %w", s.name, err)
	}
	defer conn.Close()
	k, err := startKeeper(s.program, s.name)
	if err != nil {
		return "", err
	}
	if dir, err = s.establish(ctx, conn, k); err != nil {
		k.end()
		return "", err
	}
	s.keeper = k
	return dir, nil
}

// establish puts the keeper into the scope, whichever noded has made it.
func (s *scope) establish(ctx context.Context, conn *systemd.Conn, k *keeper) (dir string, err error) {
	for try := range scopeTries {
		if try > 0 {
			t := time.NewTimer(scopePause) // systemd sends no event when it forgets a unit
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return "", errors.Join(err, context.Cause(ctx))
			}
		}
		var found bool
		if dir, found, err = s.find(ctx, conn); err != nil {
			return "", err
		}
		if !found {
			if err = s.start(ctx, conn, k.pid()); err != nil {
				continue
			}
			if dir, found, err = s.find(ctx, conn); err != nil || !found {
				continue
			}
		}
		if err = moveToLeaf(dir, k.pid()); err != nil {
			continue // it has gone meanwhile
		}
		// It may have been on its way down when the keeper came.
		if _, found, err = s.find(ctx, conn); found {
			return dir, nil
		}
	}
	if err == nil {
		err = errors.New("it does not stay")
	}
	return "", fmt.Errorf("cannot make %s: %w", s.name, err)
}

// find returns where the scope is, if it is active.
func (s *scope) find(ctx context.Context, conn *systemd.Conn) (dir string, found bool, err error) {
	state, err := conn.GetUnitPropertyContext(ctx, s.name, "ActiveState")
	if err != nil {
		return "", false, fmt.Errorf("cannot ask systemd for %s: %w", s.name, err)
	}
	switch state.Value.Value() {
	case "active":
	case "failed":
		return "", false, conn.ResetFailedUnitContext(ctx, s.name)
	default:
		return "", false, nil
	}
	group, err := conn.GetUnitTypePropertyContext(ctx, s.name, "Scope", "ControlGroup")
	if err != nil {
		return "", false, fmt.Errorf("cannot ask systemd for the cgroup of %s: %w", s.name, err)
	}
	path, _ := group.Value.Value().(string)
	if path == "" {
		return "", false, nil
	}
	return filepath.Join(s.mount, path), true, nil
}

// start asks systemd for the scope, with one process in it.
func (s *scope) start(ctx context.Context, conn *systemd.Conn, pid int) error {
	property := func(name string, value any) systemd.Property {
		return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
	}
	done := make(chan string, 1) // size 1: the sender is the connection's reader
	_, err := conn.StartTransientUnitContext(ctx, s.name, "fail", []systemd.Property{
		systemd.PropDescription("Job steps of stepd"),
		systemd.PropSlice(cmp.Or(s.slice, "system.slice")),
		systemd.PropPids(uint32(pid)),
		// As noded.service: when the host goes down, steps end before what they and their
		// stepds write to goes.
		systemd.PropAfter("network-online.target", "network.target", "nss-user-lookup.target", "remote-fs.target"),
		property("RequiresMountsFor", []string{s.spool}),
		property("Delegate", true),
		property("TasksMax", uint64(math.MaxUint64)), // users' limits are the steps'
		property("CollectMode", "inactive-or-failed"),
	}, done)
	if err != nil {
		return fmt.Errorf("cannot start it: %w", err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("systemd's job for it ended as %q", result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("systemd does not answer within %v (SystemdTimeout in cgroup.conf adds to it)", s.patience)
	}
}

// moveToLeaf takes the keeper out of the scope's own cgroup.
func moveToLeaf(dir string, pid int) error {
	leaf := filepath.Join(dir, keeperLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// close lets the scope go, unless steps are in it.
func (s *scope) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeper != nil {
		s.keeper.end()
		s.keeper = nil
	}
}

// keeper is the process that keeps a scope while no step is in it.
type keeper struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

func startKeeper(program, unit string) (*keeper, error) {
	cmd := exec.Command(program, "--keep")
	cmd.Args[0] = "stepd-keeper: " + unit
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start the keeper of %s: %w", unit, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the keeper of %s: %w", unit, err)
	}
	return &keeper{cmd, pipe}, nil
}

func (k *keeper) pid() int { return k.cmd.Process.Pid }

// end ends it and waits for that: it has nothing to do but to read.
func (k *keeper) end() {
	k.pipe.Close()
	_ = k.cmd.Wait() // however it ended
}
