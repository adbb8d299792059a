package stepd

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/step"
	"stepd/step/launch"
	"stepd/stepd/report"
	"stepd/stepio/live"
	"stepd/stepio/relay"
	"stepd/task"
)

// handler lets the socket act on the step, most of whose requests are methods of the step itself.
type handler struct {
	*task.Step
	aud     *audience
	streams *relay.Relay
	owner   uint32     // of the tasks
	output  *live.Live // what others see of it
}

// Stat also writes out the event log: a client that asks for the state may read it next.
func (h handler) Stat() step.Record {
	h.aud.Flush()
	return h.Step.Stat()
}

func (h handler) Watch(w *stepapi.Watch, launcher bool) (*stepapi.Watched, int, error) {
	fd, err := h.output.Watch(live.Watching{Launcher: launcher, ReadOnly: w.ReadOnly, Once: w.Once, Replay: w.Replay})
	if err != nil {
		return nil, -1, err
	}
	var passed step.Record
	h.streams.Fill(&passed)
	return &stepapi.Watched{
		Terminal: h.output.Terminal(), Stdout: passed.StdoutBytes != nil, Stderr: passed.StderrBytes != nil,
	}, fd, nil
}

func (h handler) Attach(streams []stepapi.StreamFD, fds []int) error {
	var first error
	for i, s := range streams {
		handle, err := fds[i], error(nil)
		if s.Relay {
			handle, err = h.between(s, handle)
		}
		if err == nil {
			err = h.Step.Attach(s.FD, s.Rank, handle)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// newRelay makes the relay of a step with so many tasks here. A stream that comes by
// it takes three descriptors instead of one: where there are not enough for all of
// them, none does, and the tasks have the client's own.
func newRelay(tasks int, aud *audience) *relay.Relay {
	const others, ofTask = 256, 2 // what stepd has besides
	streams := 2 * (tasks + 1)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && uint64(3*streams+ofTask*tasks+others) > limit.Cur {
		aud.Log(launch.LogInfo, fmt.Sprintf("the tasks have the client's own pipes, and their bytes are not counted: to pass them on for %d tasks takes more than the %d descriptors that stepd may have (RLIMIT_NOFILE)", tasks, limit.Cur))
		streams = 0
	}
	return relay.New(streams)
}

// between puts a pipe of ours before the client's. Where that cannot be, the tasks
// have the client's, if it was made for them.
func (h handler) between(s stepapi.StreamFD, handle int) (int, error) {
	tasks, err := h.streams.Add(s.FD, s.Rank, handle, h.owner)
	if err == nil {
		return tasks, nil
	}
	var st unix.Stat_t
	if serr := unix.Fstat(handle, &st); serr != nil || st.Uid != h.owner {
		unix.Close(handle)
		return -1, err
	}
	h.aud.Log(launch.LogDebug, err.Error())
	return handle, nil
}

// audience reports the step to its clients, its event log and noded's log.
type audience struct {
	*report.Events
	log    *logrus.Entry
	server *stepapi.Server
	ends   *report.Ends
	out    report.Output // a batch job's own output
	user   step.User
	batch  bool
}

func newAudience(log *logrus.Logger, spec *step.Spec) (*audience, error) {
	f := os.NewFile(stepapi.FDEvents, "events")
	if f == nil {
		return nil, fmt.Errorf("cannot use descriptor %d as the event log", stepapi.FDEvents)
	}
	a := &audience{
		Events: report.NewEvents(f, spec.Env),
		log:    log.WithField("step", spec.ID.Name()),
		user:   spec.User,
		batch:  spec.ID.Step == step.BatchStep,
	}
	a.ends = report.NewEnds(func(ranks []int, status step.ExitStatus) {
		a.server.Tell(&stepapi.Msg{Type: stepapi.TypeTaskExit, Ranks: ranks, Status: &status})
	})
	return a, nil
}

func (a *audience) Say(line string) {
	if a.batch {
		a.out.Say(line)
	}
	a.server.Tell(&stepapi.Msg{Type: stepapi.TypeMessage, Text: line})
}

func (a *audience) SayTask(_ int, line string) { a.Say(line) }

func (a *audience) SayTo(f *os.File) { a.out.To(f, a.user) }

func (a *audience) TaskExited(rank int, status step.ExitStatus) { a.ends.Add(rank, status) }

func (a *audience) State(rec step.Record) {
	a.ends.Tell()
	a.server.TellState(&rec)
	if rec.State == step.Running {
		time.AfterFunc(report.TrimAfter, func() { report.Trim(len(rec.Tasks)) })
	}
	if rec.State == step.Starting {
		return // on the way of a launch; the log is written out soon where the launch is suspended
	}
	a.Flush()
}

// Progress also writes out the event log: a client that asks noded for the state may read it.
func (a *audience) Progress(rec step.Record) {
	a.server.TellNoded(&rec)
	a.Flush()
}

func (a *audience) Log(level launch.LogLevel, text string) { report.Log(a.log, level, text) }

// close writes what is left of the event log and of a batch job's output.
func (a *audience) close() {
	a.out.Close()
	if err := a.Close(); err != nil {
		a.log.Errorf("cannot write the event log: %v", err)
	}
}

// nameBytes is a C string for prctl(2).
func nameBytes(name string) uintptr {
	b := append([]byte(name), 0)
	return uintptr(unsafe.Pointer(&b[0]))
}
