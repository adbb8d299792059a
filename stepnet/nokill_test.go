package stepnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// With --no-kill the nodes that are left go on: what they have to do with a lost one
// fails by its name, and all else goes on as before, whatever the tree would have been.
func TestGoOnWithout(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 10, limits: Limits{FanOut: 3}, noKill: true})
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	var dead []*Node
	for _, victim := range []int{1, 9} { // with three branches 1 would have had some below it
		begun := make(chan error, 2)
		begin := func(call func() error) { go func() { begun <- call() }() }
		begin(func() error { _, err := r.nodes[2].Allgather(t.Context(), "before", nil, nil); return err })
		begin(func() error { _, err := r.nodes[2].Call(t.Context(), victim, "nobody answers", nil); return err })
		dead = append(dead, r.nodes[victim])
		go r.nodes[victim].kill()
		r.nodes[victim] = nil
		for range 2 {
			if lost, ok := errors.AsType[*LostError](<-begun); !ok {
				t.Errorf("what waited for node %d: %v", victim, lost)
			}
		}
		left := alive(r)
		r.each(func(_ int, n *Node) error {
			for range 2 { // the second one does not wait for the first
				_, err := n.Allgather(t.Context(), "fence", nil, nil)
				if _, ok := errors.AsType[*LostError](err); !ok {
					return fmt.Errorf("the gathering of all ended with %v", err)
				}
			}
			if _, err := n.Call(t.Context(), victim, "x", nil); err == nil {
				return errors.New("the lost node was called")
			}
			got, err := n.Allgather(t.Context(), "left", left, fmt.Append(nil, n.self))
			if err != nil {
				return err
			}
			if err := checkParts(got, len(left), func(i int) string { return fmt.Sprint(left[i]) }); err != nil {
				return err
			}
			n.Handle("hello", func(context.Context, int, []byte) ([]byte, error) { return fmt.Append(nil, n.self), nil })
			answer, err := n.Call(t.Context(), left[len(left)-1], "hello", nil)
			if err == nil && string(answer) != fmt.Sprint(left[len(left)-1]) {
				err = fmt.Errorf("the answer is %q", answer)
			}
			return err
		})
	}
	r.finish()
	for i, s := range r.steps {
		if r.nodes[i] != nil && !slices.Equal(s.gone, []int{1, 9}) {
			t.Errorf("node %d heard of the loss of %v", i, s.gone)
		}
	}
	for _, n := range dead {
		n.kill()
	}
}

func alive(r *rig) (left []int) {
	for i, n := range r.nodes {
		if n != nil {
			left = append(left, i)
		}
	}
	return left
}

// What the others write still comes to the launcher, and the step comes to its end.
func TestLauncherGoesOnWithout(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, launcher: true, noKill: true})
	s := &collector{}
	a := r.dial(s)
	within(t, r.steps[2].readyc, "the launcher")
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	dead := r.nodes[1]
	dead.kill()
	r.nodes[1] = nil
	within(t, r.steps[0].lostc, "the loss")
	out, in := pipe(t, 0)
	r.nodes[2].Output(1, 2, out)
	if _, err := in.WriteString("still here"); err != nil {
		t.Fatal(err)
	}
	in.Close()
	r.finish()
	if err := a.Wait(); err != nil {
		t.Error(err)
	}
	a.Close()
	if got := s.streams["1/2"]; got == nil || got.String() != "still here" {
		t.Errorf("got %v", got)
	}
}

// Without node 0, by which all hear each other, the others are alone: what is between
// them fails, their input ends, and their steps come to an end by themselves.
func TestAloneWithoutFirst(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, launcher: true, noKill: true, inputNodes: []int{1}})
	a := r.dial(&collector{})
	within(t, r.steps[1].readyc, "the launcher")
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	read, write := pipe(t, 1)
	r.nodes[1].Input([]*os.File{write})
	dead := r.nodes[0]
	dead.kill()
	r.nodes[0] = nil
	if n, err := read.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the input: %d bytes, %v", n, err)
	}
	r.each(func(_ int, n *Node) error {
		_, err := n.Allgather(t.Context(), "fence", []int{1, 2}, nil)
		if lost, ok := errors.AsType[*LostError](err); !ok || lost.Node != 0 {
			return fmt.Errorf("the gathering ended with %v", err)
		}
		return nil
	})
	if err := a.Wait(); err == nil {
		t.Error("the launcher heard of an orderly end")
	}
	a.Close()
	r.finish()
}

// A node that is lost while the others wait for it to come is one that is lost.
func TestNeverComesToNoKill(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, limits: Limits{Connect: 2 * time.Second}, late: []int{2}, noKill: true})
	within(t, r.steps[1].lostc, "the loss")
	if _, err := r.nodes[1].Call(t.Context(), 2, "x", nil); err == nil {
		t.Error("the lost node was called")
	}
	r.finish()
}
