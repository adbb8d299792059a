package stepnet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// A sender waits for room in the order of asking, until its own context ends or the link does.
func TestPushWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(1, linkBytes, nil, func(*link, error) {})
		type got struct {
			who string
			err error
		}
		all := make(chan got, 8) // one for each that asks
		push := func(ctx context.Context, who string, size int) {
			go func() { all <- got{who, l.pushWait(ctx, make(frame, size))} }()
			synctest.Wait()
		}
		expect := func(want ...got) {
			t.Helper()
			synctest.Wait()
			if len(all) != len(want) {
				t.Fatalf("%d have room or are refused, want %d", len(all), len(want))
			}
			for _, x := range want {
				if g := <-all; g.who != x.who || !errors.Is(g.err, x.err) {
					t.Errorf("got %+v, want %+v", g, x)
				}
			}
		}
		push(t.Context(), "more than all", 2*linkBytes)
		expect(got{"more than all", nil})
		impatient, leave := context.WithCancelCause(t.Context())
		push(impatient, "second", 50)
		push(t.Context(), "third", 10)
		expect()
		gone, lost := errors.New("gone"), errors.New("lost")
		leave(gone)
		expect(got{"second", gone})
		l.fail(lost)
		expect(got{"third", lost})
		push(t.Context(), "late", 1)
		expect(got{"late", lost})
	})
}
