package node

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"stepd/api"
	"stepd/internal/testkit"
	"stepd/node/state"
	"stepd/step"
)

// TestPublished: the file beside the socket is the last answer to "config", and goes with noded.
func TestPublished(t *testing.T) {
	digest, broken := "first", error(nil)
	dir := t.TempDir()
	tn := start(t, dir, func(c *Config) { c.Stack = func() (Stack, error) { return Stack{Digest: digest}, broken } })
	client, _ := serveAs(t, tn, testkit.Always(1000))
	at := &api.Client{Socket: tn.spool.Socket()}
	if r, err := at.Published(); err == nil {
		t.Errorf("before the first call: %+v", r)
	}
	for _, now := range []string{"first", "second", "second"} {
		digest = now
		answer, err := client.Config(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r, err := at.Published(); err != nil || !reflect.DeepEqual(r, answer) {
			t.Errorf("%s: %+v, %v, want %+v", now, r, err, answer)
		}
	}
	broken = errors.New("a line is wrong") // nothing to publish: a client must call
	if _, err := client.Config(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := at.Published(); err != nil || r.PlugstackDigest != "second" {
		t.Errorf("after an error: %+v, %v", r, err)
	}
	path := tn.spool.Published()
	tn.stop()
	broken = nil
	machine{tn.Node}.ClientConfig() // followStack's, which the end has overtaken
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
	// A killed noded's file is not the next one's.
	if err := os.WriteFile(path, []byte(`{"schema":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	tn = start(t, dir, nil)
	defer tn.stop()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a killed noded's file: %v", err)
	}
}

// TestKeptStacks: a job keeps the plugin stack with which it began, its steps and its epilog are
// told so, clients read which jobs these are, the log has it once for each change, and a copy goes
// with the last job that needs it.
func TestKeptStacks(t *testing.T) {
	var mu sync.Mutex
	digest, failed := "one", error(nil)
	now := func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		return digest, failed
	}
	change := func(to string, err error) {
		mu.Lock()
		defer mu.Unlock()
		digest, failed = to, err
	}
	s := newScripted(t, "", "", func(c *Config) {
		c.Scripts.Prolog, c.Scripts.Epilog = nil, nil
		c.Scripts.StackID = func() (string, string, error) {
			d, err := now()
			return "", d, err
		}
		c.Stack = func() (Stack, error) {
			d, err := now()
			return Stack{Digest: d, Copy: func() ([]byte, os.FileMode, error) { return []byte(d), 0o644, nil }}, err
		}
	})
	kept := func(want ...string) {
		t.Helper()
		var got []string
		for _, k := range (machine{s.Node}).ClientConfig().JobStacks {
			text, err := os.ReadFile(k.File)
			if err != nil {
				t.Error(err)
			}
			got = append(got, fmt.Sprintf("%d %s", k.JobID, text))
		}
		if !slices.Equal(got, want) {
			t.Errorf("jobs with a stack of their own: %q, want %q", got, want)
		}
	}
	first := s.run(1000, s.control(request("wait")))
	kept()
	change("two", nil)
	kept("1 one")
	kept("1 one")
	second := s.run(1000, s.control(request("wait")))
	change("broken", errors.New("a loop"))
	kept("1 one", "2 two")
	change("three", nil)
	third := s.run(1000, s.control(request("wait")))
	kept("1 one", "2 two")
	for _, id := range []step.ID{first, second, third} {
		if err := s.cancel(id); err != nil {
			t.Error(err)
		}
		s.wait(id)
	}
	s.idle()
	kept()
	change("four", nil)
	s.wait(s.run(1000, s.control(request("exit", "0"))))
	s.idle()
	change("five", nil)
	s.wait(s.run(1000, s.control(request("exit", "0"))))
	s.idle()
	entries, err := os.ReadDir(s.spool.StacksDir())
	if err != nil || len(entries) != 2 { // the present one, and the one before
		t.Errorf("copies left: %v, %v", entries, err)
	}
}

// TestStackAsItWas: the files of a stack that stat(2) finds as they were are read for the first job
// alone.
func TestStackAsItWas(t *testing.T) {
	var reads atomic.Int32
	tn := start(t, t.TempDir(), func(c *Config) {
		c.Scripts.StackID = func() (string, string, error) { return "", "one", nil }
		c.Stack = func() (Stack, error) {
			reads.Add(1)
			return Stack{Digest: "one", Copy: func() ([]byte, os.FileMode, error) { return nil, 0o644, nil }}, nil
		}
	})
	defer tn.stop()
	for range 2 {
		if id := tn.run(1000, request("exit", "0")); tn.wait(id).State != step.Completed {
			t.Errorf("step %s has not run", id)
		}
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("read %d times", n)
	}
}

// TestStackThatChangesMeanwhile: where the stack changes between the moment in which a job gets it and
// the job's beginning, clients read all the same that the job has another one.
func TestStackThatChangesMeanwhile(t *testing.T) {
	var mu sync.Mutex
	digest, begins, changes := "one", false, false
	var tn *testNode
	tn = start(t, t.TempDir(), func(c *Config) {
		c.Stack = func() (Stack, error) {
			mu.Lock()
			defer mu.Unlock()
			begins, changes = false, begins
			return Stack{Digest: digest, Copy: func() ([]byte, os.FileMode, error) { return nil, 0o644, nil }}, nil
		}
		c.clock = state.HostClock()
		now := c.clock.Now
		c.clock.Now = func() time.Time { // for the job's end, of which noded thinks after its stack
			mu.Lock()
			change := changes
			if changes = false; change {
				digest = "two"
			}
			mu.Unlock()
			if change {
				machine{tn.Node}.ClientConfig() // as followStack
			}
			return now()
		}
	})
	defer tn.stop()
	machine{tn.Node}.ClientConfig()
	mu.Lock()
	begins = true
	mu.Unlock()
	req := request("wait")
	req.TimeLimitS = 60
	id := tn.run(1000, req)
	conf, err := (&api.Client{Socket: tn.spool.Socket()}).Published()
	if want := []api.JobStack{{JobID: id.Job, File: tn.spool.Stack("one")}}; err != nil || conf.PlugstackDigest != "two" || !slices.Equal(conf.JobStacks, want) {
		t.Errorf("published: %+v, %v, want %v", conf, err, want)
	}
}
