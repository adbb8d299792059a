package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/spank"
	"stepd/step"
)

// AllocCommand is the verb alloc.
func AllocCommand(d *Dialer) *cobra.Command {
	o := &options.Run{}
	c := &cobra.Command{
		Use:         "alloc [options] [--] [COMMAND [ARG...]]",
		Short:       "hold CPUs for a job while a command (default: $SHELL) runs",
		Annotations: map[string]string{UsesPlugins: spank.ContextAllocator.String()},
		RunE: func(c *cobra.Command, argv []string) error {
			if err := options.FromEnv(c.Flags(), options.Allocation); err != nil {
				return err
			}
			o.TellUnused()
			code, err := alloc(d.Client(), o, d, argv)
			return terminal.Exit(code, err)
		},
	}
	o.BindAlloc(c)
	return c
}

// alloc holds a job while the command runs, and returns the command's code.
func alloc(client *api.Client, o *options.Run, d *Dialer, argv []string) (int, error) {
	p := d.Plugins
	interactive := len(argv) == 0 && p.Shell != ""
	var err error
	switch {
	case interactive:
		if argv, err = interactiveCommand(p.Shell); err != nil {
			return 0, err
		}
	case len(argv) == 0:
		argv = []string{shell()}
	}
	return p.Around(client, func() (int, error) { return allocated(client, o, d, argv, interactive) })
}

func allocated(client *api.Client, o *options.Run, d *Dialer, argv []string, interactive bool) (int, error) {
	p := d.Plugins
	p.Env = outsideStep(p.Env)
	o.Name = cmp.Or(o.Name, "interactive") // salloc's
	req, err := o.Request(options.Allocation, argv, p)
	if err != nil {
		return 0, err
	}
	if o.TestOnly {
		return willRun(client, req)
	}
	job, err := admitted(o, req, func(in *api.RunRequest) (*api.AllocReply, error) {
		return client.Alloc(context.Background(), in)
	})
	if err != nil {
		return 0, err
	}
	tell := func(format string, args ...any) {
		if !o.Quiet {
			terminal.Say(format, args...)
		}
	}
	tell("Granted job allocation %d", job.JobID)
	o.TellMemory(p)
	p.WarnTooLong()
	p.ExitEnv = append(allocEnv(req, p, job), p.JobEnv()...)
	over, stop := watchJob(client, job.JobID)
	ended, err := inJob(req, d, job, argv, o, over, tell)
	stop()
	_, killed := ended.Signaled()
	left := ended.Code() == shellLeft // by its detach keys, or with its terminal
	if (killed || left) && interactive && shellRuns(client, job.JobID) {
		id := step.ID{Job: job.JobID, Step: step.InteractiveStep}
		tell("Job %d goes on until its shell ends: `stepctl attach %s` takes that up again", id.Job, id.Name())
		if left {
			return 0, nil
		}
		return ended.Code(), nil
	}
	tell("Relinquishing job allocation %d", job.JobID)
	rerr := client.Release(context.Background(), job.JobID)
	if rerr != nil && api.CodeOf(rerr) != api.NotFound { // it may have ended by itself
		// noded gives it back when this process is gone; the code is the command's.
		terminal.Say("error: cannot give job %d back: %s", job.JobID, rerr)
	}
	return ended.Code(), err
}

// watchJob reports when the job is over before it was given back: it was
// cancelled. A noded that is gone says nothing: the job lives on.
func watchJob(client *api.Client, job uint32) (over <-chan struct{}, stop func()) {
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			_, err := client.Wait(ctx, api.StepRef{JobID: job})
			if err == nil || api.CodeOf(err) == api.NotFound {
				close(ended)
				return
			}
			// Only trying shows when a socket is served again.
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	})
	return ended, func() { cancel(); watch.Wait() }
}

func shell() string { return cmp.Or(os.Getenv("SHELL"), "/bin/sh") }

// allocEnv is what the job's command has of the job (traces/salloc_reg.tsv).
func allocEnv(req *step.Request, p *plugins.Host, job *api.AllocReply) (env []string) {
	if req.AcctgFreq != nil { // the steps' own
		env = append(env, fmt.Sprintf("SLURM_ACCTG_FREQ=%d", *req.AcctgFreq))
	}
	return slices.Concat(env, options.JobVariables(job.JobID, req.NTasks, job.CPUs, job.Node, job.Partition, p.Cluster, req.Name),
		options.MemoryVariables(req), []string{"SLURM_JOB_NODELIST=" + job.Node, "SLURM_SUBMIT_DIR=" + req.Cwd, "SLURM_SUBMIT_HOST=" + req.SubmitHost})
}

// revokeGrace is how long the command of a job that is over may take to end by
// itself: it may have noticed it by a step, and have a code of its own.
const revokeGrace = time.Second

// inJob runs the command with the job's variables. It is the user's own
// process, here: Ctrl-C is the terminal's to send it.
func inJob(req *step.Request, d *Dialer, job *api.AllocReply, argv []string, o *options.Run, over <-chan struct{}, tell func(string, ...any)) (step.ExitStatus, error) {
	kill, err := options.ParseSignal(o.KillCommand)
	if err != nil {
		return 0, fmt.Errorf("--kill-command: %w", err)
	}
	path, _ := d.Path()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = os.Stdin, os.Stdout, os.Stderr, req.Cwd
	p := d.Plugins
	cmd.Env = slices.Concat(p.Env, allocEnv(req, p, job), o.Binding.Env(), []string{"NODED_SOCKET=" + path}, p.JobEnv(), p.ShortOptionEnv())
	sigs := make(chan os.Signal, 16) // a burst of signals must not be lost
	d.release()
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(sigs)
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("cannot run %q: %w", argv[0], err)
	}
	var late <-chan time.Time
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case <-over:
			over = nil
			if late := req.TimeLimitS; late > 0 && time.Since(began) >= time.Duration(late)*time.Second {
				tell("Job %d has exceeded its time limit and its allocation has been revoked.", job.JobID)
			} else {
				tell("Job allocation %d has been revoked.", job.JobID)
			}
			late = time.After(revokeGrace)
		case <-late:
			// SIGHUP is as a terminal that hangs up: an interactive shell ends by it.
			_ = cmd.Process.Signal(syscall.Signal(kill))
			_ = cmd.Process.Signal(syscall.SIGCONT)
		case sig := <-sigs:
			// The terminal has sent INT and QUIT to the command as well.
			if sig == syscall.SIGTERM || sig == syscall.SIGHUP {
				_ = cmd.Process.Signal(sig) // it may have ended just now
			}
		case err := <-ended:
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				return step.ExitStatus(exit.Sys().(syscall.WaitStatus)), nil
			}
			return 0, err
		}
	}
}

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

// BatchCommand is the verb batch.
func BatchCommand(d *Dialer) *cobra.Command {
	o := &options.Batch{}
	c := &cobra.Command{
		Use:         "batch [options] [SCRIPT [ARG...]]",
		Short:       "run a script as a job of its own, and do not wait for it",
		Annotations: map[string]string{UsesPlugins: spank.ContextAllocator.String()},
		RunE: func(c *cobra.Command, argv []string) error {
			client := d.Client()
			script, argv, err := o.Script(argv)
			if err != nil {
				return err
			}
			if err := options.FromEnv(c.Flags(), options.BatchJob); err != nil {
				return err
			}
			if o.Lines, err = options.FromScript(c, d.Plugins, argv[0], script); err != nil {
				return err
			}
			o.TellUnused()
			code, err := batch(client, o, d.Plugins, script, argv)
			err = o.Lines.Locate(err)
			return terminal.Exit(code, err)
		},
	}
	o.Bind(c)
	c.Flags().StringVar(&o.Wrap, "wrap", "", "a command of the shell instead of a script")
	return c
}

// batch submits the script.
func batch(client *api.Client, o *options.Batch, p *plugins.Host, script []byte, argv []string) (int, error) {
	p.PostOptEnv = []string{"SLURM_JOB_NAME=" + cmp.Or(o.Name, options.NameOf(argv[0]))}
	return p.Around(client, func() (int, error) { return submit(client, o, p, script, argv) })
}

func submit(client *api.Client, o *options.Batch, p *plugins.Host, script []byte, argv []string) (int, error) {
	p.Env = outsideStep(p.Env)
	req, err := o.Request(options.BatchJob, append([]string{filepath.Base(argv[0])}, argv[1:]...), p)
	if err != nil {
		return 0, err
	}
	// Measured: a batch step has the options by its environment alone.
	req.Script, req.SpankOptions = script, nil
	p.WarnTooLong() // stepd makes the script's environment of JobControl
	p.ExitEnv = append(p.JobEnv(), "SLURM_JOB_NAME="+req.Name, "SLURM_SUBMIT_DIR="+req.Cwd, "SLURM_SUBMIT_HOST="+req.SubmitHost)
	own, err := o.ClientEnv(p, int(req.Umask))
	if err != nil {
		return 0, err
	}
	p.ExitEnv = append(p.ExitEnv, slices.DeleteFunc(own, func(e string) bool { return strings.HasPrefix(e, "SRUN_") })...)
	if o.TestOnly {
		return willRun(client, req)
	}
	ctx := context.Background()
	reply, err := admitted(&o.Run, req, func(in *api.RunRequest) (*api.RunReply, error) {
		return client.Run(ctx, in)
	})
	if err != nil {
		return 0, err
	}
	p.Ends = &step.ID{Job: reply.JobID, Step: reply.StepID}
	if o.Parsable {
		fmt.Println(reply.JobID)
	} else {
		fmt.Printf("Submitted batch job %d\n", reply.JobID)
	}
	o.TellMemory(p)
	if !o.Wait {
		return 0, nil
	}
	return waitForJob(ctx, client, *p.Ends)
}

// waitForJob waits for the end of a batch job, and returns its code; 1 of one whose end is
// not known, which is printed. That noded stays away is an error.
func waitForJob(ctx context.Context, client waiter, id step.ID) (int, error) {
	rec, err := awaitRecord(ctx, client, id, sayGone)
	switch {
	case errors.Is(err, errNotBack):
		return 0, err
	case err != nil:
		terminal.Say("error: batch job %d: its exit code is not known: %s", id.Job, err)
		return 1, nil
	case rec.ExitCode == nil:
		terminal.Say("error: batch job %d: %s, and its exit code is not known: %s", id.Job, rec.State, rec.Reason)
		return 1, nil
	case rec.State != step.Completed && rec.Reason != "":
		terminal.Say("error: batch job %d: %s: %s", id.Job, rec.State, rec.Reason)
	}
	return *rec.ExitCode, nil
}
