package node

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

func open(turn <-chan struct{}) bool {
	select {
	case <-turn:
		return true
	default:
		return false
	}
}

// TestTurns: a user alone has all turns; another one's launch waits for one of them to end at most,
// and from then on each has a share, until the other one has been away for a second.
func TestTurns(t *testing.T) {
	const alice, bob = 7001, 7002
	now := time.Now()
	ts := newTurns(4)
	var bobs []<-chan struct{}
	for range 8 {
		bobs = append(bobs, ts.ask(bob, now))
	}
	begun := func(want int) {
		t.Helper()
		n := 0
		for _, turn := range bobs {
			if open(turn) {
				n++
			}
		}
		if n != want {
			t.Fatalf("%d launches of bob's have begun, want %d", n, want)
		}
	}
	begun(4)
	first, second, third := ts.ask(alice, now), ts.ask(alice, now), ts.ask(alice, now)
	if open(first) {
		t.Fatal("five turns of four")
	}
	ts.give(bob, now)
	ts.give(bob, now)
	begun(4)
	if !open(first) || !open(second) || open(third) {
		t.Fatal("alice has not her half")
	}
	ts.give(bob, now)
	begun(5) // his half is two
	ts.give(alice, now)
	if !open(third) {
		t.Fatal("alice's third launch waits")
	}
	ts.give(alice, now)
	ts.give(alice, now)
	begun(5)
	ts.give(bob, now.Add(2*turnMemory))
	begun(8) // he is alone again
	waits, last := ts.ask(bob, now), ts.ask(bob, now)
	ts.leave(bob, waits, now)
	ts.give(bob, now)
	if open(waits) || !open(last) {
		t.Error("a launch that waits no more has a turn")
	}
	next := ts.ask(bob, now)
	ts.leave(bob, last, now)
	if !open(next) {
		t.Error("a launch that was given a turn and has left keeps it")
	}
}

// TestCancelBeforeTurn: a launch that is cancelled waits for its turn no longer.
func TestCancelBeforeTurn(t *testing.T) {
	tn := fresh(t)
	tn.turns = newTurns(1)
	<-tn.turns.ask(1001, time.Now()) // and keeps it
	answer := make(chan error, 1)
	go func() {
		_, err := tn.svc.Run(as(1000), runRequest(request("wait")))
		answer <- err
	}()
	waits := func() bool {
		tn.turns.mu.Lock()
		defer tn.turns.mu.Unlock()
		return slices.ContainsFunc(tn.turns.users, func(u *turnUser) bool { return u.uid == 1000 && len(u.waiting) > 0 })
	}
	tn.eventually("the launch", waits)
	id := tn.reg.followers()[0].id
	for range 2 {
		if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil && api.CodeOf(err) != api.FailedPrecondition {
			t.Error(err) // else it has ended already
		}
	}
	if err := <-answer; api.CodeOf(err) != api.Aborted {
		t.Errorf("the launch: %v", err)
	}
	if rec := tn.wait(id); rec.State != step.Cancelled || waits() {
		t.Errorf("the step is %s, and its launch waits: %v", rec.State, waits())
	}
	tn.nothingLeft(id)
}

// TestTurnsRandom: whatever the order, no more turns are out than there are, and no user waits
// while there is one and the user has less than a share.
func TestTurnsRandom(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	now := time.Now()
	all := 1 + rnd.IntN(8)
	ts := newTurns(all)
	waiting, running := map[uint32][]<-chan struct{}{}, map[uint32]int{}
	asked, begun := 0, 0
	for range 20000 {
		uid := uint32(rnd.IntN(6))
		now = now.Add(time.Duration(rnd.IntN(300)) * time.Millisecond)
		switch {
		case rnd.IntN(2) == 0 && asked < 10000:
			waiting[uid] = append(waiting[uid], ts.ask(uid, now))
			asked++
		case running[uid] > 0:
			running[uid]--
			ts.give(uid, now)
		}
		out, idle := 0, 0
		for uid := range uint32(6) {
			for len(waiting[uid]) > 0 && open(waiting[uid][0]) {
				waiting[uid] = waiting[uid][1:]
				running[uid]++
				begun++
			}
			out += running[uid]
			if len(waiting[uid]) > 0 && running[uid] == 0 {
				idle++
			}
		}
		if out > all || idle > 0 && out < all {
			t.Fatalf("seed %d: %d turns of %d are out, and %d users have none", seed, out, all, idle)
		}
	}
	for uid := uint32(0); begun < asked; uid = (uid + 1) % 6 { // all who wait come to their turn
		if running[uid] == 0 {
			continue
		}
		running[uid]--
		ts.give(uid, now)
		for uid := range uint32(6) {
			for len(waiting[uid]) > 0 && open(waiting[uid][0]) {
				waiting[uid] = waiting[uid][1:]
				running[uid]++
				begun++
			}
		}
	}
}
