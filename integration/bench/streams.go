package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	nodes  bool     // on two nodes
	tcp    bool     // it is a connection over the loopback
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
	{what: "stdout of two nodes, TLS", tasks: 2, args: []string{"-N2"}, nodes: true},
	{what: "stdout of two nodes, TLS, labelled", tasks: 2, args: []string{"-N2", "-l"}, nodes: true},
	{what: "stdin", tasks: 1, input: true},
	{what: "stdin of another user", tasks: 1, input: true, args: other},
	{what: "stdin to all, bytes delivered", tasks: 64, input: true},
}

// lineWidth is that of the lines that are written.
const lineWidth = 80

// runStreams is how fast the bytes of the tasks are, beside a pipe of the shell's: of
// the rows that have only in their name, each so many times; 0 is the usual.
func runStreams(bin string, quick bool, only string, times int) error {
	dir, err := os.MkdirTemp("", "stepd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pump := filepath.Join(dir, "pump")
	src := filepath.Join(filepath.Dir(bin), "integration", "bench", "pump", "pump.c")
	if out, err := exec.Command("gcc", "-O2", "-o", pump, src).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot compile %q: %w: %s", src, err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // another user runs pump
		return err
	}
	node, err := startNoded(bin, filepath.Join(dir, "streams"), 64)
	if err != nil {
		return err
	}
	defer node.stop()
	two, twoErr := startTwo(bin, filepath.Join(dir, "two"))
	if twoErr == nil {
		defer two[0].stop()
		defer two[1].stop()
	}
	// Many short runs: how fast a pipe is depends by half on which processor either end
	// comes to be on, and that it keeps for a run.
	runs, bytes := 11, int64(1e9)
	if quick {
		runs, bytes = 3, 4e8
	}
	if times > 0 {
		runs = times
	}
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "\nstreams, lines of %d bytes\ttasks\tN\tMB/s: median\tquartiles\tpeer\tits median\tquartiles\tratio\n", lineWidth)
	for _, r := range streamRows {
		if !strings.Contains(r.what, only) {
			continue
		}
		of := node
		if r.nodes {
			if twoErr != nil {
				fmt.Fprintf(w, "%s\t%d\t\tnot measured: %v\t\t\t\t\t\n", r.what, r.tasks, twoErr)
				continue
			}
			of = two[0]
		}
		if err := r.measure(w, of, pump, runs, bytes); err != nil {
			return fmt.Errorf("%s, %d tasks: %w", r.what, r.tasks, err)
		}
		w.Flush()
	}
	return nil
}

// measure takes turns with the peer, so that both have the same machine.
func (r *streamRow) measure(w *tabwriter.Writer, n *noded, pump string, runs int, bytes int64) error {
	each := bytes / int64(r.tasks) / lineWidth * lineWidth
	write := []string{pump, "w", fmt.Sprint(each), fmt.Sprint(lineWidth)}
	read := []string{pump, "r"}
	// The peer has as many writers as the step.
	whole := []string{"sh", "-c", `n=$1; shift; while [ $n -gt 0 ]; do "$@" & n=$((n-1)); done; wait`, "sh", fmt.Sprint(r.tasks)}
	whole = append(whole, write...)
	if r.input {
		whole = []string{pump, "w", fmt.Sprint(each * int64(r.tasks)), fmt.Sprint(lineWidth)}
	}
	run := func(cmd []string) []string {
		args := append([]string{"-n", fmt.Sprint(r.tasks), "--overcommit"}, r.args...)
		return n.run(append(args, cmd...)...)
	}
	var ours, peers series // nanoseconds a gigabyte
	from, to := run(write), read
	if r.input {
		from, to = write, run(read)
	}
	perGB := 1e9 / float64(each*int64(r.tasks))
	for i := range 2 * runs {
		if (i+1)/2%2 == 0 { // ours, the peer, the peer, ours, …
			took, err := r.join(from, to)
			if err != nil {
				return err
			}
			ours = append(ours, uint64(float64(took)*perGB))
			continue
		}
		peer, err := r.joinPeer(whole, read)
		if err != nil {
			return err
		}
		peers = append(peers, uint64(float64(peer)*perGB))
	}
	rate := func(ns uint64) string { return fmt.Sprintf("%.0f", 1e12/float64(ns)) }
	quartiles := func(s series) string { return rate(s.at(0.75)) + " to " + rate(s.at(0.25)) }
	name := "shell pipe"
	switch {
	case r.socket:
		name = "the same socket"
	case r.file:
		name = "the same file"
	case r.nodes:
		name = "one pipe over TLS"
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.2f\n", r.what, r.tasks, runs, rate(ours.at(0.5)), quartiles(ours),
		name, rate(peers.at(0.5)), quartiles(peers), float64(peers.at(0.5))/float64(ours.at(0.5)))
	return nil
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
	case r.tcp:
		return tcpPair()
	case r.file:
		write, err = os.CreateTemp("", "stepd-bench")
		return nil, write, err
	}
	return os.Pipe()
}

// joinPeer runs what the row is compared with.
func (r *streamRow) joinPeer(from, to []string) (time.Duration, error) {
	if !r.nodes {
		return r.join(from, to)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	peer := *r
	peer.tcp = true
	return peer.join(append([]string{"sh", "-c", `bench=$1; shift; "$@" | "$bench" -tls-end write`, "sh", self}, from...),
		append([]string{"sh", "-c", `bench=$1; shift; "$bench" -tls-end read | "$@"`, "sh", self}, to...))
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

// startTwo starts two nodes that know each other, on addresses of the loopback.
func startTwo(bin, dir string) (nodes [2]*noded, err error) {
	tls := filepath.Join(dir, "tls")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nodes, err
	}
	if out, err := exec.Command(filepath.Join(bin, "noded"), "--bootstrap-ca", tls, "b1", "b2").CombinedOutput(); err != nil {
		return nodes, fmt.Errorf("noded --bootstrap-ca: %w: %s", err, out)
	}
	text := "ClusterName=bench\nNodeName=b1 NodeAddr=127.0.0.1 CPUs=8\nNodeName=b2 NodeAddr=127.0.0.2 CPUs=8\nPartitionName=p Nodes=ALL Default=YES\n"
	for i, name := range []string{"b1", "b2"} {
		own := filepath.Join(dir, name)
		conf := fmt.Sprintf("TLSCertificate=%s/%s.pem\nTLSKey=%s/%s.key\nTLSCA=%s/ca.pem\nListenAddress=127.0.0.%d\n", tls, name, tls, name, tls, i+1)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return nodes, err
		}
		if err := os.WriteFile(filepath.Join(own, "stepd.conf"), []byte(conf), 0o644); err != nil {
			return nodes, err
		}
		file := filepath.Join(own, "slurm.conf")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return nodes, err
		}
		if nodes[i], err = serve(bin, own, "-f", file, "--node-name", name); err != nil {
			if i > 0 {
				nodes[0].stop()
			}
			return nodes, err
		}
	}
	return nodes, nil
}
