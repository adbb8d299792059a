package main

import (
	"testing"
	"time"
)

// TestMayCrash: a noded that always crashes is not started for ever.
func TestMayCrash(t *testing.T) {
	begin := time.Now()
	f := &first{}
	for i, want := range []bool{true, true, true, true, false} {
		if got := f.mayCrash(begin.Add(time.Duration(i) * time.Second)); got != want {
			t.Errorf("crash %d: %v, want %v", i, got, want)
		}
	}
	if !f.mayCrash(begin.Add(time.Minute)) || len(f.crashes) != 1 {
		t.Errorf("a minute later %d crashes count", len(f.crashes))
	}
}
