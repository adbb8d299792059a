package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"stepd/api/stepapi"
	"stepd/node/state"
)

// meeters is a node with nothing but a registry.
func meeters() (*Node, *job) {
	return &Node{reg: &registry{}, stopping: make(chan struct{})}, &job{}
}

func meetAsk(party string, ms int64, data string, parties ...string) *stepapi.Ask {
	return &stepapi.Ask{Do: stepapi.AskMeet, Name: []byte("m"), Party: party, Parties: parties, Port: []byte(data), WaitMS: ms}
}

func TestMeet(t *testing.T) {
	n, j := meeters()
	for round := range 3 { // of one name, one after the other
		var all sync.WaitGroup
		for _, party := range []string{"a", "b", "c"} {
			all.Go(func() {
				a, err := n.meet(context.Background(), j, meetAsk(party, 5000, fmt.Sprint(party, round), "a", "b", "c"))
				if err != nil || !a.Found || len(a.Parts) != 3 {
					t.Errorf("%s: %+v, %v", party, a, err)
					return
				}
				for i, p := range a.Parts {
					if want := fmt.Sprint(string(rune('a'+i)), round); p.Key != want[:1] || string(p.Value) != want {
						t.Errorf("%s: part %d is %s %q, want %q", party, i, p.Key, p.Value, want)
					}
				}
			})
		}
		all.Wait()
	}
	if len(j.meetings) > 0 {
		t.Errorf("%d meetings are left", len(j.meetings))
	}
}

func TestMeetAlone(t *testing.T) {
	n, j := meeters()
	a, err := n.meet(context.Background(), j, meetAsk("a", 10, "x", "a", "b"))
	if err != nil || a.Found || len(j.meetings) > 0 {
		t.Errorf("%+v, %v, %d meetings left", a, err, len(j.meetings))
	}
	for _, c := range []struct {
		ask  *stepapi.Ask
		want string
	}{
		{meetAsk("c", 1, "", "a", "b"), "must be one of them"},
		{meetAsk("a", 1, strings.Repeat("x", meetBytesMax+1), "a", "b"), "the limit is"},
		{&stepapi.Ask{Party: "a", Parties: []string{"a"}}, "a name of 0 bytes"},
	} {
		if _, err := n.meet(context.Background(), j, c.ask); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// Parties that name others than those who wait are told, and do not disturb them.
func TestMeetOthers(t *testing.T) {
	n, j := meeters()
	ctx, stop := context.WithCancel(context.Background())
	waits := make(chan error, 1)
	go func() {
		_, err := n.meet(ctx, j, meetAsk("a", 5000, "x", "a", "b"))
		waits <- err
	}()
	for {
		n.reg.mu.Lock()
		there := len(j.meetings)
		n.reg.mu.Unlock()
		if there > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := n.meet(ctx, j, meetAsk("b", 1, "", "b", "c")); err == nil || !strings.Contains(err.Error(), "the others want to meet") {
		t.Errorf("got %v", err)
	}
	stop()
	if err := <-waits; err != nil {
		t.Error(err)
	}
}

func TestAwaitName(t *testing.T) {
	n, j := meeters()
	ask := &stepapi.Ask{Name: []byte("n"), WaitMS: 5000}
	got := make(chan *stepapi.Answer, 1)
	go func() {
		a, _ := n.awaitName(context.Background(), j, ask)
		got <- a
	}()
	for {
		n.reg.mu.Lock()
		waits := j.named != nil
		n.reg.mu.Unlock()
		if waits {
			break
		}
		time.Sleep(time.Millisecond)
	}
	n.reg.mu.Lock()
	j.Names = []state.Name{{Name: []byte("n"), Port: []byte("port")}}
	close(j.named)
	j.named = nil
	n.reg.mu.Unlock()
	if a := <-got; !a.Found || string(a.Port) != "port" {
		t.Errorf("%+v", a)
	}
	ask = &stepapi.Ask{Name: []byte("other"), WaitMS: 10}
	if a, err := n.awaitName(context.Background(), j, ask); err != nil || a.Found {
		t.Errorf("%+v, %v", a, err)
	}
}

// What all meetings of a job hold is bounded together, and one that is refused
// leaves nothing.
func TestMeetingsAreBounded(t *testing.T) {
	n, j := meeters()
	third := strings.Repeat("x", meetBytesMax/3+1)
	for i := range 5 {
		ask := meetAsk("a", 1, third, "a", "b")
		ask.Name = []byte(fmt.Sprint(i))
		if _, err := n.reg.joinMeeting(j, ask); (err == nil) != (i < 2) {
			t.Errorf("meeting %d: %v", i, err)
		}
	}
	if len(j.meetings) != 2 {
		t.Errorf("%d meetings are left", len(j.meetings))
	}
	again := meetAsk("a", 1, third, "a", "b") // who comes again is counted once
	again.Name = []byte("0")
	if _, err := n.reg.joinMeeting(j, again); err != nil {
		t.Error(err)
	}
}
