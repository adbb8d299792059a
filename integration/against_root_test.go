package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

const (
	// servedWithin is how long another user's step may take during an attack, from its client's
	// start to its end.
	servedWithin = 10 * time.Second
	// servedSteps are how many are measured during each attack: over 100 in all.
	servedSteps = 15
)

// attack is what an ordinary user, bob, does to the node until ctx ends.
type attack struct {
	name string
	do   func(ctx context.Context, t *testing.T, n *node)
}

func attacks(t *testing.T, page string) []attack {
	step := runBody(request(t, []string{"true"}, []string{"PATH=/bin"}, func(doc map[string]any) {
		doc["uid"], doc["overcommit"] = bob.uid, true
	}))
	return []attack{
		{"lists all steps", asks(16, "list", []byte(`{"schema":1,"all":true}`))},
		{"reserves steps", asks(16, "reserve", step)},
		{"follows events", asks(64, "events", []byte(`{"schema":1,"job_id":1,"step_id":0,"follow":true}`))},
		{"sends what is no request", asks(16, "run", []byte("garbage"))},
		{"opens connections", connects((*node).asBob)},
		{"connects as many uids", subordinates},
		{"connects elsewhere as they", elsewhere}, // noded has no part in that: the rest is the kernel's
		{"adopts processes", asks(16, "adopt", fmt.Appendf(nil, `{"schema":1,"pid":%d,"job_id":1}`, os.Getpid()))},
		{"is silent at the metrics", connects(func(_ *node, ctx context.Context) (net.Conn, error) { return halfAsked(ctx, page) })},
		{"fills PMIx folders", commands(2, "run", "--overcommit", "--mpi=pmix", "sh", "-c", greedy)},
		{"runs steps", commands(4, "run", "--overcommit", "true")},
		{"only computes", computes(4)}, // noded has no part in that: the rest is the scheduler's
		{"runs a fork bomb", commands(1, "run", "bash", "-c", "exec 2>&-; ulimit -u 400; f() { f & f; }; f & sleep 1")},
	}
}

// TestRootOneUserAgainstAll: while one user attacks the node in each of these ways, every step
// of another user is served. AGAINST is how long each attack lasts at least; the times are
// printed beside the calm ones.
func TestRootOneUserAgainstAll(t *testing.T) {
	testkit.RequireRoot(t)
	var least time.Duration
	if text := os.Getenv("AGAINST"); text != "" {
		var err error
		least, err = time.ParseDuration(text)
		must(t, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	must(t, err)
	page := l.Addr().String()
	must(t, l.Close())
	n := startNode(t, site{Slurm: quickKill, Stepd: "MetricsListen=" + page + "\n"})
	root := n.web(t)
	calm := serveSteps(t, n, least)
	t.Logf("%-26s %s", "calm", calm)
	for _, a := range attacks(t, page) {
		t.Run(a.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				a.do(ctx, t, n)
			}()
			took := serveSteps(t, n, least)
			cancel()
			<-done
			t.Logf("%-26s %s, %.1f and %.1f times the calm ones", a.name, took, took.of(50)/calm.of(50), took.of(99)/calm.of(99))
			// A request may come to its end after its client's.
			eventually(t, callTimeout, "the end of what bob has begun", func() error {
				left := n.ps(t)
				for _, d := range left {
					_, _ = post(t.Context(), root, "cancel", fmt.Appendf(nil, `{"schema":1,"job_id":%d}`, d.JobID)) // it may have ended
				}
				if len(left) > 0 {
					return fmt.Errorf("%d steps", len(left))
				}
				return nil
			})
			n.idle(t)
			n.checkClean(t)
		})
	}
	n.serves(t)
}

// times are how long steps took, in order.
type times []time.Duration

// of is a percentile in milliseconds.
func (ts times) of(percent int) float64 {
	return ts[(len(ts)-1)*percent/100].Seconds() * 1000
}

func (ts times) String() string {
	return fmt.Sprintf("%d steps, p50 %.1f ms, p99 %.1f ms", len(ts), ts.of(50), ts.of(99))
}

// serveSteps runs steps as another user, one after the other.
func serveSteps(t *testing.T, n *node, least time.Duration) (took times) {
	t.Helper()
	for began := time.Now(); len(took) < servedSteps || time.Since(began) < least; {
		start := time.Now()
		r := n.ctl(t, "run", "--overcommit", "true") // the CPUs are whose they are
		d := time.Since(start)
		if r.code != 0 || d > servedWithin*time.Duration(testkit.Slower()) {
			t.Fatalf("another user's step took %v: %v", d, r)
		}
		took = append(took, d)
	}
	slices.Sort(took)
	return took
}

// asBob connects to noded as bob.
func (n *node) asBob(ctx context.Context) (net.Conn, error) {
	runtime.LockOSThread() // of which the user is
	defer runtime.UnlockOSThread()
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(bob.uid), same); errno != 0 {
		return nil, errno
	}
	defer unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same)
	return new(net.Dialer).DialContext(ctx, "unix", n.socket())
}

// asks sends a request again and again, on so many connections at once.
func asks(lanes int, verb string, body []byte) func(context.Context, *testing.T, *node) {
	return func(ctx context.Context, t *testing.T, n *node) {
		var wg sync.WaitGroup
		for range lanes {
			wg.Go(func() {
				client := web(func(ctx context.Context) (net.Conn, error) { return n.asBob(ctx) })
				for ctx.Err() == nil {
					short, cancel := context.WithTimeout(ctx, time.Second)
					_, _ = post(short, client, verb, body) // a refusal is what noded may answer
					cancel()
				}
				client.CloseIdleConnections()
			})
		}
		wg.Wait()
	}
}

// connects holds as many connections as it is let, and begins anew each second.
func connects(dial func(*node, context.Context) (net.Conn, error)) func(context.Context, *testing.T, *node) {
	return func(ctx context.Context, _ *testing.T, n *node) {
		for ctx.Err() == nil {
			var open []net.Conn
			short, cancel := context.WithTimeout(ctx, time.Second)
			for short.Err() == nil && len(open) < 2000 {
				if c, err := dial(n, short); err == nil {
					open = append(open, c)
				}
			}
			<-short.Done()
			cancel()
			for _, c := range open {
				c.Close()
			}
		}
	}
}

// halfAsked connects to an address, and sends a part of a request and its end.
func halfAsked(ctx context.Context, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	// Without linger its port is free again when it is closed.
	err = tcp.SetLinger(0)
	if err == nil {
		_, err = io.WriteString(tcp, "GET /metr")
	}
	if err == nil {
		err = tcp.CloseWrite()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// subordinates connects as one subordinate uid after the other (subuid(5)), and holds some of the
// connections.
func subordinates(ctx context.Context, t *testing.T, n *node) { connectsTo(ctx, t, n.socket()) }

// elsewhere does the same to a socket that is not noded's.
func elsewhere(ctx context.Context, t *testing.T, n *node) {
	l, err := net.Listen("unix", filepath.Join(n.wd, "elsewhere"))
	must(t, err)
	must(t, os.Chmod(filepath.Join(n.wd, "elsewhere"), 0o777))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	connectsTo(ctx, t, l.Addr().String())
	l.Close()
}

func connectsTo(ctx context.Context, t *testing.T, socket string) {
	const held = 32
	var next atomic.Uint32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var open []net.Conn
			for ctx.Err() == nil {
				c, err := connectAs(socket, 700000+next.Add(1)%(1<<16))
				if err != nil {
					t.Error(err)
					break
				}
				if open = append(open, c); len(open) > held {
					open[0].Close()
					open = open[1:]
				}
			}
			for _, c := range open {
				c.Close()
			}
		})
	}
	wg.Wait()
}

// computes keeps so many processes busy, which have nothing to do with noded.
func computes(lanes int) func(context.Context, *testing.T, *node) {
	return func(ctx context.Context, t *testing.T, _ *node) {
		var wg sync.WaitGroup
		for range lanes {
			cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: bob.uid, Gid: bob.gid}}
			wg.Go(func() { _ = cmd.Run() }) // it is killed
		}
		wg.Wait()
	}
}

// commands runs stepctl again and again, so many at once.
func commands(lanes int, args ...string) func(context.Context, *testing.T, *node) {
	return func(ctx context.Context, _ *testing.T, n *node) {
		var wg sync.WaitGroup
		for range lanes {
			wg.Go(func() {
				for ctx.Err() == nil {
					cmd := exec.CommandContext(ctx, n.bin, args...)
					cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "NODED_SOCKET=" + n.socket()}
					cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: bob.uid, Gid: bob.gid}}
					_ = cmd.Run() // it is refused, or killed
				}
			})
		}
		wg.Wait()
	}
}
