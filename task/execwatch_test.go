package task

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each rank is reported once, also while another process holds the same description
// of the pipe: closing our descriptor alone would leave it in the epoll, which
// then reports it for ever.
func TestExecWatchTellsOnce(t *testing.T) {
	w := newExecWatch()
	var writers, held []int
	for rank := range 20 {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		dup, err := unix.Dup(p[0])
		if err != nil {
			t.Fatal(err)
		}
		held, writers = append(held, dup), append(writers, p[1])
		w.pipes[p[0]] = rank
	}
	execs := make(chan []int)
	if err := w.start(execs); err != nil {
		t.Fatal(err)
	}
	for _, fd := range writers[1:] {
		unix.Close(fd)
	}
	var told []int
	for len(told) < 19 {
		select {
		case ranks := <-execs:
			told = append(told, ranks...)
		case <-time.After(10 * time.Second):
			t.Fatalf("told %v", told)
		}
	}
	slices.Sort(told)
	if len(slices.Compact(slices.Clone(told))) != 19 || slices.Contains(told, 0) {
		t.Errorf("told %v, want each of 1 to 19 once", told)
	}
	select {
	case ranks := <-execs:
		t.Errorf("told again: %v", ranks)
	case <-time.After(50 * time.Millisecond):
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
	unix.Close(writers[0])
	for _, fd := range held {
		unix.Close(fd)
	}
}

// A task has exec'd from the moment at which the kernel has closed its pipe: what its program
// does next, such as a file that tells a user to kill his client, must not come before it.
func TestExecWatchPending(t *testing.T) {
	table := newTaskTable([]int{0, 1})
	if table.gone() {
		t.Error("gone before the fork")
	}
	w := newExecWatch() // not started: nothing is reported
	table.watch.Store(w)
	var writers []int
	for id := range 2 {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		w.pipes[p[0]], writers = id, append(writers, p[1])
	}
	for _, fd := range writers {
		if table.gone() {
			t.Error("gone with a task that holds its pipe")
		}
		unix.Close(fd)
	}
	if !table.gone() {
		t.Error("not gone, though no task holds its pipe")
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
	if !table.gone() {
		t.Error("not gone after the watch has ended")
	}
}
