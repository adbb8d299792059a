package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/spank"
	"stepd/step"
)

// batchOptions are those of batch beyond run's.
type batchOptions struct {
	runOptions
	wait, parsable     bool
	wrap               string
	array, begin       string
	requeue, noRequeue bool
	hold               bool
	dependency         string
	killInvalid        string
	// lines are where the script gives options.
	lines optionLines
}

func batchCommand(d *dialer) *cobra.Command {
	o := &batchOptions{}
	c := &cobra.Command{
		Use:         "batch [options] [SCRIPT [ARG...]]",
		Short:       "run a script as a job of its own, and do not wait for it",
		Long:        "batch runs SCRIPT (default: what stdin holds) as a job of its own. Lines of it that begin with\n#SBATCH or #STEP, before its first command, are options; the command line's overrule them.",
		Annotations: map[string]string{usesPlugins: spank.ContextAllocator.String()},
		RunE: func(c *cobra.Command, argv []string) error {
			client, err := d.client()
			if err != nil {
				return err
			}
			script, argv, err := o.script(argv)
			if err != nil {
				return err
			}
			if err := bindingFromEnv(c.Flags(), "SBATCH_"); err != nil {
				return err
			}
			if err := optionsFromEnv(c.Flags(), batchEnvOptions); err != nil {
				return err
			}
			if o.lines, err = scriptOptions(c, d.plugins, argv[0], script); err != nil {
				return err
			}
			code, err := batch(client, o, d.plugins, script, argv)
			err = o.lines.place(err)
			if err == nil && code != 0 {
				return exitError(code)
			}
			return err
		},
	}
	o.bind(c)
	c.Flags().StringVar(&o.wrap, "wrap", "", "a command of the shell instead of a script")
	return c
}

// bind binds what the lines of a script may say, too.
func (o *batchOptions) bind(c *cobra.Command) {
	o.bindJob(c)
	o.bindOutput(c, "none", "slurm-%j.out")
	f := c.Flags()
	f.BoolVarP(&o.wait, "wait", "W", false, "wait for the job's end and exit with its code")
	f.StringVarP(&o.array, "array", "a", "", "a job for each of these task numbers: 0-15, 1,3,7 or 0-15:4; %N at the end: at most N at a time")
	f.StringVarP(&o.begin, "begin", "b", "", "start at this time or later: HH:MM, YYYY-MM-DD[THH:MM[:SS]], now+N[minutes|hours|days], midnight, noon, tomorrow")
	f.BoolVarP(&o.hold, "hold", "H", false, "do not start it until stepctl release lets go of it")
	f.StringVarP(&o.dependency, "dependency", "d", "", "wait for batch jobs: KIND:JOB[:JOB...] with KIND after, afterany, afterok, afternotok or aftercorr, after:JOB+MINUTES, or singleton; commas part what all has to come, question marks what one of has to")
	f.StringVar(&o.killInvalid, "kill-on-invalid-dep", "", "end it where its dependency can never be met: yes or no (default: DependencyParameters)")
	f.BoolVar(&o.requeue, "requeue", false, "run it again when the node was lost, or by stepctl requeue (default: JobRequeue)")
	f.BoolVar(&o.noRequeue, "no-requeue", false, "never run it again")
	f.BoolVar(&o.parsable, "parsable", false, "print the job's number alone")
}

// script reads the script, as the caller.
func (o *batchOptions) script(argv []string) ([]byte, []string, error) {
	if o.wrap != "" {
		if len(argv) > 0 {
			return nil, nil, errors.New("--wrap and a script exclude each other")
		}
		return []byte("#!/bin/sh\n" + o.wrap + "\n"), []string{"wrap"}, nil
	}
	in, name := os.Stdin, "sbatch" // the name that sbatch gives it
	if len(argv) > 0 {
		f, err := os.Open(argv[0])
		if err != nil {
			return nil, nil, fmt.Errorf("cannot read script: %w", err)
		}
		defer f.Close()
		in, name = f, argv[0]
	} else {
		argv = []string{name}
	}
	b, err := io.ReadAll(io.LimitReader(in, step.ScriptMax+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read script %q: %w", name, err)
	case len(b) > step.ScriptMax:
		return nil, nil, fmt.Errorf("cannot submit script %q: more than %d bytes", name, step.ScriptMax)
	case !bytes.HasPrefix(b, []byte("#!")):
		return nil, nil, fmt.Errorf("cannot submit script %q: its first line does not begin with #! and the path of an interpreter", name)
	case bytes.IndexByte(b, 0) >= 0:
		return nil, nil, fmt.Errorf("cannot submit script %q: it holds a NUL byte", name)
	case bytes.Contains(b, []byte("\r\n")):
		return nil, nil, fmt.Errorf("cannot submit script %q: its lines end with CR LF: use dos2unix", name)
	}
	return b, argv, nil
}

// batch submits the script.
func batch(client api.NodeClient, o *batchOptions, p *plugins, script []byte, argv []string) (int, error) {
	p.postOptEnv = []string{"SLURM_JOB_NAME=" + cmp.Or(o.name, nameOf(argv[0]))}
	if err := p.take(); err != nil {
		return 0, err
	}
	code, err := submit(client, o, p, script, argv)
	p.exit()
	return p.strictCode(code), err
}

func submit(client api.NodeClient, o *batchOptions, p *plugins, script []byte, argv []string) (int, error) {
	p.env = outsideStep(p.env)
	if o.array != "" && o.output == "slurm-%j.out" {
		o.output = "slurm-%A_%a.out"
	}
	req, err := o.request(batchJob, append([]string{filepath.Base(argv[0])}, argv[1:]...), p)
	if err != nil {
		return 0, err
	}
	// Measured: a batch step has the options by its environment alone.
	req.Script, req.SpankOptions = script, nil
	jobs, err := o.setQueue(req)
	if err != nil {
		return 0, err
	}
	p.tellTooLong() // stepd makes the script's environment of JobControl
	p.exitEnv = append(p.jobEnv(), "SLURM_JOB_NAME="+req.Name, "SLURM_SUBMIT_DIR="+req.Cwd, "SLURM_SUBMIT_HOST="+req.SubmitHost)
	own, err := o.clientEnv(p, int(req.Umask))
	if err != nil {
		return 0, err
	}
	for _, e := range own {
		if !strings.HasPrefix(e, "SRUN_") {
			p.exitEnv = append(p.exitEnv, e)
		}
	}
	req.Pack()
	doc, err := json.Marshal(req)
	if err != nil {
		return 0, fmt.Errorf("cannot encode the request: %w", err)
	}
	ctx := context.Background()
	reply, err := client.Run(ctx, &api.RunRequest{Request: doc})
	if err != nil {
		return 0, err
	}
	if o.parsable {
		fmt.Println(reply.JobId)
	} else {
		fmt.Printf("Submitted batch job %d\n", reply.JobId)
	}
	if !o.wait {
		return 0, nil
	}
	return waitForJobs(client, step.ID{Job: reply.JobId, Step: reply.StepId}, jobs)
}

// setQueue says when and how often the job is to run. It returns of how many jobs it is.
func (o *batchOptions) setQueue(r *step.Request) (jobs int, err error) {
	jobs, r.Array = 1, o.array
	if o.array != "" {
		a, err := step.ParseArray(o.array, step.ArrayMax)
		if err != nil {
			return 0, fmt.Errorf("--array=%.80s: %w", o.array, err)
		}
		jobs = len(a.Tasks)
	}
	if o.begin != "" {
		t, err := step.ParseBegin(o.begin, time.Now())
		if err != nil {
			return 0, fmt.Errorf("--begin=%.80s: %w", o.begin, err)
		}
		r.Begin = &t
	}
	if o.requeue || o.noRequeue {
		r.Requeue = &o.requeue
	}
	r.Hold = o.hold
	return jobs, o.setDependency(r)
}

// setDependency says what the job waits for; the script is told, too.
func (o *batchOptions) setDependency(r *step.Request) error {
	switch strings.ToLower(o.killInvalid) {
	case "":
	case "yes", "no":
		kill := strings.EqualFold(o.killInvalid, "yes")
		r.KillInvalidDep = &kill
	default:
		return fmt.Errorf("--kill-on-invalid-dep=%.80s: want yes or no", o.killInvalid)
	}
	if o.dependency == "" {
		return nil
	}
	d, err := step.ParseDependencies(o.dependency)
	if err != nil {
		return fmt.Errorf("--dependency=%.80s: %w", o.dependency, err)
	}
	r.Dependency = d.String()
	r.Env = append(r.Env, "SLURM_JOB_DEPENDENCY="+r.Dependency)
	return nil
}

// waitsMax is how many jobs are waited for at a time: noded answers 128 calls of a
// connection at once. Jobs begin in the order of their numbers, mostly.
const waitsMax = 100

// waitForJobs waits for batch jobs that are numbered one after the other, and returns
// the highest code. They are waited for side by side: of one that has ended and is asked
// for only later noded may know nothing any more.
func waitForJobs(client api.NodeClient, first step.ID, jobs int) (int, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	gone := sync.OnceFunc(sayGone)
	var mu sync.Mutex
	var next, highest int // under mu
	var waits sync.WaitGroup
	for range min(jobs, waitsMax) {
		waits.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= jobs {
					return
				}
				code, err := waitForJob(ctx, client, step.ID{Job: first.Job + uint32(i), Step: first.Step}, gone)
				if err != nil {
					cancel(err) // the first one's counts
					return
				}
				mu.Lock()
				highest = max(highest, code)
				mu.Unlock()
			}
		})
	}
	waits.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return highest, nil
}

// waitForJob waits for the end of a batch job, and returns its code; 1 of one whose end is
// not known, which is told. That noded stays away is an error.
func waitForJob(ctx context.Context, client api.NodeClient, id step.ID, gone func()) (int, error) {
	rec, err := awaitRecord(ctx, client, id, gone)
	switch {
	case errors.Is(err, errNotBack) || ctx.Err() != nil:
		return 0, err
	case err != nil:
		say("error: batch job %d: its exit code is not known: %s", id.Job, plain(err))
		return 1, nil
	case rec.ExitCode == nil:
		say("error: batch job %d: %s, and its exit code is not known: %s", id.Job, rec.State, rec.Reason)
		return 1, nil
	case rec.State != step.Completed && rec.Reason != "":
		say("error: batch job %d: %s: %s", id.Job, rec.State, rec.Reason)
	}
	return *rec.ExitCode, nil
}
