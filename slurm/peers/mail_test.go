package peers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// FuzzMail: a mail that is taken is the one that was sent.
func FuzzMail(f *testing.F) {
	for k := kindHello; k < kindLast; k++ {
		f.Add((&mail{kind: k, job: 1, step: 2, from: 3, to: 4, channel: 5, number: 6, data: []byte("data")}).encode())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseMail(raw)
		if err == nil && !bytes.Equal(m.encode(), raw) {
			t.Errorf("%q became %q", raw, m.encode())
		}
	})
}

// What is no mail of the step's other nodes is refused, counted, and harms nothing.
func TestHostileMail(t *testing.T) {
	o := newOffice(t, 3)
	groups := o.all()
	if err := fence(groups, "before", nil); err != nil {
		t.Fatal(err)
	}
	good := mail{kind: kindGone, job: 7, step: 3, from: 1, to: 0, data: []byte("why")}
	change := func(f func(*mail)) []byte {
		m := good
		f(&m)
		return m.encode()
	}
	root := uint32(os.Geteuid())
	sent := 0
	for name, c := range map[string]struct {
		uid  uint32
		data []byte
	}{
		"another user's":     {root + 1, good.encode()},
		"another job's":      {root, change(func(m *mail) { m.job = 8 })},
		"another step's":     {root, change(func(m *mail) { m.step = 4 })},
		"another node's":     {root, change(func(m *mail) { m.to = 1 })},
		"no neighbour's":     {root, change(func(m *mail) { m.from = 9 })},
		"its own":            {root, change(func(m *mail) { m.from = 0 })},
		"of no kind":         {root, change(func(m *mail) { m.kind = kindLast })},
		"of no channel":      {root, change(func(m *mail) { m.kind = kindData })},
		"a user's hello":     {root, change(func(m *mail) { m.kind, m.data = kindHello, []byte("user:x") })},
		"an empty hello":     {root, change(func(m *mail) { m.kind, m.data = kindHello, []byte("root:") })},
		"cut":                {root, good.encode()[:20]},
		"empty":              {root, nil},
		"larger than it may": {root, make([]byte, mailMax+1)},
	} {
		if err := deliver(t.Context(), o.path(0), c.uid, c.data); err != nil && len(c.data) <= mailMax {
			t.Errorf("%s: %v", name, err)
		}
		sent++
	}
	// A mail whose end does not come.
	conn, err := net.Dial("unix", o.path(0))
	if err != nil {
		t.Fatal(err)
	}
	conn.Write([]byte{0, 0})
	conn.Close()
	sent++
	for deadline := time.Now().Add(patient); ; time.Sleep(time.Millisecond) {
		groups[0].refused.mu.Lock()
		n := groups[0].refused.count
		groups[0].refused.mu.Unlock()
		if n == sent {
			break
		}
		if n > sent || time.Now().After(deadline) {
			t.Fatalf("%d were refused of %d", n, sent)
		}
	}
	if err := fence(groups, "after", nil); err != nil {
		t.Error(err)
	}
	if lines := o.logs("refused"); len(lines) != 1 {
		t.Errorf("the log has %q", lines)
	}
}

// A mailbox is root's alone, and an earlier daemon's is replaced.
func TestMailbox(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	if err := os.WriteFile(path, nil, 0o777); err != nil {
		t.Fatal(err)
	}
	b, err := openMailbox(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	later, err := openMailbox(path)
	if err != nil {
		t.Fatal(err)
	}
	b.close() // leaves the later one's
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	later.close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := openMailbox("/" + strings.Repeat("x", pathMax)); err == nil || !strings.Contains(err.Error(), "shorter SlurmdSpoolDir") {
		t.Errorf("got %v", err)
	}
}

// channelPair are two ends of a channel; carry brings a mail to the other one, or not.
func channelPair(t *testing.T, carry func(m *mail, to *channel) error) (a, b *channel) {
	a = newChannel(t.Context(), 1, func(_ context.Context, m *mail) error { return carry(m, b) })
	b = newChannel(t.Context(), 1, func(_ context.Context, m *mail) error { return carry(m, a) })
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// Pieces come twice, late and in another order, and some are sent in vain: what is read is what
// was written.
func TestChannel(t *testing.T) {
	var n atomic.Int32
	var late sync.WaitGroup
	a, b := channelPair(t, func(m *mail, to *channel) error {
		copied := *m
		copied.data = bytes.Clone(m.data)
		switch n := n.Add(1); {
		case n%5 == 0:
			return errors.New("slurmd restarts")
		case n%3 == 0: // after those that follow
			late.Go(func() {
				time.Sleep(time.Millisecond)
				to.take(&copied)
			})
			return nil
		}
		return errors.Join(to.take(&copied), to.take(&copied))
	})
	want := bytes.Repeat([]byte("0123456789abcdef"), 2*channelWindow/16)
	go func() {
		for i := 0; i < len(want); i += 50_000 {
			a.Write(want[i:min(len(want), i+50_000)])
		}
		for a.CloseWrite() != nil {
		}
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
	late.Wait()
}

// A writer is stopped where nothing is read, and its end is known.
func TestChannelWindow(t *testing.T) {
	a, b := channelPair(t, func(m *mail, to *channel) error { return to.take(m) })
	written := make(chan int, 1)
	go func() {
		n, _ := a.Write(make([]byte, 2*channelWindow))
		written <- n
	}()
	for b.room(0); ; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		held := b.held
		b.mu.Unlock()
		if held > channelWindow-2*recordMax {
			break
		}
	}
	a.Close()
	if n := <-written; n > channelWindow {
		t.Errorf("%d bytes were sent, and none read", n)
	}
	if err := b.take(&mail{kind: kindData, number: 1 << 40, data: make([]byte, channelWindow)}); !errors.Is(err, errChannel) {
		t.Errorf("more than the window: %v", err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
