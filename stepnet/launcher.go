package stepnet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"stepd/step"
)

// LauncherConfig is what the launcher of a step must know to reach it.
type LauncherConfig struct {
	ID     step.ID
	Layout *step.Layout
	// Key is the private key whose public half is the layout's Launcher.
	Key    []byte
	Sink   Sink
	Limits Limits
}

// Sink takes what the step's nodes tell. Its methods may wait: the nodes then
// wait as well. Output is called for one piece of a stream at a time, Record for one
// piece of words.
type Sink interface {
	// Output is what rank wrote on fd, or that there is no more of it. data is valid
	// during the call alone.
	Output(fd, rank int, data []byte, end bool)
	// Record are the words of one node, which are the sink's to keep.
	Record(node int, words []byte)
}

// Launcher is the launcher's end: make it with Dial. Its methods may be called
// from any goroutine.
type Launcher struct {
	cfg LauncherConfig
	l   *link

	inputGone chan struct{} // closed when nobody reads input any more
	once      sync.Once
	over      chan struct{} // closed when the last byte was taken
	wg        sync.WaitGroup
}

// Dial connects to node 0's stepd. It waits for that as long as it may take: for
// Limits.Connect, or until ctx ends.
func Dial(ctx context.Context, cfg LauncherConfig) (*Launcher, error) {
	lim := limitsOf(cfg.Limits, cfg.Layout)
	ctx, cancel := context.WithTimeoutCause(ctx, lim.Connect, fmt.Errorf("it did not answer within %v", lim.Connect))
	defer cancel()
	to := cfg.Layout.Nodes[0]
	a := &Launcher{cfg: cfg, inputGone: make(chan struct{}), over: make(chan struct{})}
	a.l = newLink(0, lim.frameMax(), a.receive, func(*link, error) {})
	if err := a.join(ctx, lim, to); err != nil {
		return nil, fmt.Errorf("cannot connect to the stepd of node %q at %s: %w", to.Name, to.Addr, err)
	}
	return a, nil
}

func (a *Launcher) join(ctx context.Context, lim Limits, to step.LayoutNode) error {
	id, err := identity(a.cfg.Key)
	if err != nil {
		return err
	}
	m, conn, err := dial(ctx, to.Addr, id, to.Key, lim.Refused)
	if err != nil {
		return err
	}
	mine := hello{version: protocol, job: wire(a.cfg.ID.Job), step: wire(a.cfg.ID.Step), from: launcherID, fan: lim.FanOut, nodes: len(a.cfg.Layout.Nodes)}
	watchKernel(m.Conn)
	a.consume()
	if err = greet(a.l, m, conn, mine, true, lim.Handshake); err != nil {
		a.l.fail(err) // which ends consume
	}
	return err
}

// consume hands what comes to the sink. When all of it was taken, the step is
// told that it is over.
func (a *Launcher) consume() {
	var left sync.WaitGroup
	whole := make([]bool, channels)
	for c := chanStdout; c < channels; c++ {
		left.Add(1)
		a.wg.Go(func() {
			defer left.Done()
			whole[c] = a.l.in[c].consume(a.use, a.l.credit(c))
		})
	}
	a.wg.Go(func() {
		left.Wait()
		if whole[chanStdout] && whole[chanStderr] && whole[chanRecord] {
			a.l.push(plainFrame(kindOver))
			a.l.shut()
			close(a.over)
		}
	})
}

// use takes one frame, which receive has looked at.
func (a *Launcher) use(i item) {
	if i.kind == kindOutput {
		if o, err := parseOutput(i.body); err == nil {
			a.cfg.Sink.Output(o.fd, o.rank, o.data, o.end)
		}
		return
	}
	if node, words, err := parseWords(i.body); err == nil {
		a.cfg.Sink.Record(node, words)
	}
}

// receive takes a frame of node 0.
func (a *Launcher) receive(l *link, k kind, body []byte) error {
	switch k {
	case kindOutput, kindRecord:
		return l.stream(k, body)
	case kindInputClosed:
		a.once.Do(func() { close(a.inputGone) })
	case kindEnded:
	case kindDone:
		l.finishChannels(chanStdout)
	default:
		return errUnasked
	}
	return nil
}

// ErrInputClosed says that no task reads the input any more.
var ErrInputClosed = errors.New("no task reads the input any more")

// Input sends data to the tasks that read the input. It waits for them. No data
// is the end.
func (a *Launcher) Input(data []byte) error {
	for first := true; first || len(data) > 0; first = false {
		piece := data[:min(len(data), chunk)]
		data = data[len(piece):]
		select {
		case <-a.inputGone:
			return ErrInputClosed
		default:
		}
		f := wordsFrame(kindInput, b2i(len(piece) == 0), piece)
		if !a.l.out[chanInput].take(len(f)) {
			return a.err()
		}
		a.l.pushBulk(f)
	}
	return nil
}

// Order sends words to all of the step's nodes, where Handler.Ordered hears them.
func (a *Launcher) Order(words []byte) error {
	if len(words) > wordsMax {
		return fmt.Errorf("cannot order %d bytes: at most %d", len(words), wordsMax)
	}
	if a.l.isGone() {
		return a.err()
	}
	f := append(newFrame(kindOrder, len(words)).b, words...)
	a.l.push((&encoder{f}).done())
	return nil
}

func (a *Launcher) err() error {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return fmt.Errorf("the connection to node %q's stepd was lost: %w", a.cfg.Layout.Nodes[0].Name, a.l.err)
}

// Wait returns nil when the step is over and the sink has taken the last byte, or
// why the connection ended before.
func (a *Launcher) Wait() error {
	select {
	case <-a.over:
		return nil
	case <-a.l.gone:
	}
	a.wg.Wait() // what has come is taken
	select {
	case <-a.over:
		return nil
	default:
		return a.err()
	}
}

// Close ends the connection. Without Wait before it, the step is cancelled or
// writes to nobody.
func (a *Launcher) Close() {
	a.l.shut()
	t := time.NewTimer(flushTime)
	defer t.Stop()
	select {
	case <-a.l.gone:
	case <-t.C:
	}
	a.l.fail(errOver)
	a.l.wg.Wait()
	a.wg.Wait()
}
