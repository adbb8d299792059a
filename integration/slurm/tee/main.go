// Command tee is a step daemon that writes down what slurmd sends, and runs the program
// "daemon" beside it, a link to the real one: the golden streams of slurm/wire are made so
// (docs/HACKING.md).
//
// The files are beside the programs: PID.stream of a step, PID.conf of a prolog or epilog of
// plugins. Tokens of munge are blanked, and slurmd's acknowledgement is left out.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
)

// tokens are what munge makes.
var tokens = regexp.MustCompile(`MUNGE:[A-Za-z0-9+/=]+:`)

// blank takes tokens out of a stream, and keeps its lengths.
func blank(stream []byte) []byte {
	return tokens.ReplaceAllFunc(stream, func(token []byte) []byte {
		return append(append([]byte("MUNGE:"), bytes.Repeat([]byte("A"), len(token)-7)...), ':')
	})
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tee:", err)
		os.Exit(1)
	}
}

// acknowledgement is the size of what slurmd sends when it has the daemon's answer.
const acknowledgement = 4

func run(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := filepath.Dir(self)
	daemon, kind, behind := filepath.Join(dir, "daemon"), ".stream", acknowledgement
	switch {
	case len(args) == 2 && args[0] == "spank":
		kind, behind = ".conf", 0
	case len(args) > 0: // nothing is sent
		return syscall.Exec(daemon, append([]string{daemon}, args...), os.Environ())
	}
	cmd := exec.Command(daemon, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	os.Stdout.Close() // slurmd waits for its end, or for an answer
	var sent bytes.Buffer
	_, err = io.Copy(io.MultiWriter(&sent, in), os.Stdin)
	in.Close()
	stream := sent.Bytes()[:max(0, sent.Len()-behind)]
	if werr := os.WriteFile(filepath.Join(dir, fmt.Sprint(os.Getpid(), kind)), blank(stream), 0o600); err == nil {
		err = werr
	}
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	return err
}
