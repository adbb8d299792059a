package spawn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// sendTimeout bounds a send to a stepd that does not read.
const sendTimeout = 10 * time.Second

// askGrace is how much longer than who has asked for it an answer of noded's is
// waited for: a noded that is gone must not hold up this step's end. A step that is
// made all the same ends by itself, since no client attaches to it.
const askGrace = 5 * time.Second

// child is one spawned step, of which this stepd is the launcher.
type child struct {
	s    *Services
	rank int // who has spawned it
	id   step.ID
	conn *stepapi.Conn

	// launched gets one value when the tasks run, or will not.
	launched chan error
	told     bool           // launched has its value; of the receivers of the step's reports, as is:
	failed   map[int]string // the tasks that could not be started
	cause    string         // of the last one of them
	done     chan struct{}

	mu      sync.Mutex
	started bool   // guarded by mu: there is a conn
	ending  string // guarded by mu: why it is to end, "" if not
	given   bool   // guarded by mu: its end concerns no caller here
	seq     uint32 // guarded by mu
}

// start asks noded for the step and hands its stepd the streams.
func (c *child) start(ctx context.Context, req *step.Request, r launch.SpawnRequest) error {
	doc, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("cannot encode the request of a spawned step: %w", err)
	}
	// Not under ctx: once noded was asked there may be a step to be ended.
	asking, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(askGrace, func() { giveUp(context.Cause(ctx)) })
	})()
	a, err := c.s.ask(asking, &stepapi.Ask{Do: stepapi.AskSpawn, Request: doc, Preput: r.Preput})
	if err != nil {
		return err
	}
	if a.ID == nil {
		return fmt.Errorf("internal error: noded names no step that it has spawned")
	}
	c.id = *a.ID
	conn, err := stepapi.DialDir(asking, a.SocketDir, a.SocketName)
	if err != nil {
		return fmt.Errorf("cannot reach the stepd of step %s: %w", c.id, err)
	}
	if err := c.attach(conn); err != nil {
		conn.Close()
		return fmt.Errorf("cannot launch step %s: %w", c.id, err)
	}
	c.begun(conn)
	return nil
}

// begun notes the connection to the step. Who wanted its end meanwhile has it now.
func (c *child) begun(conn *stepapi.Conn) {
	c.mu.Lock()
	c.conn, c.started = conn, true
	ending := c.ending
	c.mu.Unlock()
	if ending != "" {
		c.sendCancel(ending)
	}
}

// attach makes this stepd the launcher. The tasks write where the rank does that
// has asked for them; what it has closed is /dev/null to them.
func (c *child) attach(conn *stepapi.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := conn.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleLaunch}); err != nil {
		return err
	}
	m := &stepapi.Msg{Type: stepapi.TypeAttach}
	var fds []int
	for fd := 1; fd <= 2; fd++ {
		own, err := c.s.Stream(c.rank, fd)
		if err != nil {
			c.s.Log(fmt.Sprintf("descriptor %d of step %s is /dev/null: %v", fd, c.id, err))
			continue
		}
		fds = append(fds, own)
		m.Streams = append(m.Streams, stepapi.StreamFD{FD: fd, Rank: launch.AllRanks})
	}
	defer func() { stepapi.CloseAll(fds) }()
	if len(fds) > 0 {
		if err := conn.Send(m, fds...); err != nil {
			return err
		}
	}
	return conn.Send(&stepapi.Msg{Type: stepapi.TypeAttachDone})
}

// follow receives the step's messages until its end.
func (c *child) follow() {
	defer c.conn.Close()
	go c.endWithParent()
	for {
		m, err := c.conn.Hear()
		if err != nil {
			c.ended(nil)
			return
		}
		switch m.Type {
		case stepapi.TypeMessage:
			c.s.Say(m.Text)
		case stepapi.TypeTaskExit:
			if m.Status != nil && *m.Status != 0 {
				c.say("task %s: %s", step.FormatCPUList(m.Ranks), m.Status.Describe())
			}
		case stepapi.TypeHello, stepapi.TypeReply:
			if m.Error != "" {
				c.s.Log(fmt.Sprintf("stepd of step %s: %s", c.id, m.Error))
			}
			c.look(m.Record)
		case stepapi.TypeState:
			c.look(m.Record)
		case stepapi.TypeResult:
			c.ended(m.Record)
			return
		}
	}
}

// endWithParent ends the step when the one that has spawned it does. It returns when
// the step is over, at the latest.
func (c *child) endWithParent() {
	select {
	case <-c.s.Ending():
		c.giveUp("the step that has spawned it, " + c.s.Spec.ID.Name() + ", has been ended")
	case <-c.done:
	}
}

func (c *child) say(format string, args ...any) {
	c.s.Say(fmt.Sprintf("stepd-%s: error: step %s: ", c.s.Spec.NodeName, c.id) + fmt.Sprintf(format, args...))
}

// look reports to the spawning rank when all of the step's tasks run, or some cannot.
func (c *child) look(rec *step.Record) {
	if rec == nil || c.told {
		return
	}
	for i := range rec.Tasks {
		if s := rec.Tasks[i].State; s == step.TaskPending || s == step.TaskStarting {
			return
		}
	}
	if len(rec.Tasks) == 0 {
		return
	}
	for i := range rec.Tasks {
		if t := &rec.Tasks[i]; t.State == step.TaskFailed {
			if c.failed == nil {
				c.failed = make(map[int]string)
			}
			c.failed[t.Rank] = fmt.Sprintf("stage %s: %v", t.Stage, unix.Errno(t.Errno))
			c.cause = c.failed[t.Rank]
		}
	}
	c.tellLaunched()
}

// tellLaunched reports the result of the start to the spawning rank, once.
func (c *child) tellLaunched() {
	c.told = true
	if len(c.failed) == 0 {
		c.launched <- nil
		return
	}
	c.giveUp("not all of its tasks could be started")
	c.launched <- &launch.SpawnError{ID: c.id, Failed: c.failed, Cause: c.cause}
}

// ended comes with the step's last record, nil where its stepd has gone without
// one. A step that was aborted takes this one with it: their ranks are connected,
// and would wait for each other.
func (c *child) ended(rec *step.Record) {
	c.look(rec)
	reason := "its stepd is gone"
	code := 1
	if rec != nil {
		reason = strings.TrimSpace(string(rec.State) + ": " + rec.Reason)
		if rec.ExitCode != nil {
			code = *rec.ExitCode
		}
	}
	if !c.told {
		c.told = true
		c.launched <- &launch.SpawnError{ID: c.id, Cause: reason}
		return
	}
	c.mu.Lock()
	given := c.given
	c.mu.Unlock()
	// An end of its own is its tasks' exit codes, which were reported, and are not ours.
	if !given && (rec == nil || !rec.OwnEnd()) {
		c.s.Abort(c.rank, max(code, 1), fmt.Sprintf("step %s, which it has spawned, has ended: %s", c.id, reason))
	}
}

// cancel ends the step, which goes on reporting.
func (c *child) cancel(reason string) {
	c.mu.Lock()
	if c.ending != "" {
		c.mu.Unlock()
		return
	}
	c.ending = reason
	started := c.started
	c.mu.Unlock()
	if started {
		c.sendCancel(reason)
	}
}

// giveUp is cancel of a step whose end is no news.
func (c *child) giveUp(reason string) {
	c.mu.Lock()
	c.given = true
	c.mu.Unlock()
	c.cancel(reason)
}

func (c *child) sendCancel(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	m := &stepapi.Msg{Type: stepapi.TypeCancel, Seq: c.seq, Text: reason}
	_ = c.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := c.conn.Send(m); err != nil {
		c.s.Log(fmt.Sprintf("cannot end step %s, it is ending already: %v", c.id, err))
	}
}

// Config is what a step gives to its Services; all of it is needed.
type Config struct {
	Spec *step.Spec
	// Ask asks noded (stepapi.Server.Ask).
	Ask func(context.Context, *stepapi.Ask) (*stepapi.Answer, error)
	// Stream returns a copy of what a rank of this node has as descriptor 1 or 2; the
	// caller closes it.
	Stream func(rank, fd int) (int, error)
	// Say sends a line to the user's stderr, Log one to the administrator.
	Say func(line string)
	Log func(text string)
	// Abort ends this step because one that a rank has spawned was aborted.
	Abort func(rank, code int, text string)
	// Ending returns what is closed when the step's end has been asked for.
	Ending func() <-chan struct{}
}

// nodedPatience is how long a request waits for noded, which may be restarting.
const nodedPatience = 60 * time.Second

// Services are a step's launch.MPIServices. Make them with New; Close waits for what
// was spawned.
type Services struct {
	Config

	mu       sync.Mutex
	closed   bool                // guarded by mu
	children map[*child]struct{} // guarded by mu
	running  sync.WaitGroup
}

// New makes the services of one step.
func New(c Config) *Services {
	return &Services{Config: c, children: make(map[*child]struct{})}
}

// Publish binds a name for all steps of the job.
func (s *Services) Publish(ctx context.Context, name, port string) error {
	_, err := s.ask(ctx, &stepapi.Ask{Do: stepapi.AskPublish, Name: []byte(name), Port: []byte(port)})
	return err
}

// Lookup finds a name of the job's.
func (s *Services) Lookup(ctx context.Context, name string) (port string, found bool, err error) {
	return portOf(s.ask(ctx, &stepapi.Ask{Do: stepapi.AskLookup, Name: []byte(name)}))
}

// Unpublish takes a name back; any step of the job may.
func (s *Services) Unpublish(ctx context.Context, name string) error {
	_, err := s.ask(ctx, &stepapi.Ask{Do: stepapi.AskUnpublish, Name: []byte(name)})
	return err
}

// Await finds a name of the job's, waiting for it as long as ctx lasts.
func (s *Services) Await(ctx context.Context, name string) (port string, found bool, err error) {
	return portOf(s.wait(ctx, &stepapi.Ask{Do: stepapi.AskLookup, Name: []byte(name)}))
}

func portOf(a *stepapi.Answer, err error) (port string, found bool, _ error) {
	if err != nil {
		return "", false, err
	}
	return string(a.Port), a.Found, nil
}

// Meet exchanges data with other steps of the job.
func (s *Services) Meet(ctx context.Context, name string, parties []string, me string, data []byte) (map[string][]byte, error) {
	a, err := s.wait(ctx, &stepapi.Ask{Do: stepapi.AskMeet, Name: []byte(name), Parties: parties, Party: me, Port: data})
	if err != nil {
		return nil, err
	}
	if !a.Found {
		return nil, fmt.Errorf("cannot meet steps %q: not all came: %w", parties, context.Cause(ctx))
	}
	parts := make(map[string][]byte, len(a.Parts))
	for _, p := range a.Parts {
		parts[p.Key] = p.Value
	}
	return parts, nil
}

// wait asks until another step has done what is waited for, or ctx ends: noded
// answers after a few seconds at the latest, and may be restarting.
func (s *Services) wait(ctx context.Context, ask *stepapi.Ask) (*stepapi.Answer, error) {
	for {
		ask.WaitMS = int64(time.Hour / time.Millisecond)
		if deadline, ok := ctx.Deadline(); ok {
			ask.WaitMS = max(1, time.Until(deadline).Milliseconds())
		}
		// noded's last answer is to come before we give up.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), nodedPatience)
		stop := context.AfterFunc(ctx, func() {
			if errors.Is(ctx.Err(), context.Canceled) {
				cancel()
			}
		})
		a, err := s.Ask(asking, ask)
		stop()
		cancel()
		switch {
		case errors.Is(err, stepapi.ErrNodedGone):
		case err != nil || a.Found:
			return a, err
		}
		if ctx.Err() != nil {
			return &stepapi.Answer{}, nil
		}
	}
}

// ask asks noded, and once more where that has gone meanwhile: a name that was
// published by the first request is then refused, which the user sees.
func (s *Services) ask(ctx context.Context, ask *stepapi.Ask) (*stepapi.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, nodedPatience)
	defer cancel()
	a, err := s.Ask(ctx, ask)
	if errors.Is(err, stepapi.ErrNodedGone) && ask.Do != stepapi.AskSpawn {
		a, err = s.Ask(ctx, ask)
	}
	return a, err
}

// Running counts the spawned steps that have not ended.
func (s *Services) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.children)
}

// Close waits until all that was spawned has ended. Nothing is spawned any more.
func (s *Services) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
}

// Cancel ends what was spawned.
func (s *Services) Cancel(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.children {
		c.cancel(reason)
	}
}

// Spawn starts another step and returns when its tasks run. One whose tasks cannot
// all be started is ended, and the error is a *launch.SpawnError. Where ctx ends
// first, the new step is ended.
func (s *Services) Spawn(ctx context.Context, r launch.SpawnRequest) (step.ID, error) {
	req, err := request(s.Spec, r)
	if err != nil {
		return step.ID{}, err
	}
	c, err := s.begin(r.Rank)
	if err != nil {
		return step.ID{}, err
	}
	if err := c.start(ctx, req, r); err != nil {
		s.end(c)
		return step.ID{}, err
	}
	go func() {
		defer s.end(c)
		c.follow()
	}()
	select {
	case err := <-c.launched:
		return c.id, err
	case <-ctx.Done():
		c.giveUp("the task that has spawned it is gone")
		return step.ID{}, fmt.Errorf("cannot wait for step %s: %w", c.id, context.Cause(ctx))
	}
}

// begin counts a child, unless this step has ended, or is about to.
func (s *Services) begin(rank int) (*child, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.Ending():
		s.closed = true
	default:
	}
	if s.closed {
		return nil, fmt.Errorf("cannot spawn: step %s is ending", s.Spec.ID)
	}
	c := &child{s: s, rank: rank, launched: make(chan error, 1), done: make(chan struct{})}
	s.children[c] = struct{}{}
	s.running.Add(1)
	return c, nil
}

func (s *Services) end(c *child) {
	close(c.done)
	s.mu.Lock()
	delete(s.children, c)
	s.mu.Unlock()
	s.running.Done()
}

// request is the step that r asks for: as the spawning one, where r says nothing
// else. It shares the job's CPUs with what runs there, as --overcommit does.
func request(spec *step.Spec, r launch.SpawnRequest) (*step.Request, error) {
	if len(r.Apps) == 0 {
		return nil, errors.New("cannot spawn: there is no command")
	}
	req := spec.Request
	job, uid, gid := spec.ID.Job, spec.User.UID, spec.User.GID
	req.Job, req.UID, req.GID = &job, &uid, &gid
	req.NTasks, req.NNodes, req.Overcommit, req.MPI = 0, 1, true, r.MPI
	// What was asked for the spawning step's own tasks.
	req.Binding, req.Mem, req.MemPerCPU, req.Gres = step.Binding{}, nil, nil, nil
	req.Script, req.JobControl = nil, nil
	req.Stdin = step.Stream{Kind: step.StreamNull}
	req.Stdout, req.Stderr = step.Stream{Kind: step.StreamClient}, step.Stream{Kind: step.StreamClient}
	req.Apps = nil
	for i := range r.Apps {
		app, err := appOf(spec, &r.Apps[i])
		if err != nil {
			return nil, fmt.Errorf("cannot spawn command %d of %d: %w", i+1, len(r.Apps), err)
		}
		if req.NTasks += app.NTasks; req.NTasks > step.TasksMax {
			return nil, fmt.Errorf("cannot spawn %d tasks: the limit is %d", req.NTasks, step.TasksMax)
		}
		req.Apps = append(req.Apps, app)
	}
	req.Argv = r.Apps[0].Argv
	if name := path.Base(req.Argv[0]); nameable(name) {
		req.Name = name
	}
	if err := srunopt.Validate(&req); err != nil {
		return nil, fmt.Errorf("cannot spawn: %w", err)
	}
	req.Pack()
	return &req, nil
}

// nameable reports whether a step can have the name.
func nameable(name string) bool {
	return len(name) <= srunopt.NameMax && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

// appOf is one command with the hints that mean something here; MPI lets the
// others be ignored.
func appOf(spec *step.Spec, a *launch.SpawnApp) (step.App, error) {
	if len(a.Argv) == 0 {
		return step.App{}, errors.New("it is empty")
	}
	if a.NTasks < 1 || a.NTasks > step.TasksMax {
		return step.App{}, fmt.Errorf("%d tasks: want 1 to %d", a.NTasks, step.TasksMax)
	}
	app := step.App{NTasks: a.NTasks, Argv: step.Raw(a.Argv), Env: step.Raw(a.Env), Cwd: []byte(a.Cwd)}
	for _, hint := range a.Info {
		value := string(hint.Value)
		switch hint.Key {
		case "wdir":
			app.Cwd = hint.Value
		case "path":
			app.Env = append(app.Env, []byte("PATH="+value+":"+variable(spec.Env, "PATH")))
		case "host", "hosts", "add-host": // MPI's word, MPICH's and Open MPI's
			if err := onlyHere(spec, value); value != "" && err != nil {
				return step.App{}, err
			}
		}
	}
	return app, nil
}

// onlyHere refuses a hint that names another node than this one: "n1,n2:4", where the
// number counts its tasks.
func onlyHere(spec *step.Spec, hint string) error {
	for word := range strings.SplitSeq(hint, ",") {
		name, count, counted := strings.Cut(strings.TrimSpace(word), ":")
		if !meansHost(spec.NodeName, name) {
			return fmt.Errorf("its hint host names %.64q, and this node is %q; several nodes: use Slurm (docs/slurm.md)", name, spec.NodeName)
		}
		if n, err := strconv.ParseUint(count, 10, 31); counted && (err != nil || n == 0) {
			return fmt.Errorf("its hint host has %.64q: after the colon there is a number of tasks", word)
		}
	}
	return nil
}

// meansHost reports whether a program means the node by host: its name, with a domain or
// without, or localhost.
func meansHost(node, host string) bool {
	if host == "localhost" || host == node {
		return true
	}
	shortHost, _, domain := strings.Cut(host, ".")
	shortNode, _, _ := strings.Cut(node, ".")
	return host == shortNode || domain && shortHost == node
}

func variable(env []string, name string) string {
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}
