// Command stepctl is the client of noded: what srun, scancel and squeue are to
// Slurm.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
)

// exitError ends the program with a code and no words: they were said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

func main() {
	err := newRoot().Execute()
	var code exitError
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		say("error: %s", plain(err))
		os.Exit(1) // never 2, which is ENOENT of a task (design §7)
	}
}

// say writes one line of stepctl's own to stderr.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "stepctl: "+format+"\n", args...)
}

// plain takes gRPC's wrapping off an error: its code is for programs.
func plain(err error) string {
	if s, ok := status.FromError(err); ok && s != nil {
		return s.Message()
	}
	return err.Error()
}

func newRoot() *cobra.Command {
	d := &dialer{}
	root := &cobra.Command{
		Use:           "stepctl",
		Short:         "run and control job steps on this node",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().StringVar(&d.socket, "socket", "", "noded's socket (default $NODED_SOCKET, then "+defaultSocket+")")
	root.AddCommand(runCommand(d), psCommand(d), showCommand(d), signalCommand(d), cancelCommand(d),
		eventsCommand(d), timelineCommand(d), nodeCommand(d))
	return root
}
