package stepnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"stepd/step/launch"
)

func TestAllgather(t *testing.T) {
	for _, tc := range []struct {
		nodes, fan int
		pair       func(testing.TB, int, int) (net.Conn, net.Conn)
	}{{1, 16, loopback}, {2, 16, loopback}, {17, 16, piped}, {40, 2, loopback}, {40, 2, piped}, {128, 16, loopback}} {
		t.Run(fmt.Sprintf("%d nodes by %d", tc.nodes, tc.fan), func(t *testing.T) {
			r := newRig(t, rigOptions{nodes: tc.nodes, limits: Limits{FanOut: tc.fan}, pair: tc.pair})
			r.each(func(i int, n *Node) error {
				for round := range 3 {
					got, err := n.Allgather(t.Context(), "fence", nil, fmt.Appendf(nil, "%d/%d", round, i))
					if err != nil {
						return err
					}
					if err := checkParts(got, tc.nodes, func(j int) string { return fmt.Sprintf("%d/%d", round, j) }); err != nil {
						return err
					}
				}
				return nil
			})
			r.finish()
		})
	}
}

func checkParts(got [][]byte, n int, want func(i int) string) error {
	if len(got) != n {
		return fmt.Errorf("got %d parts of %d", len(got), n)
	}
	for i, p := range got {
		if string(p) != want(i) {
			return fmt.Errorf("part %d is %.40q, not %q", i, p, want(i))
		}
	}
	return nil
}

// Gatherings of several names and of several nodes go on at once, and calls of one
// name meet in their order, also calls from several goroutines of one node.
func TestAllgatherSeveral(t *testing.T) {
	const nodes, rounds = 13, 20
	r := newRig(t, rigOptions{nodes: nodes, limits: Limits{FanOut: 3}})
	sets := [][]int{nil, {0, 1}, {4, 5, 6}, {3, 12}, {2, 7, 8, 11}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}
	r.each(func(i int, n *Node) error {
		errs := make(chan error, 2*len(sets)) // one for each goroutine
		var wg sync.WaitGroup
		for s, set := range sets {
			if set != nil && !slices.Contains(set, i) {
				continue
			}
			for _, name := range []string{"a", "b"} {
				wg.Go(func() {
					for round := range rounds {
						got, err := n.Allgather(t.Context(), name, set, fmt.Appendf(nil, "%s%d/%d/%d", name, s, round, i))
						members := set
						if set == nil {
							members = seq(nodes)
						}
						if err == nil {
							err = checkParts(got, len(members), func(j int) string { return fmt.Sprintf("%s%d/%d/%d", name, s, round, members[j]) })
						}
						if err != nil {
							errs <- fmt.Errorf("%s of %v: %w", name, set, err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
		close(errs)
		return <-errs
	})
	for i, n := range r.nodes {
		n.gatherings.mu.Lock()
		if len(n.going) != 0 || len(n.turns) != 0 || n.gatherings.held != 0 {
			t.Errorf("node %d still holds %d gatherings, %d turns, %d bytes", i, len(n.going), len(n.turns), n.gatherings.held)
		}
		n.gatherings.mu.Unlock()
	}
	r.finish()
}

func seq(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func TestAllgatherMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{nodes: 14, limits: Limits{FanOut: 3, Who: time.Minute}})
	absent := []int{1, 6, 12}
	r.each(func(i int, n *Node) error {
		if slices.Contains(absent, i) {
			return nil
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, errors.New("PMIx_Fence timeout"))
		defer cancel()
		_, err := n.Allgather(ctx, "fence", nil, nil)
		missing, ok := errors.AsType[*launch.MissingError](err)
		if !ok || !slices.Equal(missing.Nodes, absent) || missing.Cause.Error() != "PMIx_Fence timeout" {
			return fmt.Errorf("got %v, want that 1, 6 and 12 are missing", err)
		}
		return nil
	})
	// They come late: what the others have given is still there, and the next one
	// is met by all.
	r.each(func(i int, n *Node) error {
		if slices.Contains(absent, i) {
			if got, err := n.Allgather(t.Context(), "fence", nil, nil); err != nil || len(got) != 14 {
				return fmt.Errorf("late: %d parts, %v", len(got), err)
			}
		}
		got, err := n.Allgather(t.Context(), "fence", nil, fmt.Append(nil, i))
		if err != nil {
			return err
		}
		return checkParts(got, 14, func(i int) string { return fmt.Sprint(i) })
	})
	r.finish()
}

// Who gives a gathering up, as at the step's end, does not wait for a node that is cut off.
func TestAllgatherGivenUp(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 2, limits: Limits{Who: time.Hour}, late: []int{0}})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the step ends"))
	given := make(chan struct{})
	go func() {
		defer close(given)
		_, err := r.nodes[1].Allgather(ctx, "fence", nil, nil)
		if _, missing := errors.AsType[*launch.MissingError](err); err == nil || missing || !strings.Contains(err.Error(), "the step ends") {
			t.Errorf("got %v", err)
		}
	}()
	within(t, given, "its end")
}

func TestAllgatherLimit(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 5, limits: Limits{FanOut: 2, Gather: 1000}})
	r.each(func(i int, n *Node) error {
		_, err := n.Allgather(t.Context(), "x", nil, make([]byte, 250))
		if err == nil || !strings.Contains(err.Error(), "1000 bytes") {
			return fmt.Errorf("got %v, want the limit", err)
		}
		got, err := n.Allgather(t.Context(), "x", nil, make([]byte, 200))
		if err != nil || len(got) != 5 {
			return fmt.Errorf("the next one: %d parts, %v", len(got), err)
		}
		if _, err := n.Allgather(t.Context(), "x", []int{i}, make([]byte, 1001)); err == nil {
			return errors.New("1001 bytes were taken")
		}
		return nil
	})
	r.finish()
}

func TestAllgatherBadNodes(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3})
	for _, nodes := range [][]int{{}, {0, 0}, {1, 0}, {0, 3}, {-1, 0}, {1, 2}} {
		if _, err := r.nodes[0].Allgather(t.Context(), "x", nodes, nil); err == nil {
			t.Errorf("nodes %v were taken", nodes)
		}
	}
	r.finish()
}

func TestCall(t *testing.T) {
	t.Parallel()
	const nodes = 14
	r := newRig(t, rigOptions{nodes: nodes, limits: Limits{FanOut: 3}})
	big := bytes.Repeat([]byte("x"), 64<<10)
	r.each(func(i int, n *Node) error {
		if i%2 == 0 { // the others answer only when they have been asked
			n.Handle("echo", r.echo(i))
		}
		for to := range nodes {
			if to == i+1 && i%2 == 0 && to < nodes {
				r.nodes[to].Handle("echo", r.echo(to))
			}
			got, err := n.Call(t.Context(), to, "echo", big)
			if want := fmt.Sprintf("%d from %d: ", to, i); err != nil || !strings.HasPrefix(string(got), want) || len(got) != len(want)+len(big) {
				return fmt.Errorf("node %d answered %.40q, %v", to, got, err)
			}
			if _, err := n.Call(t.Context(), to, "echo", nil); err == nil || !strings.Contains(err.Error(), "nothing to echo") {
				return fmt.Errorf("an error became %v", err)
			}
		}
		return nil
	})
	r.finish()
}

func (r *rig) echo(i int) Answer {
	return func(_ context.Context, from int, data []byte) ([]byte, error) {
		if len(data) == 0 {
			return nil, errors.New("nothing to echo")
		}
		return append(fmt.Appendf(nil, "%d from %d: ", i, from), data...), nil
	}
}

// A call ends with its caller's time, and what is asked beyond the limits is
// refused by name.
func TestCallLimits(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 2, limits: Limits{Message: 100, Calls: 1}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.nodes[0].Call(ctx, 1, "nobody", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	if _, err := r.nodes[0].Call(t.Context(), 1, "x", make([]byte, 101)); err == nil || !strings.Contains(err.Error(), "at most 100") {
		t.Errorf("got %v, want the limit", err)
	}
	r.nodes[1].Handle("x", func(context.Context, int, []byte) ([]byte, error) { return make([]byte, 101), nil })
	if _, err := r.nodes[0].Call(t.Context(), 1, "x", nil); err == nil || !strings.Contains(err.Error(), "at most 100") {
		t.Errorf("got %v, want the limit of the answer", err)
	}
	if _, err := r.nodes[0].Call(t.Context(), 2, "x", nil); err == nil {
		t.Error("node 2 of 2 was called")
	}
	r.finish()
}

// BenchmarkAllgather is a fence of 64 nodes that give 64 KiB each, all of it in
// one process: 64 times the work of one node.
func BenchmarkAllgather(b *testing.B) {
	for _, size := range []int{0, 64 << 10} {
		b.Run(fmt.Sprintf("64 nodes, %d bytes", size), func(b *testing.B) {
			r := newRig(b, rigOptions{nodes: 64})
			data := make([]byte, size)
			once := func(_ int, n *Node) error {
				_, err := n.Allgather(b.Context(), "fence", nil, data)
				return err
			}
			r.each(once) // all are connected
			b.SetBytes(int64(64 * 64 * size))
			for b.Loop() {
				r.each(once)
			}
		})
	}
}
