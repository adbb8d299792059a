package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/internal/linux"
	"stepd/node/state"
	"stepd/step"
)

// Status is the node document (docs/json.md).
func (n machine) Status(ctx context.Context) api.Node {
	u := n.reg.usage()
	d := api.Node{
		Name: n.cfg.NodeName, State: nodeState(u.drained.Drained, len(u.jobs)), Reason: u.drained.Reason,
		CPUs: len(n.cfg.Select.CPUs), FreeCPUs: u.FreeCPUs, MemoryBytes: n.cfg.MemoryBytes, UsableMB: n.cfg.Select.Memory.MB,
		UsedMB: u.UsedMB, Select: u.NodeSelect, Gres: u.Gres,
		Proctrack: n.cfg.Tracker.Kind(), Container: n.cfg.ContainerType,
		Fallbacks: n.fallbackList(), Jobs: u.jobs, Waiting: u.waiting, Plugins: []Plugin{},
		Unkillable: n.health.Docs(), Daemon: daemonNow(),
	}
	if drained := u.drained; drained.Drained {
		d.DrainedBy = cmp.Or(drained.By, "noded")
		if !drained.Since.IsZero() {
			d.DrainedSince = &drained.Since
		}
	}
	if n.cfg.Plugins != nil {
		d.Plugins = append(d.Plugins, n.cfg.Plugins(ctx)...)
		n.health.Plugins.Mark(d.Plugins)
	}
	return d
}

func daemonNow() api.NodeDaemon {
	d := api.NodeDaemon{PID: os.Getpid(), Goroutines: runtime.NumGoroutine()}
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		if names, err := dir.Readdirnames(-1); err == nil {
			open := len(names) - 1 // without dir itself
			d.OpenFiles = &open
		}
		dir.Close()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	d.HeapBytes = m.HeapInuse
	return d
}

// nodeState is Slurm's word for the node.
func nodeState(drained bool, jobs int) string {
	switch {
	case drained && jobs > 0:
		return "DRAINING"
	case drained:
		return "DRAINED"
	case jobs > 0:
		return "ALLOCATED"
	}
	return "IDLE"
}

// AddFallback adds to the fallbacks that the node document shows. It takes the place of one of the
// same name.
func (n *Node) AddFallback(f Fallback) {
	n.fallbacks.Lock()
	defer n.fallbacks.Unlock()
	others := slices.DeleteFunc(slices.Clone(n.cfg.Fallbacks), func(o Fallback) bool { return o.What == f.What })
	n.cfg.Fallbacks = append(others, f)
}

func (n *Node) fallbackList() []Fallback {
	n.fallbacks.Lock()
	defer n.fallbacks.Unlock()
	all := append(append([]Fallback{}, n.cfg.Fallbacks...), n.cfg.Tracker.Fallbacks()...)
	if err := n.silence(); err != nil {
		all = append(all, Fallback{What: "spool", Why: err.Error() + "; nothing new is taken"})
	}
	return all
}

// Drain drains the node for an administrator: it takes no more steps.
func (n machine) Drain(caller api.Peer, reason string) error {
	return n.administer(state.Drain{Drained: true, Reason: reason, By: administrator(caller)})
}

// administrator is root, with the user that the process has logged in as where the kernel knows
// it.
func administrator(caller api.Peer) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", caller.PID))
	login, perr := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || perr != nil || login == math.MaxUint32 || login == uint64(caller.UID) {
		return "root"
	}
	return fmt.Sprintf("root (logged in as uid %d)", login)
}

// Resume ends a drain, and takes the quarantined plugins in again.
func (n machine) Resume() error { return n.administer(state.Drain{}) }

func (n machine) administer(d state.Drain) error {
	if err := n.health.SetDrain(d); err != nil {
		return api.NewError(api.Internal, err.Error())
	}
	if !d.Drained {
		n.health.Plugins.Forgive()
	}
	n.log.WithField("drained", d.Drained).WithField("reason", d.Reason).Info("drain state changed")
	return nil
}

// publishedConfig is the file RUN/client.json: the last answer to a client's "config". A client
// that reads it saves a call, and reads the plugin stack with the digest that stands in it
// (api.Client.Published). The zero value publishes nothing.
type publishedConfig struct {
	path string
	log  *logrus.Logger

	mu   sync.Mutex
	last []byte // guarded by mu: what the file has

	kept string // guarded by mu: the digest of the stack of which a copy was written last
	told string // guarded by mu: the digest of the stack that was published last
}

// putLocked publishes an answer. One without a digest is of no use to a client, which must ask again.
func (p *publishedConfig) putLocked(reply *api.ConfigReply) {
	if p.path == "" || reply.PlugstackError != "" {
		return
	}
	stamped := *reply
	stamped.Stamp()
	doc, err := json.Marshal(&stamped)
	if err != nil {
		return // the answer itself says it
	}
	if bytes.Equal(doc, p.last) {
		return
	}
	if err = publish(p.path, doc, 0o644); err != nil {
		p.log.Warnf("clients call for the configuration, which cannot be published: %v", err)
		return
	}
	p.last = doc
}

// remove takes the file away, for ever: an answer may be on its way.
func (p *publishedConfig) remove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = nil
	if err := os.Remove(p.path); err != nil && p.path != "" && !errors.Is(err, os.ErrNotExist) {
		p.log.Warnf("cannot remove the published configuration: %v", err)
	}
	p.path = ""
}

// ClientConfig is what a client takes from the configuration. It is published as well.
func (n machine) ClientConfig() *api.ConfigReply {
	c := &n.cfg
	spank := c.Site.Spank
	reply := &api.ConfigReply{
		Node: c.NodeName, CPUs: len(c.Select.CPUs), MaxTasks: c.MaxTasks, MPIDefault: c.MPIDefault, MPITypes: c.MPITypes,
		Plugstack: spank.Plugstack, PluginDirs: spank.PluginDirs, Cluster: c.Site.Cluster,
		AllowReleases: spank.AllowReleases, HookTimeoutS: spank.HookTimeoutS, SpankStrict: spank.Strict, SlurmConf: c.Site.SlurmConf,
		RequireSafe: spank.RequireSafe, InteractiveStep: c.InteractiveStep, MemoryUnlimited: c.MemoryUnlimited,
	}
	if c.Stack != nil {
		stack, err := c.Stack()
		reply.PlugstackDigest = stack.Digest
		if err != nil {
			reply.PlugstackError = err.Error()
		}
	}
	// Together: what is published last must have the jobs that there are last.
	n.published.mu.Lock()
	defer n.published.mu.Unlock()
	if c.Stack != nil {
		reply.JobStacks = n.keptLocked(reply.PlugstackDigest)
	}
	n.published.putLocked(reply)
	return reply
}

// Stack is a plugin stack as it was read.
type Stack struct {
	Digest string
	// Copy is what a step reads of it when its file has changed, and the mode of the file to
	// put that into.
	Copy func() (doc []byte, mode os.FileMode, err error)
}

// keepStack returns the digest of the plugin stack with which a job begins now, of which a copy
// is kept for its steps and its epilog. "" is a stack that cannot be read or kept: each step
// then reads what there is.
func (n machine) keepStack() string {
	if n.cfg.Stack == nil {
		return ""
	}
	p := &n.published
	p.mu.Lock()
	kept := p.kept
	p.mu.Unlock()
	// Of files that are as they were stat(2) tells so: they are not read in each job's launch.
	if _, digest, err := n.cfg.Scripts.StackID(); err == nil && digest != "" && digest == kept {
		return digest
	}
	stack, err := n.cfg.Stack()
	if err != nil {
		return "" // loading it reports what is wrong
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == stack.Digest {
		return stack.Digest
	}
	if err = n.writeStack(stack); err != nil {
		n.log.Warnf("jobs that begin now will notice changes of the plugin stack: %v", err)
		return ""
	}
	n.sweepStacks(stack.Digest, p.kept)
	p.kept = stack.Digest
	return stack.Digest
}

func (n machine) writeStack(stack Stack) error {
	doc, mode, err := stack.Copy()
	if err != nil {
		return err
	}
	return publish(n.spool.Stack(stack.Digest), doc, mode)
}

// publish writes a file for clients.
func publish(path string, doc []byte, mode os.FileMode) error {
	return linux.WriteWhole(path, false, func(w io.Writer) error {
		_, err := w.Write(doc)
		return errors.Join(err, w.(*os.File).Chmod(mode))
	})
}

// sweepStacks removes the copies that no job needs. A job that begins now is not among the jobs
// yet: young is what it may have.
func (n machine) sweepStacks(young ...string) {
	for _, j := range n.reg.all() {
		young = append(young, j.Stack)
	}
	entries, err := os.ReadDir(n.spool.StacksDir())
	for _, e := range entries {
		if !slices.Contains(young, e.Name()) {
			err = errors.Join(err, os.Remove(n.spool.Stack(e.Name())))
		}
	}
	if err != nil {
		n.log.Warnf("cannot remove old plugin stacks: %v", err)
	}
}

// keptLocked lists the jobs that began with another plugin stack than the present one, and says
// once of each change that there are some.
func (n machine) keptLocked(present string) (kept []api.JobStack) {
	for _, j := range n.reg.all() {
		if j.Stack != "" && j.Stack != present {
			kept = append(kept, api.JobStack{JobID: j.ID, File: n.spool.Stack(j.Stack)})
		}
	}
	slices.SortFunc(kept, func(a, b api.JobStack) int { return cmp.Compare(a.JobID, b.JobID) })
	p := &n.published
	if len(kept) > 0 && p.told != present {
		n.log.Warnf("the plugin stack has changed: %d of the running jobs began with another one, which their steps and epilogs keep", len(kept))
	}
	p.told = present
	return kept
}

// tellStack publishes anew what clients read, where a job has begun or is gone whose plugin stack,
// of that digest, is not the present one: they are to read the job's own stack, and nothing of an
// earlier job with its number.
func (n machine) tellStack(digest string) {
	n.published.mu.Lock()
	old := digest != "" && n.published.told != "" && digest != n.published.told
	n.published.mu.Unlock()
	if old {
		n.ClientConfig()
	}
}

// followStack publishes the plugin stack anew when it has changed, until noded stops.
func (n machine) followStack() {
	for {
		select {
		case <-n.cfg.StackChanged:
			n.ClientConfig()
		case <-n.stopping:
			return
		}
	}
}

// stackOf is conf for a step of a job that began with the stack of that digest, and for its prolog
// and epilog.
func (n *Node) stackOf(conf step.SpankConf, digest string) step.SpankConf {
	if conf.Digest = digest; digest != "" {
		conf.Kept = n.spool.Stack(digest)
	}
	return conf
}

// Meter gets the node's events, for figures over time. Its methods are called
// from several goroutines, which must not wait for them.
type Meter interface {
	// Request reports a request that was answered: the verb, the code and how long it
	// took.
	Request(verb, code string, took time.Duration)
	// StepEnded reports a step of this node that has ended; open opens its event log,
	// which the callee closes.
	StepEnded(rec *step.Record, open func() (io.ReadCloser, error))
	// Leak reports a leftover that was found.
	Leak(kind LeakKind)
	// Adopted reports how many steps of an earlier noded's run, and how long it took to
	// find out.
	Adopted(steps int, took time.Duration)
}

// LeakKind says what was left behind.
type LeakKind string

// The kinds of what is found.
const (
	LeakStep    LeakKind = "step"    // the cgroup of a step that has ended
	LeakFile    LeakKind = "file"    // a socket, result or folder of such a step
	LeakScript  LeakKind = "script"  // processes of a job's prolog or epilog
	LeakProcess LeakKind = "process" // processes of a step that SIGKILL does not end
)

// noMeter hears nothing.
type noMeter struct{}

func (noMeter) Request(string, string, time.Duration)                 {}
func (noMeter) StepEnded(*step.Record, func() (io.ReadCloser, error)) {}
func (noMeter) Leak(LeakKind)                                         {}
func (noMeter) Adopted(int, time.Duration)                            {}

// measure reports the step's end to the meter, when no client waits for it any more.
func measure(f *follower) {
	if _, deaf := f.n.cfg.Meter.(noMeter); deaf {
		return
	}
	rec, name := f.record(), f.n.spool.Events(f.id)
	if !rec.State.Final() { // it was refused
		return
	}
	f.n.work.Go(func() {
		f.n.cfg.Meter.StepEnded(rec, func() (io.ReadCloser, error) {
			return f.n.spool.Open(name)
		})
	})
}

// Figures are the node as it is now, for a page of metrics.
type Figures struct {
	// State is IDLE, ALLOCATED, DRAINING or DRAINED.
	State string
	// Steps counts the steps that have not ended, by state; Jobs the jobs.
	Steps map[step.State]int
	Jobs  int
	// CPUs and MemoryMB are the node's, the free and used ones what jobs have left and
	// taken.
	CPUs, FreeCPUs   int
	MemoryMB, UsedMB uint64
	// Gres is what there is of each generic resource.
	Gres []api.NodeGres
	// Unkillable counts steps of which processes are left, Fallbacks what works less
	// well than configured, Connections the clients' connections.
	Unkillable, Fallbacks, Connections int
}

// Figures tells them.
func (n *Node) Figures() Figures {
	u := n.reg.usage()
	f := Figures{
		State: nodeState(u.drained.Drained, len(u.jobs)), Steps: map[step.State]int{}, Jobs: len(u.jobs),
		CPUs: len(n.cfg.Select.CPUs), FreeCPUs: u.FreeCPUs, MemoryMB: n.cfg.Select.Memory.MB, UsedMB: u.UsedMB, Gres: u.Gres,
		Unkillable: len(n.health.Docs()), Fallbacks: len(n.fallbackList()),
	}
	if count := n.connections.Load(); count != nil {
		f.Connections = (*count)()
	}
	for _, s := range n.reg.followers() {
		f.Steps[s.record().State]++
	}
	return f
}

// NotReady says why the node takes no step of a user's now, a line each; none is
// that it takes them. It asks the spool, no longer than ctx lasts.
func (n *Node) NotReady(ctx context.Context) (why []string) {
	switch {
	case n.gate.Closing():
		why = append(why, "noded is stopping")
	case !n.serving.Load():
		why = append(why, "noded is starting")
	}
	if drained := n.gate.Drain(); drained.Drained {
		why = append(why, "the node is drained: "+drained.Reason)
	}
	if err := n.silence(); err != nil { // though its file system may answer
		return append(why, err.Error())
	}
	for _, t := range n.spoolWatch.Look(ctx) {
		why = append(why, t.Text)
	}
	if err := n.store.Unwritable(); err != nil {
		why = append(why, err.Error())
	}
	return why
}
