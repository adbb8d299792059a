package slurmstepd

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/slurm/munge"
	"stepd/slurm/rpc"
	"stepd/slurm/wire"
	"stepd/step"
)

// TestAttached: clients that do not take the reports hold up neither the others nor the
// step's end for longer than attachedPatience; after the end none is added.
func TestAttached(t *testing.T) {
	var said strings.Builder
	log := logrus.New()
	log.SetOutput(&said)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	a := attached{log: log}
	client := rpc.Client{Release: wire.V2405, Munge: munge.Client{Socket: silentMunge(t)}, Timeout: 50 * time.Millisecond}
	a.tell(&wire.TaskExit{Status: 0x300, Ranks: []uint32{0}})
	for range 3 {
		a.add(client, rpc.Peer{Addr: addr, Silent: true}, nil)
	}
	for i := range 2 * messagesMax { // more than a queue holds
		a.tell(&wire.TaskExit{Ranks: []uint32{uint32(i)}})
	}
	began := time.Now()
	a.end()
	if d := time.Since(began); d > attachedPatience {
		t.Errorf("the end has taken %v", d)
	}
	a.add(client, rpc.Peer{Addr: addr}, nil)
	a.tell(&wire.TaskExit{})
	if len(a.clients) != 0 || !strings.Contains(said.String(), "not told the ends of tasks any more") {
		t.Errorf("%d clients, and the log has %.300q", len(a.clients), said.String())
	}
}

// TestAttachedGone: clients that have gone take no memory, and however many come, few are kept.
func TestAttachedGone(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	a := attached{log: log}
	gone := make(chan struct{})
	for range 3 {
		a.add(rpc.Client{}, rpc.Peer{}, gone)
	}
	close(gone)
	a.sending.Wait()
	if len(a.clients) != 0 {
		t.Errorf("%d clients that have gone are kept", len(a.clients))
	}
	for range attachedMax + 10 {
		a.add(rpc.Client{}, rpc.Peer{}, nil)
	}
	if a.mu.Lock(); len(a.clients) != attachedMax {
		t.Errorf("%d clients are kept", len(a.clients))
	}
	a.mu.Unlock()
	a.end()
	if a.sending.Wait(); len(a.clients) != 0 {
		t.Errorf("after the end %d clients are kept", len(a.clients))
	}
}

// TestProgram is what sattach's verbose lines call a task.
func TestProgram(t *testing.T) {
	d := &daemon{spec: new(step.Spec)}
	if got := d.program(0); got != "" {
		t.Errorf("a step without a command has %q", got)
	}
	d.spec.Argv = []string{"sh", "-c"}
	if got := d.program(1); got != "sh" {
		t.Errorf("got %q", got)
	}
	d.spec.Apps = []step.App{{NTasks: 1, Argv: step.Raw([]string{"a"})}, {NTasks: 2, Argv: step.Raw([]string{"b"})}}
	if a, b := d.program(0), d.program(2); a != "a" || b != "b" {
		t.Errorf("got %q and %q", a, b)
	}
}
