package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"stepd/stepnet"
)

// All nodes meet, call each other and come to an end, by ports and by slurmd alone.
func TestGroup(t *testing.T) {
	for name, closed := range map[string]bool{"ports": false, "no ports": true} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t, 20)
			for i := range o.names {
				o.closed[i] = closed
			}
			groups := o.all()
			for i := range 3 {
				if err := fence(groups, fmt.Sprint("fence ", i), []byte("data")); err != nil {
					t.Fatal(err)
				}
			}
			large := bytes.Repeat([]byte("x"), channelWindow+1)
			if err := each(groups[18:], func(g *Group) error {
				got, err := g.Call(t.Context(), 3, "pong", large)
				if err == nil && !bytes.Equal(got, large) {
					err = errors.New("another answer came")
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			if err := finish(groups); err != nil {
				t.Error(err)
			}
			if said := o.logs("which is slower"); (len(said) == 19) != closed {
				t.Errorf("the log says of closed ports %q", said)
			}
			if left, _ := os.ReadDir(o.dir); len(left) > 0 {
				t.Errorf("%v is left", left)
			}
			if refused := o.logs("refused"); len(refused) > 0 {
				t.Errorf("refused: %q", refused)
			}
		})
	}
}

// Nodes that come one after the other, in any order, meet: none asks in vain.
func TestLate(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			o := newOffice(t, 3)
			o.limits.FanOut = 1
			groups := make([]*Group, 3)
			t.Cleanup(func() { closeAll(groups) })
			met := make(chan error, 3)
			for _, i := range order {
				groups[i] = o.start(i)
				go func() {
					_, err := groups[i].Allgather(t.Context(), "up", nil, nil)
					met <- err
				}()
				time.Sleep(20 * time.Millisecond) // so that who is early asks in vain
			}
			for range order {
				if err := <-met; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A node that never comes, and one that leaves before it has a link, are lost by name.
func TestNeverCome(t *testing.T) {
	for _, absent := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(absent), func(t *testing.T) {
			o := newOffice(t, 3)
			o.limits.FanOut, o.patience = 1, 300*time.Millisecond
			groups := make([]*Group, 3)
			t.Cleanup(func() { closeAll(groups) })
			for i := range groups {
				if i != absent {
					groups[i] = o.start(i)
				}
			}
			for range 2 {
				<-o.lost
			}
			for i := range groups {
				if i == absent {
					continue
				}
				err := o.loss(i)
				if lost, ok := errors.AsType[*stepnet.LostError](err); !ok || !strings.Contains(err.Error(), "has not come within 300ms") || lost.Node == i {
					t.Errorf("node %d has lost %v", i, err)
				}
			}
		})
	}
}

// A daemon that leaves before it has its links says so to those that wait for it.
func TestGone(t *testing.T) {
	o := newOffice(t, 2)
	o.set(o.closed, 0, true)
	o.change = func(from, to int, data []byte) [][]byte {
		if m, err := parseMail(data); err != nil || m.kind != kindGone {
			return nil // all but the word that it has gone
		}
		return [][]byte{data}
	}
	groups := o.all()
	groups[1].Close(t.Context(), "the launch has failed")
	groups[1] = nil
	<-o.lost
	if err := o.loss(0); !strings.Contains(err.Error(), `lost node "n1"`) || !strings.Contains(err.Error(), "it has left: the launch has failed") {
		t.Errorf("got %v", err)
	}
}

// A daemon that takes an earlier one's place is joined in its place.
func TestAgain(t *testing.T) {
	o := newOffice(t, 2)
	first := o.start(1) // and no node 0
	o.set(o.cut, 1, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	first.Close(ctx, "again")
	o.set(o.cut, 1, false)
	groups := o.all()
	// What the first one would have said comes now, and late.
	h := hello{between: groups[0].between(1), secret: first.secret, port: 1}
	token, _ := o.config(1).Hide(ctx, h.encode())
	m := mail{kind: kindHello, job: 7, step: 3, from: 1, to: 0, data: []byte(token)}
	if err := o.bring(t.Context(), 1, 0, m.encode()); err != nil {
		t.Fatal(err)
	}
	if err := fence(groups, "up", nil); err != nil {
		t.Error(err)
	}
}
