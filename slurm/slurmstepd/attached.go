package slurmstepd

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/slurm/rpc"
	"stepd/slurm/socket"
	"stepd/slurm/stdio"
	"stepd/slurm/wire"
	"stepd/step"
)

// attached are the clients beside srun that wait for the tasks' ends (sattach). Its methods
// may be called from any goroutine.
type attached struct {
	log *logrus.Logger

	mu      sync.Mutex
	told    []*wire.TaskExit      // guarded by mu: what each of them is to know
	clients []chan *wire.TaskExit // guarded by mu: the oldest first
	ended   bool                  // guarded by mu
	sending sync.WaitGroup
}

// attachedPatience bounds the reports of the last ends: a client must not hold up the step's.
const attachedPatience = 5 * time.Second

// attachedMax bounds the clients that are told, of which few live: one that has not taken what
// the tasks write has lost its streams, and its end is not seen.
const attachedMax = 512

// add begins to report to a client, from the first end on: one that is not told an end waits for
// ever. A closed gone ends it, and so do attachedMax later clients.
func (a *attached) add(client rpc.Client, to rpc.Peer, gone <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	if len(a.clients) == attachedMax {
		close(a.clients[0])
		a.clients = slices.Delete(a.clients, 0, 1)
	}
	queue := make(chan *wire.TaskExit, len(a.told)+messagesMax)
	for _, m := range a.told {
		queue <- m
	}
	a.clients = append(a.clients, queue)
	a.sending.Go(func() {
		a.send(client, to, queue, gone)
		a.drop(queue)
	})
}

// drop forgets a client, unless end or add has.
func (a *attached) drop(queue chan *wire.TaskExit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients = slices.DeleteFunc(a.clients, func(q chan *wire.TaskExit) bool { return q == queue })
}

// send reports to one client until it does not take the report, or is gone.
func (a *attached) send(client rpc.Client, to rpc.Peer, queue <-chan *wire.TaskExit, gone <-chan struct{}) {
	for {
		select {
		case <-gone:
			return
		case m, more := <-queue:
			if !more {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), attachedPatience)
			err := client.Send(ctx, to, m)
			cancel()
			if err != nil {
				a.log.Infof("sattach is not told the ends of tasks any more: %v", err)
				return
			}
		}
	}
}

// tell reports ends of tasks.
func (a *attached) tell(m *wire.TaskExit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, m)
	for _, queue := range a.clients {
		select {
		case queue <- m:
		default:
			a.log.Error("cannot report all ends of tasks to sattach: it does not take them")
		}
	}
}

// end returns when all is reported, or given up.
func (a *attached) end() {
	a.mu.Lock()
	a.ended = true
	for _, queue := range a.clients {
		close(queue)
	}
	a.clients = nil
	a.mu.Unlock()
	sent := make(chan struct{})
	go func() { defer close(sent); a.sending.Wait() }()
	select {
	case <-sent:
	case <-time.After(attachedPatience):
		a.log.Error("cannot report all ends of tasks to sattach: it does not take them")
	}
}

// Attach joins a client to the step's streams, and reports the tasks' ends to it.
func (h *handler) Attach(to socket.Attachment) error {
	if h.aud.srun == nil {
		return socket.ErrNotRunning // its output goes to files
	}
	gone := make(chan struct{})
	if err := h.aud.srun.Join(stdio.Joining{Release: to.Release, Server: to.Streams, Key: to.Key, Gone: func() { close(gone) }}); err != nil {
		h.log.Error(err)
		return err
	}
	client := h.peers.srun
	client.Release = to.Release
	h.aud.attached.add(client, rpc.Peer{Addr: to.Ends.String(), Reader: to.UID, Silent: true}, gone)
	h.log.Infof("user %d has attached to the step from %v", to.UID, to.Streams.Addr())
	return nil
}

// program is the first word of a task's command.
func (d *daemon) program(rank int) string {
	argv := d.spec.Argv
	if len(d.spec.Apps) > 0 {
		argv = step.Words(d.spec.Apps[d.spec.AppOf(rank)].Argv)
	}
	if len(argv) == 0 {
		return ""
	}
	return argv[0]
}
