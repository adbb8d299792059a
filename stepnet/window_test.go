package stepnet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// Room is given in the order of asking, to callers that still wait for it, and no more
// than the window has.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(100)
		type got struct {
			who string
			n   int
			err error
		}
		all := make(chan got, 8) // one for each that asks
		ask := func(ctx context.Context, who string, n int) {
			go func() { n, err := w.take(ctx, n); all <- got{who, n, err} }()
			synctest.Wait()
		}
		expect := func(want ...got) {
			t.Helper()
			synctest.Wait()
			if len(all) != len(want) {
				t.Fatalf("%d have room or are refused, want %d", len(all), len(want))
			}
			for _, x := range want {
				if g := <-all; g.who != x.who || g.n != x.n || !errors.Is(g.err, x.err) {
					t.Errorf("got %+v, want %+v", g, x)
				}
			}
		}
		ask(t.Context(), "first", 60)
		expect(got{"first", 60, nil})
		impatient, leave := context.WithCancelCause(t.Context())
		ask(impatient, "second", 50)
		ask(t.Context(), "third", 10) // for which there is room, behind the second
		expect()
		gone := errors.New("gone")
		leave(gone)
		expect(got{"second", 0, gone}, got{"third", 10, nil})
		ask(t.Context(), "more than all", 1000)
		ask(t.Context(), "last", 1)
		expect()
		w.give(70)
		expect(got{"more than all", 100, nil})
		w.close()
		expect(got{"last", 0, errClosed})
		ask(t.Context(), "late", 1)
		expect(got{"late", 0, errClosed})
	})
}
