package main

import (
	"fmt"
	"os/exec"
	"slices"
	"time"
)

// launch is the times of one step, in nanoseconds of one clock.
type launch struct {
	client      uint64 // the client's exec
	clientExit  uint64
	daemon      uint64 // the step daemon's exec
	firstFork   uint64
	firstExec   uint64
	lastExec    uint64
	lastExit    uint64
	daemonExit  uint64
	firstExited uint64
	execs       int
}

// tree is who forked whom, and when each exec'd and ended.
type tree struct {
	parent map[int]int
	forks  map[int]uint64
	execs  map[int]uint64 // the last exec
	exits  map[int]uint64
}

func newTree(events []event) *tree {
	t := &tree{map[int]int{}, map[int]uint64{}, map[int]uint64{}, map[int]uint64{}}
	for _, e := range events {
		switch e.kind {
		case forked:
			t.parent[e.pid], t.forks[e.pid] = e.parent, e.ns
		case execed:
			t.execs[e.pid] = e.ns
		case exited:
			t.exits[e.pid] = e.ns
		}
	}
	return t
}

// children are the processes that pid forked.
func (t *tree) children(pid int) (out []int) {
	for c, p := range t.parent {
		if p == pid {
			out = append(out, c)
		}
	}
	return out
}

// execed are those that have exec'd as well.
func (t *tree) execed(pid int) []int {
	return slices.DeleteFunc(t.children(pid), func(c int) bool { return t.execs[c] == 0 })
}

// step finds the launch of n tasks below root: the daemon is the youngest
// ancestor of the tasks that has exec'd a program of its own, besides the host
// that is between them.
func (t *tree) step(root, n int) (launch, bool) {
	host := 0
	var tasks []int
	for pid := range t.execs {
		kids := slices.DeleteFunc(t.execed(pid), func(c int) bool {
			return len(t.execed(c)) > 0 // the host, for which the daemon would pass as a host of one task
		})
		// The daemon has a keeper below slurmd, and would pass as its host.
		if len(kids) >= n && t.descends(pid, root) && (host == 0 || t.parent[pid] == host) {
			host, tasks = pid, kids
		}
	}
	if host == 0 {
		return launch{}, false
	}
	l := t.times(tasks)
	daemon := host
	if p := t.parent[host]; t.execs[p] != 0 && p != root && t.descends(p, root) {
		daemon = p // the tasks' parent is the host, its parent the daemon
	}
	l.daemon, l.daemonExit = t.execs[daemon], t.exits[daemon]
	return l, l.daemonExit != 0
}

// times are the times of the tasks alone.
func (t *tree) times(tasks []int) launch {
	l := launch{execs: len(tasks)}
	for _, c := range tasks {
		l.firstFork = least(l.firstFork, t.forks[c])
		l.firstExec = least(l.firstExec, t.execs[c])
		l.lastExec = max(l.lastExec, t.execs[c])
		l.lastExit = max(l.lastExit, t.exits[c])
		l.firstExited = least(l.firstExited, t.exits[c])
	}
	return l
}

func least(a, b uint64) uint64 {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

func (t *tree) descends(pid, root int) bool {
	for range 16 {
		if pid == root {
			return true
		}
		p, ok := t.parent[pid]
		if !ok {
			return false
		}
		pid = p
	}
	return false
}

// settle gives the kernel time to send the last events of a run: they are sent
// after the exit that wait(2) has reported.
func settle(r *recorder, done func([]event) bool) ([]event, error) {
	var all []event
	for range 400 {
		ev, err := r.take()
		if err != nil {
			return nil, err
		}
		all = append(all, ev...)
		if done(all) {
			return all, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return all, fmt.Errorf("the events of the run did not come to an end")
}

// measure runs one client command and finds its step below root.
func measure(r *recorder, root, n int, argv []string) (launch, error) {
	if _, err := r.take(); err != nil {
		return launch{}, err
	}
	// Output goes to /dev/null for all that are compared.
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Run(); err != nil {
		return launch{}, fmt.Errorf("%q: %w", argv, err)
	}
	var l launch
	_, err := settle(r, func(ev []event) bool {
		t := newTree(ev)
		var ok bool
		l, ok = t.step(root, n)
		l.client, l.clientExit = t.execs[cmd.Process.Pid], t.exits[cmd.Process.Pid]
		return ok && l.clientExit != 0
	})
	return l, err
}

// measureBare runs the bare loop, for whose arguments see bare.c; its n tasks are
// its children.
func measureBare(r *recorder, n int, prog string, args ...string) (launch, error) {
	if _, err := r.take(); err != nil {
		return launch{}, err
	}
	cmd := exec.Command(prog, args...)
	if err := cmd.Run(); err != nil {
		return launch{}, fmt.Errorf("%q: %w", prog, err)
	}
	var l launch
	_, err := settle(r, func(ev []event) bool {
		t := newTree(ev)
		kids := t.children(cmd.Process.Pid)
		l = t.times(kids)
		l.daemon, l.daemonExit = t.execs[cmd.Process.Pid], t.exits[cmd.Process.Pid]
		return len(kids) == n && l.daemonExit != 0
	})
	return l, err
}
