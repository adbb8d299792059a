package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"stepd/api"
	"stepd/step"
)

// TestOutput: what a step has left is its owner's and root's, and of ended steps only.
func TestOutput(t *testing.T) {
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	read := func(uid uint32) ([]byte, error) {
		return tn.svc.ask(as(uid), "output", &api.RefRequest{StepRef: ref(id)})
	}
	if _, err := read(1000); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("of a running step: %v", err)
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
	if _, err := read(1000); api.CodeOf(err) != api.NotFound {
		t.Errorf("of one that has left none: %v", err)
	}
	want := bytes.Repeat([]byte("kept"), 50_000)
	if err := os.WriteFile(tn.files.output(id), want, 0o600); err != nil {
		t.Fatal(err)
	}
	for uid, code := range map[uint32]api.Code{1000: api.OK, 0: api.OK, 1001: api.PermissionDenied} {
		got, err := read(uid)
		if api.CodeOf(err) != code || (err == nil) != bytes.Equal(got, want) {
			t.Errorf("uid %d: %d bytes, %v; want %v", uid, len(got), err, code)
		}
	}
	// No user can redirect it.
	if err := os.Remove(tn.files.output(id)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", tn.files.output(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := read(1000); err == nil {
		t.Error("a link was followed")
	}
}

// TestOutputIsBounded: the oldest goes where all together are too large.
func TestOutputIsBounded(t *testing.T) {
	tn := fresh(t)
	const size = 10 << 20
	now := time.Now()
	for i := range 8 {
		path := tn.files.output(step.ID{Job: uint32(i + 1)})
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		at := now.Add(time.Duration(i) * time.Second)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	part := tn.files.output(step.ID{Job: 8}) + ".tmp"
	if err := os.WriteFile(part, []byte("part"), 0o600); err != nil {
		t.Fatal(err)
	}
	tn.boundOutput(step.ID{Job: 8}, uint32(os.Getuid()))
	if _, err := os.Lstat(part); err == nil {
		t.Error("what a stepd has left that was killed while it wrote is still there")
	}
	left, err := filepath.Glob(filepath.Join(tn.files.outputDir(), "*"))
	if err != nil || len(left) != outputRoom/size {
		t.Errorf("%q are left, %v: want the last %d", left, err, outputRoom/size)
	}
	if _, err := os.Stat(tn.files.output(step.ID{Job: 1})); err == nil {
		t.Error("the oldest is left")
	}
}

// A user with much output pushes out own output, and never the output of a user with less.
func TestSurplus(t *testing.T) {
	begun := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	// Each letter is an output, in the order of their ends: of a user by letter, of 10 bytes,
	// and of 40 where it is large.
	kept := func(users string) (all []keptOutput) {
		for i, c := range users {
			k := keptOutput{name: fmt.Sprint(i), uid: uint32(unicode.ToLower(c) - 'a'), size: 10, at: begun.Add(time.Duration(i) * time.Second)}
			if unicode.IsUpper(c) {
				k.size = 40
			}
			all = append(all, k)
		}
		return all
	}
	for _, c := range []struct{ users, gone string }{
		{"", ""},
		{"aaaaaaaaaa", ""},
		{"aaaaaaaaaaaa", "0 1"},          // one alone has all of it
		{"baaaaaaaaaaaaaa", "1 2 3 4 5"}, // the oldest of all stays
		{"abbbbbbbbbbaaaa", "1 2 3 4 5"}, // a has 5 and b as many then
		{"AAbb", ""},
		{"AAbbc", "0"},
		{"Abcdefghiaaaaa", "0 9 10 11"},
		{"ABCabc", "0 1"}, // the first user of several with as much
	} {
		var gone []string
		for _, k := range surplus(kept(c.users), 100) {
			gone = append(gone, k.name)
		}
		if got := strings.Join(gone, " "); got != c.gone {
			t.Errorf("of %s: %q go, want %q", c.users, got, c.gone)
		}
	}
}
