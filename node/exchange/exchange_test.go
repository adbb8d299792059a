package exchange

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

// fresh is the exchange of a job that stores its names nowhere.
func fresh() *Exchange {
	store := func(uint32, []state.Name) error { return nil }
	return New(&Config{NamesMax: 10, Store: store, Stopping: make(chan struct{})}, 0, nil)
}

func meetAsk(party string, ms int64, data string, parties ...string) *stepapi.Ask {
	return &stepapi.Ask{Do: stepapi.AskMeet, Name: []byte("m"), Party: party, Parties: parties, Port: []byte(data), WaitMS: ms}
}

func TestMeet(t *testing.T) {
	x := fresh()
	for round := range 3 { // of one name, one after the other
		var all sync.WaitGroup
		for _, party := range []string{"a", "b", "c"} {
			all.Go(func() {
				a, err := x.meet(context.Background(), meetAsk(party, 5000, fmt.Sprint(party, round), "a", "b", "c"))
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
	if len(x.meetings) > 0 {
		t.Errorf("%d meetings are left", len(x.meetings))
	}
}

func TestMeetAlone(t *testing.T) {
	x := fresh()
	a, err := x.meet(context.Background(), meetAsk("a", 10, "x", "a", "b"))
	if err != nil || a.Found || len(x.meetings) > 0 {
		t.Errorf("%+v, %v, %d meetings left", a, err, len(x.meetings))
	}
	for _, c := range []struct {
		ask  *stepapi.Ask
		want string
	}{
		{meetAsk("c", 1, "", "a", "b"), "must be one of them"},
		{meetAsk("a", 1, strings.Repeat("x", meetBytesMax+1), "a", "b"), "the limit is"},
		{&stepapi.Ask{Party: "a", Parties: []string{"a"}}, "a name of 0 bytes"},
	} {
		if _, err := x.meet(context.Background(), c.ask); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// Parties that name others than those who wait are told, and do not disturb them.
func TestMeetOthers(t *testing.T) {
	x := fresh()
	ctx, stop := context.WithCancel(context.Background())
	waits := make(chan error, 1)
	go func() {
		_, err := x.meet(ctx, meetAsk("a", 5000, "x", "a", "b"))
		waits <- err
	}()
	for {
		x.mu.Lock()
		there := len(x.meetings)
		x.mu.Unlock()
		if there > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := x.meet(ctx, meetAsk("b", 1, "", "b", "c")); err == nil || !strings.Contains(err.Error(), "the others want to meet") {
		t.Errorf("got %v", err)
	}
	stop()
	if err := <-waits; err != nil {
		t.Error(err)
	}
}

func TestAwaitName(t *testing.T) {
	x := fresh()
	ask := &stepapi.Ask{Name: []byte("n"), WaitMS: 5000}
	got := make(chan *stepapi.Answer, 1)
	go func() {
		got <- x.lookUp(context.Background(), ask)
	}()
	for _, name := range []string{"another", "n"} {
		if err := x.publish([]byte(name), []byte("port")); err != nil {
			t.Fatal(err)
		}
	}
	if a := <-got; !a.Found || string(a.Port) != "port" {
		t.Errorf("%+v", a)
	}
	ask = &stepapi.Ask{Name: []byte("other"), WaitMS: 10}
	if a := x.lookUp(context.Background(), ask); a.Found {
		t.Errorf("%+v", a)
	}
}

// What all meetings of a job hold is bounded together, and one that is refused
// leaves nothing.
func TestMeetingsAreBounded(t *testing.T) {
	x := fresh()
	third := strings.Repeat("x", meetBytesMax/3+1)
	for i := range 5 {
		ask := meetAsk("a", 1, third, "a", "b")
		ask.Name = []byte(fmt.Sprint(i))
		if _, err := x.join(ask); (err == nil) != (i < 2) {
			t.Errorf("meeting %d: %v", i, err)
		}
	}
	if len(x.meetings) != 2 {
		t.Errorf("%d meetings are left", len(x.meetings))
	}
	again := meetAsk("a", 1, third, "a", "b") // who comes again is counted once
	again.Name = []byte("0")
	if _, err := x.join(again); err != nil {
		t.Error(err)
	}
}
