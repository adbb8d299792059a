package site

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"stepd/spank"
)

// stackID names the plugin stack as it is now, at the price of a stat for each
// file: the stack is read again where one of them has changed.
type stackID struct {
	file string
	dirs []string

	mu   sync.Mutex
	at   string   // guarded by mu: how the sources looked
	from []string // guarded by mu: all files that count
	id   string   // guarded by mu
}

// ID implements scripts.Config.StackID.
func (s *stackID) ID() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from != nil && look(s.from) == s.at {
		return s.id, nil
	}
	for range stackReads {
		stack, err := spank.ReadStack(s.file, s.dirs)
		if err != nil {
			s.from = nil
			return "", err
		}
		from := slices.Clone(stack.Sources)
		for _, p := range stack.Plugins {
			from = append(from, p.Path)
		}
		at := look(from)
		// What changed between the reading and the looking shows in a second one.
		again, err := spank.ReadStack(s.file, s.dirs)
		if err != nil || describe(again) != describe(stack) {
			s.from = nil
			continue
		}
		s.at, s.from, s.id = at, append([]string{}, from...), ""
		if len(stack.Plugins) > 0 {
			sum := sha256.Sum256([]byte(describe(stack) + at))
			s.id = hex.EncodeToString(sum[:])
		}
		return s.id, nil
	}
	return "", fmt.Errorf("cannot read plugin stack %q: it changes all the time", s.file)
}

// stackReads bounds how often a stack is read that changes meanwhile.
const stackReads = 10

// describe is the stack's plugins and their arguments.
func describe(stack spank.Stack) string {
	var b strings.Builder
	for _, p := range stack.Plugins {
		fmt.Fprintf(&b, "%v %q %q\n", p.Required, p.Path, p.Args)
	}
	return b.String()
}

// look is the part of stat(2) of files that tells two states of them apart.
func look(paths []string) string {
	var b strings.Builder
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			fmt.Fprintf(&b, "%v\n", err)
			continue
		}
		fmt.Fprintf(&b, "%d %d %d %v %v\n", st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim)
	}
	return b.String()
}
