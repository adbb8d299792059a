package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
)

// askMax bounds the wait for a stepd's answer to Signal and Cancel.
const askMax = 10 * time.Second

// ask asks for something of which the answer says only that it is done.
func (f *follower) ask(ctx context.Context, m *stepapi.Msg) error {
	_, err := f.askFor(ctx, m)
	return err
}

// askFor connects to the step's socket as a tool, on behalf of a client that
// was authorised, and sends one request. It returns stepd's answer.
func (f *follower) askFor(ctx context.Context, m *stepapi.Msg) (*stepapi.Msg, error) {
	if !f.hasStepd() {
		return nil, errors.New("the step was not started yet")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askMax, fmt.Errorf("stepd does not answer within %v", askMax))
	defer cancel()
	c, err := stepapi.DialDir(f.n.files.stepsDir(), f.n.files.socketName(f.id))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer func() {
		if stop() {
			c.Close()
		}
	}()
	reply, err := converse(c, m)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		return nil, errors.New("stepd ended before it answered")
	}
	return reply, err
}

// signal sends a signal to the processes of the step that scope names.
func (f *follower) signal(ctx context.Context, signal int, scope string) error {
	return f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeSignal, Signal: signal, Scope: scope})
}

// askCancel asks stepd to end the step.
func (f *follower) askCancel(ctx context.Context, reason string) error {
	return f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeCancel, Text: reason})
}

func converse(c *stepapi.Conn, m *stepapi.Msg) (*stepapi.Msg, error) {
	if err := c.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleTool}); err != nil {
		return nil, err
	}
	m.Seq = 1
	if err := c.Send(m); err != nil {
		return nil, err
	}
	for {
		got, fds, err := c.Recv()
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
		switch {
		case got.Type == stepapi.TypeHello && got.Version != stepapi.Version:
			return nil, fmt.Errorf("stepd speaks version %d of its protocol, noded %d", got.Version, stepapi.Version)
		case got.Type == stepapi.TypeReply && got.Seq == m.Seq && got.Error != "":
			return nil, errors.New(got.Error)
		case got.Type == stepapi.TypeReply && got.Seq == m.Seq:
			return got, nil
		}
	}
}

// endingGrace is how long the end of a step may take to be heard whose stepd
// takes no request any more.
const endingGrace = 5 * time.Second

// cancelLater asks a step to end, without waiting for the answer: a loop that
// owns another step calls it.
func (n *Node) cancelLater(f *follower, reason string) {
	n.work.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			select {
			case <-n.stopping:
				cancel()
			case <-f.ended:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := f.cancel(ctx, reason)
		if err == nil {
			return
		}
		// A stepd that has just ended by itself refuses, and its end will be heard.
		select {
		case <-ctx.Done():
		case <-time.After(endingGrace):
			f.log.Errorf("cannot cancel step: %v", err)
		}
	})
}
