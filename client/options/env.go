package options

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/client/plugins"
	"stepd/internal/linux"
	"stepd/internal/nofile"
	"stepd/srunopt"
	"stepd/step"
)

// exported applies --export to the caller's environment (srun(1)): ALL, NONE,
// or a list of names and NAME=VALUE, with ALL in it for all the rest.
func exported(spec string, environ []string) ([]string, error) {
	switch strings.ToUpper(spec) {
	case "", "ALL":
		return environ, nil
	case "NONE", "NIL":
		return onlySlurm(environ), nil
	}
	var env []string
	all := false
	for _, item := range exportItems(spec) {
		name, _, set := strings.Cut(item, "=")
		switch {
		case strings.EqualFold(item, "ALL"):
			all = true
		case name == "":
			return nil, fmt.Errorf("--export=%s: %q names no variable", spec, item)
		case set:
			env = append(env, item)
		default:
			if v, ok := LookupIn(environ, name); ok {
				env = append(env, name+"="+v)
			}
		}
	}
	if all {
		return slices.Concat(environ, env), nil
	}
	return append(onlySlurm(environ), env...), nil
}

// exportItems parts a list at its commas: those within quotes belong to a value,
// which keeps its quotes, as srun has it.
func exportItems(spec string) (items []string) {
	var quote rune
	from := 0
	for i, c := range spec {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == ',':
			items = append(items, spec[from:i])
			from = i + 1
		}
	}
	return append(items, spec[from:])
}

// LookupIn finds a variable; the last one counts.
func LookupIn(environ []string, name string) (value string, ok bool) {
	for _, e := range environ {
		if v, found := strings.CutPrefix(e, name+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// onlySlurm keeps what the step's own life needs when nothing is exported.
func onlySlurm(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool { return !strings.HasPrefix(e, "SLURM_") && !strings.HasPrefix(e, "SPANK_") })
}

// limits are the caller's soft limits, as SLURM_RLIMIT_* variables.
func limits() ([]string, error) {
	var env []string
	for _, l := range linux.ResourceLimits {
		var limit unix.Rlimit
		if err := unix.Getrlimit(l.Number, &limit); err != nil {
			return nil, fmt.Errorf("cannot read the limit %s: %w", l.Name, err)
		}
		if l.Number == unix.RLIMIT_NOFILE { // Go has raised it
			soft, ok := nofile.AtStart()
			if !ok {
				return nil, fmt.Errorf("cannot read the limit %s that this process was started with", l.Name)
			}
			limit.Cur = soft
		}
		env = append(env, srunopt.LimitPrefix+l.Name+"="+strconv.FormatUint(limit.Cur, 10))
	}
	return env, nil
}

// Environment is the step's: what the plugins have left of the caller's, as
// --export has it, own over it, and the options in their second form.
func (o *Run) Environment(p *plugins.Host, own []string) ([]string, error) {
	env, err := exported(o.export, p.Env)
	if err != nil {
		return nil, err
	}
	file, err := o.fromFile()
	if err != nil {
		return nil, fmt.Errorf("--export-file=%s: %w", o.exportFile, err)
	}
	return slices.Concat(env, file, own, p.OptionEnv()), nil
}

// fromFile are the variables of --export-file. They win over the environment's, and the values that
// --export gives over them; with --export=NONE they are left out, all as with sbatch of 22.05.
func (o *Run) fromFile() ([]string, error) {
	if o.exportFile == "" || slices.Contains([]string{"NONE", "NIL"}, strings.ToUpper(o.export)) {
		return nil, nil
	}
	env, err := readVariables(o.exportFile)
	for _, item := range exportItems(o.export) {
		if name, _, set := strings.Cut(item, "="); set && name != "" {
			env = append(env, item)
		}
	}
	return env, err
}

// readVariables reads NAME=VALUE with a NUL each, from a file or, by its number, a descriptor.
func readVariables(from string) ([]string, error) {
	path := from
	if n, err := strconv.ParseUint(from, 10, 31); err == nil {
		if n < 3 {
			return nil, errors.New("a descriptor above 2 is wanted")
		}
		path = fmt.Sprintf("/proc/self/fd/%d", n)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the variables: %w", err)
	}
	var env []string
	for v := range strings.SplitSeq(string(b), "\x00") {
		if v = strings.TrimPrefix(v, "\n"); v == "" {
			continue
		}
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return nil, fmt.Errorf("%q is no NAME=VALUE (each is to end with a NUL)", v)
		}
		env = append(env, v)
	}
	return env, nil
}

// StepEnv is what srun has in its own environment when the step has its number
// (traces/srun1.tsv).
func StepEnv(s *step.Spec) []string {
	id := fmt.Sprint(s.ID.Step)
	return append(JobVariables(s.ID.Job, s.NTasks, s.NCPUs, s.NodeList, s.Partition, s.Cluster, cmp.Or(s.JobName, s.Name)),
		"SLURM_JOB_UID="+fmt.Sprint(s.User.UID), "SLURM_JOB_USER="+s.User.Name,
		"SLURM_STEP_ID="+id, "SLURM_STEPID="+id)
}

// JobVariables are the variables that every command of a job has.
func JobVariables(job uint32, ntasks, ncpus int, nodes, partition, cluster, name string) []string {
	id, n := fmt.Sprint(job), strconv.Itoa(ntasks)
	return []string{
		"SLURM_JOB_ID=" + id, "SLURM_JOBID=" + id, "SLURM_NTASKS=" + n, "SLURM_NPROCS=" + n, "SLURM_TASKS_PER_NODE=" + n,
		"SLURM_NNODES=1", "SLURM_JOB_NUM_NODES=1", "SLURM_NODELIST=" + nodes, "SLURM_JOB_CPUS_PER_NODE=" + strconv.Itoa(ncpus),
		"SLURM_JOB_PARTITION=" + partition, "SLURM_CLUSTER_NAME=" + cluster, "SLURM_JOB_NAME=" + name,
	}
}

// nice is this process's nice value.
func nice() int {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return 0 // it cannot fail for oneself
	}
	return 20 - raw // getpriority(2): what the kernel answers is never negative
}

// ClientEnv is what only the client knows; stepd adds
// what depends on the job.
func (o *Run) ClientEnv(p *plugins.Host, umask int) ([]string, error) {
	limits, err := limits()
	if err != nil {
		return nil, err
	}
	if limits, err = o.Programs.limits(limits); err != nil {
		return nil, err
	}
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "/"
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot tell the host's name: %w", err)
	}
	short, _, _ := strings.Cut(host, ".")
	env := append(limits,
		"SLURM_PRIO_PROCESS="+strconv.Itoa(nice()),
		"SRUN_DEBUG="+strconv.Itoa(3+o.Verbose),
		fmt.Sprintf("SLURM_UMASK=%04o", umask),
		"SLURM_SUBMIT_DIR="+cwd,
		"SLURM_SUBMIT_HOST="+short,
	)
	if o.Label {
		env = append(env, "SLURM_LABELIO=1")
	}
	return env, nil
}
