package slurmstepd

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/slurm/spec"
	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/spank/jobscript"
	"stepd/step/launch"
	"stepd/stepd/report"
)

// jobScript is `slurmstepd spank prolog|epilog`, which slurmd runs before a job's prolog and
// epilog, if the plugins have such a hook: the job is in the environment, the node's
// configuration on stdin. slurmd drains the node where the exit code is not 0.
func jobScript(arg string) int {
	hook := jobscript.HookOf(arg)
	if hook == "" {
		fmt.Fprintf(os.Stderr, "slurmstepd: cannot run plugins for %q: slurmd runs slurmstepd spank prolog, and slurmstepd spank epilog\n", arg)
		return 1
	}
	arg = strings.Clone(arg) // the title takes the place of the arguments
	setTitle("slurmstepd", "slurmstepd: [spank "+arg+"]")
	conf, err := wire.ReadConf(os.Stdin)
	if err != nil {
		fmt.Fprintf(os.Stderr, "slurmstepd: %v\n", err)
		return 1
	}
	log, _ := openLog(conf.LogFile, "spank-"+arg, conf.Debug)
	if err := callHooks(conf, hook, func(level launch.LogLevel, text string) { report.Log(log, level, text) }); err != nil {
		log.Error(err)
		return 1
	}
	return 0
}

// callHooks calls a hook of the job's plugins. The error is a required plugin's, or says why
// none was called.
func callHooks(conf *wire.Conf, hook string, log func(launch.LogLevel, string)) error {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("cannot keep descriptors from plugins: close_range: %w (Linux 5.11 or newer is needed)", err)
	}
	c, err := slurmconf.LoadSlurmd(cmp.Or(os.Getenv("SLURM_CONF"), conf.ConfFile), conf.Host, conf.Node)
	if err != nil {
		return err
	}
	env := os.Environ()
	job, err := spec.OfJob(conf, c, env)
	if err != nil {
		return err
	}
	_, err = jobscript.Run(jobscript.Config{Hook: hook, Job: job.Spec, State: job.State, Env: env, JobControl: job.JobControl, Log: log})
	if err != nil {
		return fmt.Errorf("job %d: %w", job.Spec.ID.Job, err)
	}
	return nil
}
