package spool

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"

	"stepd/step"
)

// TestOutputIsBounded: the oldest goes where all together are too large.
func TestOutputIsBounded(t *testing.T) {
	s := New(Layout{Run: filepath.Join(t.TempDir(), "run"), Dir: filepath.Join(t.TempDir(), "spool")}, logrus.New())
	if err := s.Make(); err != nil {
		t.Fatal(err)
	}
	const size = 10 << 20
	now := time.Now()
	for i := range 8 {
		path := s.Output(step.ID{Job: uint32(i + 1)})
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
	part := s.Output(step.ID{Job: 8}) + ".tmp"
	if err := os.WriteFile(part, []byte("part"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.KeepOutput(step.ID{Job: 8}, uint32(os.Getuid()), 0)
	if _, err := os.Lstat(part); err == nil {
		t.Error("what a stepd has left that was killed while it wrote is still there")
	}
	left, err := filepath.Glob(filepath.Join(s.OutputDir(), "*"))
	if err != nil || len(left) != outputRoom/size {
		t.Errorf("%q are left, %v: want the last %d", left, err, outputRoom/size)
	}
	if _, err := os.Stat(s.Output(step.ID{Job: 1})); err == nil {
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
