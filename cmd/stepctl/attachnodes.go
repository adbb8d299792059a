package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
	"stepd/stepio/replay"
	"stepd/stepnet"
)

// there connects to the stepd of the first node of a step of several, by which all output
// goes, with the key that the step's head has for those who may see it.
func (a *attached) there(d *dialer, watch *stepapi.Watch) (*stepapi.Watched, *os.File, error) {
	client, err := d.client()
	if err != nil {
		return nil, nil, err
	}
	ref := &api.StepRef{JobId: a.rec.ID.Job, StepId: &a.rec.ID.Step}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	reply, err := client.Attach(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	spec := new(step.Spec)
	if err := json.Unmarshal(reply.Spec, spec); err != nil || spec.Layout == nil || len(spec.Layout.Nodes) == 0 {
		return nil, nil, fmt.Errorf("cannot parse noded's answer: %w", err)
	}
	conn, err := stepnet.DialWatcher(ctx, spec.Layout, reply.LauncherKey)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot see the output of step %s: %w", a.rec.ID, err)
	}
	watched, err := askThere(conn, watch)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("cannot see the output of step %s: %w", a.rec.ID, err)
	}
	far, output, err := joinPackets(conn)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	far.wait = func(ctx context.Context) (*step.Record, error) {
		return awaitRecord(ctx, client, a.rec.ID, sayGone)
	}
	a.conn = far
	return watched, output, nil
}

// askThere says what is to be seen, and hears what there is.
func askThere(conn net.Conn, watch *stepapi.Watch) (*stepapi.Watched, error) {
	b, err := json.Marshal(&stepapi.Msg{Type: stepapi.TypeWatch, Seq: watchSeq, Watch: watch})
	if err == nil {
		err = stepnet.WritePacket(conn, b)
	}
	if err == nil {
		b, err = stepnet.ReadPacket(conn, make([]byte, stepnet.PacketMax))
	}
	m := new(stepapi.Msg)
	if err == nil {
		err = json.Unmarshal(b, m)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w (%v)", step.ErrEnded, err)
	case m.Error == step.ErrEnded.Error():
		return nil, step.ErrEnded
	case m.Error != "" || m.Watched == nil:
		return nil, fmt.Errorf("%s", m.Error)
	}
	return m.Watched, nil
}

// farStepd is the connection to the stepd of another node.
type farStepd struct {
	conn   net.Conn
	local  *os.File
	ctx    context.Context
	cancel context.CancelFunc
	wait   func(ctx context.Context) (*step.Record, error)
}

// joinPackets passes the packets of a connection of bytes on to a socket that keeps them
// apart, as that of a stepd here does, and back.
func joinPackets(conn net.Conn) (*farStepd, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot show the step's output: %w", err)
	}
	f := &farStepd{conn: conn, local: os.NewFile(uintptr(pair[0]), "the step's output")}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	go func() { // ends with the connection
		defer f.local.Close()
		buf := make([]byte, stepnet.PacketMax)
		for {
			b, err := stepnet.ReadPacket(conn, buf)
			if err != nil {
				return
			}
			if _, err := f.local.Write(b); err != nil {
				return
			}
		}
	}()
	go func() { // ends with the socket
		buf := make([]byte, replay.FrameHead+replay.FrameMax)
		for {
			n, err := f.local.Read(buf)
			if err != nil || n == 0 || stepnet.WritePacket(conn, buf[:n]) != nil {
				return
			}
		}
	}()
	return f, os.NewFile(uintptr(pair[1]), "the step's output"), nil
}

// hear waits for the step's end: noded tells it, which may be gone for a while.
func (f *farStepd) hear() (*step.Record, error) { return f.wait(f.ctx) }

// Close ends both halves.
func (f *farStepd) Close() error {
	f.cancel()
	f.local.Close()
	return f.conn.Close()
}
