package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stepd/step"
)

// TestCheckStore: a state is whole, or damaged, and never ends the process.
func TestCheckStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if err := checkStore(path); err != nil {
		t.Errorf("no file: %v", err)
	}
	s, err := openStore(path, time.Minute, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		rec := step.Record{Name: "x", Command: []string{string(make([]byte, 900))}}
		if err := s.newJobAs(step.ID{}, &jobRecord{}, nil, &rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := checkStore(path); err != nil {
		t.Errorf("a whole state: %v", err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkStore(path); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, size := range []int{len(whole) / 2, 3 * 4096, 4096, 100, 1} {
		check("cut", whole[:size])
	}
	check("text", bytes.Repeat([]byte("text"), 20000))
	zeroed := bytes.Clone(whole)
	clear(zeroed[2*4096:])
	check("zeroed behind its heads", zeroed)
	if _, err := setAside(path, time.Now()); err != nil {
		t.Error(err)
	}
	if kept, _ := filepath.Glob(path + ".damaged-*"); len(kept) != 1 {
		t.Errorf("kept %q", kept)
	}
}

// TestDamagedStateDrains: nobody knows any more whether the node was drained.
func TestDamagedStateDrains(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	state := tn.files.state()
	tn.stop()
	if err := os.Truncate(state, 3*4096); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a restart changes nothing
		tn = start(t, dir, func(c *Config) { c.DrainReason = "gres/gpu: /dev/x: no such file or directory" })
		if d := tn.doc(); d.State != "DRAINED" || !strings.HasPrefix(d.Reason, "the state was damaged, and is kept as \""+state+".damaged-") {
			t.Errorf("node %s %q", d.State, d.Reason)
		}
		tn.stop()
	}
}

// TestNotReady: a noded that takes over a socket serves, though it publishes none.
func TestNotReady(t *testing.T) {
	tn := fresh(t)
	if why := tn.NotReady(t.Context()); len(why) != 1 || why[0] != "noded is starting" {
		t.Errorf("%q", why)
	}
	tn.Serving()
	if why := tn.NotReady(t.Context()); len(why) != 0 {
		t.Errorf("%q", why)
	}
}

func FuzzCheckSize(f *testing.F) {
	f.Add(make([]byte, 8192))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := checkSize(bytes.NewReader(b), int64(len(b))); err != nil && !errors.Is(err, errDamaged) {
			t.Error(err)
		}
	})
}
