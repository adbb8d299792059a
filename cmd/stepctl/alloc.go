package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/spank"
	"stepd/step"
)

func allocCommand(d *dialer) *cobra.Command {
	o := &runOptions{}
	c := &cobra.Command{
		Use:         "alloc [options] [--] [COMMAND [ARG...]]",
		Short:       "hold CPUs for a job while a command (default: $SHELL) runs",
		Annotations: map[string]string{usesPlugins: spank.ContextAllocator.String()},
		RunE: func(c *cobra.Command, argv []string) error {
			if err := refuseLeft("SALLOC_"); err != nil {
				return err
			}
			if err := bindingFromEnv(c.Flags(), "SALLOC_"); err != nil {
				return err
			}
			if err := optionsFromEnv(c.Flags(), allocEnvOptions); err != nil {
				return err
			}
			client := d.client()
			code, err := alloc(client, o, d, argv)
			if err == nil && code != 0 {
				return exitError(code)
			}
			return err
		},
	}
	o.bindJob(c)
	return c
}

// alloc holds a job while the command runs, and returns the command's code.
func alloc(client *api.Client, o *runOptions, d *dialer, argv []string) (int, error) {
	p := d.plugins
	interactive := len(argv) == 0 && p.shell != ""
	var err error
	switch {
	case interactive:
		if argv, err = interactiveCommand(p.shell); err != nil {
			return 0, err
		}
	case len(argv) == 0:
		argv = []string{shell()}
	}
	if err := p.take(); err != nil {
		return 0, err
	}
	code, err := allocated(client, o, d, argv, interactive)
	p.exit()
	return p.strictCode(code), err
}

func allocated(client *api.Client, o *runOptions, d *dialer, argv []string, interactive bool) (int, error) {
	p := d.plugins
	p.env = outsideStep(p.env)
	if o.name == "" {
		o.name = "interactive" // salloc's
	}
	req, err := o.request(allocation, argv, p)
	if err != nil {
		return 0, err
	}
	job, err := inTurn(o, req, func(in *api.RunRequest) (*api.AllocReply, error) {
		return client.Alloc(context.Background(), in)
	})
	if err != nil {
		return 0, err
	}
	tell := func(format string, args ...any) {
		if !o.quiet {
			say(format, args...)
		}
	}
	tell("Granted job allocation %d", job.JobID)
	p.tellTooLong()
	p.exitEnv = append(allocEnv(req, p, job), p.jobEnv()...)
	over, stop := watchJob(client, job.JobID)
	ended, err := inJob(req, d, job, argv, o.place.env(), over, tell)
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
		say("error: cannot give job %d back: %s", job.JobID, rerr)
	}
	return ended.Code(), err
}

// watchJob tells when the job is over before it was given back: somebody has
// cancelled it. A noded that is gone says nothing: the job lives on.
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
			// Nothing tells when a socket is served again but trying it.
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	})
	return ended, func() { cancel(); watch.Wait() }
}

func shell() string {
	if s := os.Getenv("SHELL"); s != "" {
		return s
	}
	return "/bin/sh"
}

// allocEnv is what the job's command has of the job (traces/salloc_reg.tsv).
func allocEnv(req *step.Request, p *plugins, job *api.AllocReply) []string {
	return append(jobVariables(job.JobID, req.NTasks, job.CPUs, job.Node, job.Partition, p.cluster, req.Name),
		append(memoryVariables(req), "SLURM_JOB_NODELIST="+job.Node, "SLURM_SUBMIT_DIR="+req.Cwd, "SLURM_SUBMIT_HOST="+req.SubmitHost)...)
}

// revokeGrace is how long the command of a job that is over may take to end by
// itself: it may have heard of it from a step, and have a code of its own.
const revokeGrace = time.Second

// inJob runs the command with the job's variables. It is the user's own
// process, here: Ctrl-C is the terminal's to send it.
func inJob(req *step.Request, d *dialer, job *api.AllocReply, argv, options []string, over <-chan struct{}, tell func(string, ...any)) (step.ExitStatus, error) {
	path, _ := d.path()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = os.Stdin, os.Stdout, os.Stderr, req.Cwd
	p := d.plugins
	cmd.Env = append(append([]string(nil), p.env...), allocEnv(req, p, job)...)
	cmd.Env = append(append(append(append(cmd.Env, options...), "NODED_SOCKET="+path), p.jobEnv()...), p.shortOptionEnv()...)
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
			// As a terminal that hangs up: an interactive shell ends by it.
			_ = cmd.Process.Signal(syscall.SIGHUP)
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
