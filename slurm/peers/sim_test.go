package peers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"stepd/stepnet"
)

// TestSimulation has so many daemons in this process join, meet and end: PEERS= of them (100),
// with 1,000 a run prints how a fence grows with the tree's depth. DISTANCE= is how long each
// frame is under way (0): all daemons share this machine's processors, as nodes do not.
func TestSimulation(t *testing.T) {
	most := 100
	distance, _ := time.ParseDuration(os.Getenv("DISTANCE"))
	if n, err := strconv.Atoi(os.Getenv("PEERS")); err == nil {
		most = n
	}
	for _, n := range []int{2, 10, 17, 100, 273, 1000} {
		if n > most {
			break
		}
		o := newOffice(t, n)
		o.distance = distance
		began := time.Now()
		groups := o.all()
		if err := fence(groups, "up", nil); err != nil {
			t.Fatal(err)
		}
		joined := time.Since(began)
		const times = 5
		began = time.Now()
		for i := range times {
			if err := fence(groups, fmt.Sprint("fence ", i), nil); err != nil {
				t.Fatal(err)
			}
		}
		took := time.Since(began) / times
		depth := 0
		for node := n - 1; node > 0; node = (node - 1) / 16 {
			depth++
		}
		t.Logf("%4d daemons, depth %d: joined in %8v, a fence %8v", n, depth, joined.Round(time.Millisecond), took.Round(10*time.Microsecond))
		if err := finish(groups); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRandomEnds kills a node, or cuts it off, at a random moment of the launch, of fences or of
// the end: all others come to an end and name it, or have ended before.
func TestRandomEnds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 10 {
		victim, after, byMail := random.IntN(7), time.Duration(random.IntN(30))*time.Millisecond, random.IntN(3) == 0
		t.Run(fmt.Sprintf("node %d after %v, by mail %v", victim, after, byMail), func(t *testing.T) {
			o := newOffice(t, 7)
			o.limits.FanOut, o.limits.Ping, o.patience = 2, 300*time.Millisecond, 2*time.Second
			if byMail {
				for i := range o.names {
					o.closed[i] = true
				}
			}
			groups := o.all()
			ctx, cancel := context.WithTimeout(t.Context(), patient)
			defer cancel()
			var wg sync.WaitGroup
			wg.Go(func() {
				time.Sleep(after) // any moment will do
				killed, stop := context.WithCancel(ctx)
				stop()
				o.set(o.cut, victim, true)
				groups[victim].Close(killed, "killed")
			})
			for i, g := range groups {
				if i == victim {
					continue
				}
				wg.Go(func() {
					for n := range 1000 {
						if _, err := g.Allgather(ctx, fmt.Sprint("fence ", n), nil, nil); err != nil {
							lost, ok := errors.AsType[*stepnet.LostError](err)
							if !ok || lost.Node != victim {
								t.Errorf("node %d: %v", i, err)
							}
							break
						}
					}
					if err := g.Finish(ctx); err != nil {
						t.Errorf("node %d does not come to an end: %v", i, err)
					}
				})
			}
			groupsOf := func(g *Group) { // the victim meets the others until it is killed
				for n := range 1000 {
					if _, err := g.Allgather(ctx, fmt.Sprint("fence ", n), nil, nil); err != nil {
						return
					}
				}
			}
			wg.Go(func() { groupsOf(groups[victim]) })
			wg.Wait()
		})
	}
}
