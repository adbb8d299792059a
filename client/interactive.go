package client

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"stepd/api"
	"stepd/client/options"
	"stepd/step"
)

// An allocation's shell is a step of the node where the site wants that (LaunchParameters=
// use_interactive_step): alloc starts `stepctl run` with the site's options for it, in a
// process of its own as salloc starts srun, and that is the command of the job.

// interactiveCommand is that command. site, the site's options, are words and variables as a
// shell has them; what a variable holds is one word.
func interactiveCommand(site string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find stepctl: %w", err)
	}
	words, err := options.SplitWords(site)
	if err != nil {
		return nil, fmt.Errorf("cannot use InteractiveStepOptions=%.200q of slurm.conf: %w", site, err)
	}
	command := []string{self, "run"}
	for _, w := range words {
		command = append(command, os.Expand(w, func(name string) string {
			if name == "SHELL" {
				return shell()
			}
			return os.Getenv(name)
		}))
	}
	return command, nil
}

// shellRuns reports whether the job's interactive step runs: then the job goes on with
// it. A noded that does not answer keeps the job in any case.
func shellRuns(client *api.Client, job uint32) bool {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	recs, err := client.Show(ctx, api.StepRef{JobID: job, StepID: new(step.InteractiveStep)})
	return err == nil && len(recs) == 1 && !recs[0].State.Final()
}

// shellLeft is the code of the client of an interactive step that goes on: as if its
// terminal had hung up, so that alloc, which waits for it, reports that from the shell's end.
// It is a code and no signal, which below nohup is ignored.
const shellLeft = 128 + int(syscall.SIGHUP)
