package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// streamRow is one way of the bytes, beside two processes and what joins them.
type streamRow struct {
	what   string
	tasks  int
	args   []string // of run
	input  bool     // the bytes go to the tasks
	socket bool     // the client's stdout is one
	file   bool     // the client's stdout is a file
}

// other is a user who is not root.
var other = []string{"--uid=65534", "--gid=65534"}

var streamRows = []streamRow{
	{what: "stdout, the client's pipe", tasks: 1},
	{what: "stdout, the client's pipe, -u", tasks: 64, args: []string{"-u"}},
	{what: "stdout, the client's file", tasks: 64, file: true},
	{what: "stdout by whole lines", tasks: 64},
	{what: "stdout, labelled", tasks: 1, args: []string{"-l"}},
	{what: "stdout, labelled", tasks: 64, args: []string{"-l"}},
	{what: "stdout of another user", tasks: 1, args: other},
	{what: "stdout of another user, labelled", tasks: 1, args: append([]string{"-l"}, other...)},
	{what: "stdout to a socket", tasks: 1, socket: true},
	{what: "stdin", tasks: 1, input: true},
	{what: "stdin of another user", tasks: 1, input: true, args: other},
	{what: "stdin to all, bytes delivered", tasks: 64, input: true},
}

// lineWidth is the width of the lines that are written.
const lineWidth = 80

// streamsTable is how fast the bytes of the tasks are, beside a pipe of the shell's.
func (b *bench) streamsTable() error {
	pump := filepath.Join(b.dir, "pump")
	src := b.source("pump", "pump.c")
	if out, err := exec.Command("gcc", "-O2", "-o", pump, src).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot compile %q: %w: %s", src, err, out)
	}
	n, err := b.start("streams", 64, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	// Many short runs: how fast a pipe is depends by half on which processor either end
	// comes to be on, and that it keeps for a run.
	bytes := int64(1e9)
	if b.quick || b.base != "" {
		bytes = 4e8
	}
	w := b.table(fmt.Sprintf("streams, lines of %d bytes\ttasks\tN\tMB/s: median\tquartiles\tpeer\tits median\tquartiles\tratio", lineWidth))
	defer w.Flush()
	for _, r := range streamRows {
		if !strings.Contains(r.what, b.only) {
			continue
		}
		if err := r.measure(b, w, n, pump, bytes); err != nil {
			return fmt.Errorf("%s, %d tasks: %w", r.what, r.tasks, err)
		}
		w.Flush()
	}
	return nil
}

// measure takes turns with the peer, so that both have the same machine: ours, the
// peer, the peer, ours, …
func (r *streamRow) measure(b *bench, w *tabwriter.Writer, n nodes, pump string, bytes int64) error {
	runs := b.runsOf(11, 3, 11)
	each := bytes / int64(r.tasks) / lineWidth * lineWidth
	perGB := 1e9 / float64(each*int64(r.tasks))
	of, peers := make([]series, len(n)), series(nil) // nanoseconds a gigabyte
	for i := range runs {
		ours := func() error {
			return n.turns(i, func(k int, node *noded) error {
				from, to := r.commands(node, pump, each)
				took, err := r.join(from, to)
				of[k] = append(of[k], float64(took)*perGB)
				return err
			})
		}
		peer := func() error {
			if b.base != "" {
				return nil
			}
			from, to := r.peer(pump, each)
			took, err := r.join(from, to)
			peers = append(peers, float64(took)*perGB)
			return err
		}
		turn := []func() error{ours, peer}
		if i%2 == 1 {
			slices.Reverse(turn)
		}
		for _, do := range turn {
			if err := do(); err != nil {
				return err
			}
		}
	}
	rate := func(ns float64) string { return fmt.Sprintf("%.0f", 1e12/ns) }
	if b.base != "" {
		b.beside(w, r.what, r.tasks, of, func(ns float64) string { return rate(ns) + " MB/s" })
		return nil
	}
	quartiles := func(s series) string { return rate(s.at(0.75)) + " to " + rate(s.at(0.25)) }
	name := "shell pipe"
	switch {
	case r.socket:
		name = "the same socket"
	case r.file:
		name = "the same file"
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.2f\n", r.what, r.tasks, runs, rate(of[0].at(0.5)), quartiles(of[0]),
		name, rate(peers.at(0.5)), quartiles(peers), peers.at(0.5)/of[0].at(0.5))
	return nil
}

// commands are who writes and who reads, of which one is a step; each is what a task
// writes.
func (r *streamRow) commands(n *noded, pump string, each int64) (from, to []string) {
	write := []string{pump, "w", fmt.Sprint(each), fmt.Sprint(lineWidth)}
	args := append([]string{"-n", fmt.Sprint(r.tasks), "--overcommit"}, r.args...)
	if r.input {
		return write, n.run(append(args, pump, "r")...)
	}
	return n.run(append(args, write...)...), []string{pump, "r"}
}

// peer is the same of processes alone, of which as many write as the step has tasks.
func (r *streamRow) peer(pump string, each int64) (from, to []string) {
	read := []string{pump, "r"}
	if r.input {
		return []string{pump, "w", fmt.Sprint(each * int64(r.tasks)), fmt.Sprint(lineWidth)}, read
	}
	return []string{"sh", "-c", `n=$1; shift; while [ $n -gt 0 ]; do "$@" & n=$((n-1)); done; wait`, "sh", fmt.Sprint(r.tasks),
		pump, "w", fmt.Sprint(each), fmt.Sprint(lineWidth)}, read
}

// join runs two commands with a pipe, or what the row has instead, between them, and
// returns how long the bytes took, from the first that was read to the last: what a
// launch takes is in other rows. Into a file it is the whole run.
func (r *streamRow) join(from, to []string) (time.Duration, error) {
	read, write, err := r.ends()
	if err != nil {
		return 0, err
	}
	if r.file {
		defer os.Remove(write.Name())
	}
	var fromSaid, toSaid strings.Builder
	a, b := exec.Command(from[0], from[1:]...), exec.Command(to[0], to[1:]...)
	a.Stdout, b.Stdin, a.Stderr, b.Stderr = write, read, &fromSaid, &toSaid
	start := time.Now()
	if !r.file {
		err = b.Start()
	}
	if err == nil {
		err = a.Run()
	}
	write.Close()
	if read != nil {
		read.Close()
	}
	if err == nil && !r.file {
		err = b.Wait()
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %s%s", err, fromSaid.String(), toSaid.String())
	}
	if r.file {
		return time.Since(start), nil
	}
	return slowest(toSaid.String())
}

// ends are what joins the two commands; read is nil of a file.
func (r *streamRow) ends() (read, write *os.File, err error) {
	switch {
	case r.socket:
		return socketPair()
	case r.file:
		write, err = os.CreateTemp("", "stepd-bench")
		return nil, write, err
	}
	return os.Pipe()
}

// slowest is the longest time that those who read have told.
func slowest(said string) (longest time.Duration, err error) {
	for line := range strings.Lines(said) {
		var bytes, ns int64
		if _, err := fmt.Sscanf(line, "pumped %d %d", &bytes, &ns); err != nil {
			return 0, fmt.Errorf("pump said %q", line)
		}
		longest = max(longest, time.Duration(ns))
	}
	if longest == 0 {
		return 0, errors.New("pump said nothing")
	}
	return longest, nil
}

func socketPair() (read, write *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write"), nil
}
