package stepapi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestAsk: noded answers in any order, and what it owes when it goes is an error,
// not a wait.
func TestAsk(t *testing.T) {
	s, _, _ := serve(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	type result struct {
		name string
		a    *Answer
		err  error
	}
	results := make(chan result, 3)
	ask := func(name string) {
		go func() {
			a, err := s.Ask(ctx, &Ask{Do: AskLookup, Name: []byte(name)})
			results <- result{name, a, err}
		}()
	}
	ask("early") // it waits for a noded
	ours, theirs := pair(t)
	s.Add(ours, RoleNoded, true)
	recv := func(c *Conn, typ Type) *Msg {
		t.Helper()
		for {
			m, _, err := c.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if m.Type == typ {
				return m
			}
		}
	}
	early := recv(theirs, TypeAsk)
	if early.Ask == nil || string(early.Ask.Name) != "early" {
		t.Fatalf("asked %+v", early)
	}
	ask("late")
	late := recv(theirs, TypeAsk)
	send := func(m *Msg) {
		t.Helper()
		if err := theirs.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	send(&Msg{Type: TypeAnswer, Seq: 99, Error: "nobody asked"})
	send(&Msg{Type: TypeAnswer, Seq: late.Seq, Answer: &Answer{Found: true, Port: []byte("p\x00")}})
	if r := <-results; r.name != "late" || r.err != nil || !r.a.Found || string(r.a.Port) != "p\x00" {
		t.Errorf("%+v", r)
	}
	send(&Msg{Type: TypeAnswer, Seq: late.Seq, Error: "twice"})
	send(&Msg{Type: TypeAnswer, Seq: early.Seq, Error: "no such name"})
	if r := <-results; r.name != "early" || r.err == nil || r.err.Error() != "no such name" {
		t.Errorf("%+v", r)
	}

	ask("lost")
	recv(theirs, TypeAsk)
	theirs.Close()
	if r := <-results; !errors.Is(r.err, ErrNodedGone) {
		t.Errorf("%+v", r)
	}
	soon, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	if _, err := s.Ask(soon, &Ask{Do: AskLookup}); err == nil || !strings.Contains(err.Error(), "none is connected") {
		t.Errorf("without a noded: %v", err)
	}
}
