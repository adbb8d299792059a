// Package check says what the step daemon under slurmd does not do: what a site has
// configured, as lines for its administrator, and what a step asks for, as a refusal that
// srun prints. It reads files, and changes none but its own in the spool. Begin with Site and
// Refuse.
package check

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"stepd/slurm/oci"
	"stepd/slurmconf"
)

// Gap is something that a site has configured and that is not done.
type Gap struct {
	// Where is the setting with its file and line, or the file.
	Where string
	// Why is what is not done, and what users see of it.
	Why string
}

// String is the line of the list.
func (g Gap) String() string { return g.Where + ": " + g.Why }

// rule is a setting that is not done, or not in full.
type rule struct {
	key string
	is  func(value string) bool
	why string
}

// other holds for a value that is set and that is none of the words, with or without the
// plugin's type before it.
func other(words ...string) func(string) bool {
	return func(value string) bool {
		word := strings.ToLower(value[strings.LastIndexByte(value, '/')+1:])
		return word != "" && !slices.Contains(words, word)
	}
}

// otherIn holds for a list of which a word is none of the words.
func otherIn(words ...string) func(string) bool {
	return func(value string) bool { return slices.ContainsFunc(list(value), other(words...)) }
}

// has holds for a list that has the word, alone or with a value.
func has(word string) func(string) bool {
	return func(value string) bool {
		return slices.ContainsFunc(list(value), func(w string) bool {
			name, _, _ := strings.Cut(w, "=")
			return strings.EqualFold(name, word)
		})
	}
}

func set(value string) bool { return value != "" }

func yes(value string) bool {
	return slices.Contains([]string{"1", "y", "yes", "true", "up"}, strings.ToLower(value))
}

func list(value string) []string {
	words := strings.Split(value, ",")
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	return words
}

// site are the settings of slurm.conf that a step daemon acts on, and this one does not.
var site = []rule{
	{"AcctGatherEnergyType", other("none"), "energy is not measured: sacct and sstat have no ConsumedEnergy of steps"},
	{"AcctGatherProfileType", other("none"), "no profile is written: --profile has no effect"},
	{"AcctGatherInterconnectType", other("none"), "traffic on the interconnect is not measured"},
	{"AcctGatherFilesystemType", other("none"), "traffic to file systems is not measured"},
	{"AuthType", other("munge"), "messages are signed by munge alone: srun and slurmctld refuse a step's, and no step can run"},
	{"TLSType", other("none"), "messages are not encrypted: srun and slurmctld refuse a step's, and no step can run"},
	{"HashPlugin", other("k12"), "messages are signed with hash/k12"},
	{"SlurmdUser", other("root", "0"), "the step daemon needs root: no step can run"},
	{"SwitchType", other("none"), "the switch plugin is not called: steps run without its settings"},
	{"SlurmctldParameters", has("enable_stepmgr"), "each job has a step manager, and is refused: no job can run"},
	{"CoreSpecPlugin", other("none"), "the plugin is not called"},
	{"CpuFreqDef", set, "CPU frequencies are left as they are"},
	{"CpuFreqGovernors", set, "CPU frequencies are left as they are: --cpu-freq has no effect"},
	{"GpuFreqDef", set, "the GPUs' frequencies are left as they are"},
	{"VSizeFactor", other("0"), "a task's address space is not limited by its memory"},
	{"LogTimeFormat", other("iso8601_ms"), "the step daemon's lines in slurmd's log have their times as iso8601_ms"},
	{"SlurmdSyslogDebug", other("quiet"), "the step daemon does not write to syslog"},
	{"UsePAM", yes, "of a step's PAM session the tasks have the limits and the nice value alone: no keyring and no namespace of pam.d/slurm"},
	{"PrologFlags", has("RunInJob"), "Prolog and Epilog, which the extern step is to run, do not run"},
	{"JobContainerType", other("none", "tmpfs"), "no job container is made: a job sees the /tmp and /dev/shm of the node"},
	{"NamespaceType", other("none", "tmpfs"), "no job container is made: a job sees the /tmp and /dev/shm of the node"},
	{"LaunchParameters", has("slurmstepd_memlock"), "the step daemon's memory is not locked"},
	{"LaunchParameters", has("slurmstepd_memlock_all"), "the step daemon's memory is not locked"},
	{"LaunchParameters", has("batch_step_set_cpu_freq"), "CPU frequencies are left as they are"},
	{"LaunchParameters", has("interactive_step_set_cpu_freq"), "CPU frequencies are left as they are"},
	{"LaunchParameters", has("mem_sort"), "the free pages of memory nodes are not sorted"},
	{"LaunchParameters", has("ulimit_pam_adopt"), "an adopted session has no RLIMIT_RSS"},
	{"MpiDefault", func(v string) bool { return other("none", "pmi2", "openmpi")(v) && !strings.Contains(v, "pmix") }, "there is no such MPI type: steps without --mpi fail"},
	{"TaskPlugin", otherIn("none", "affinity", "cgroup"), "the task plugin is not called"},
	{"ProctrackType", other("cgroup", "linuxproc", "pgid"), "steps are tracked by cgroups instead"},
	{"SlurmdParameters", has("contain_spank"), "plugins are called outside the job's container"},
}

// node are the ones on a line of this node.
var node = []rule{
	{"CoreSpecCount", other("0"), "the step daemon is not kept on the specialised cores"},
	{"CpuSpecList", other(), "the step daemon is not kept on the specialised CPUs"},
	{"MemSpecLimit", other("0"), "the step daemon is not kept in the reserved memory"},
}

// Site lists what slurm.conf at path, and the files beside it, configure and a step daemon
// would do, and this one does not: in the order of the files, nil where nothing is missing.
// node is the node's name, with which its lines are found. The error is a file's that cannot
// be read.
func Site(path, nodeName string) ([]Gap, error) {
	set, err := slurmconf.Settings(path)
	if err != nil {
		return nil, err
	}
	var gaps []Gap
	logs := false
	last := lastOf(set)
	for i, s := range set {
		switch {
		case s.On == "" && last[strings.ToLower(s.Key)] == i:
			gaps = append(gaps, matches(site, s)...)
		case s.On != "" && isNode(s.On, nodeName):
			gaps = append(gaps, matches(node, s)...)
		}
		logs = logs || strings.EqualFold(s.Key, "SlurmdLogFile") && s.Value != ""
	}
	if !logs {
		gaps = append(gaps, Gap{filepath.Base(path), "SlurmdLogFile is not set: the step daemon's log is lost, which does not go to syslog"})
	}
	return append(gaps, containers(path)...), nil
}

// containers are the gaps of oci.conf, which lies beside slurm.conf.
func containers(path string) (gaps []Gap) {
	conf, err := oci.Load(path)
	switch {
	case errors.Is(err, oci.ErrNone):
		return nil
	case err != nil:
		return []Gap{{"oci.conf", fmt.Sprintf("a step with --container is refused: %v", err)}}
	}
	for _, key := range conf.Ignored {
		gaps = append(gaps, Gap{"oci.conf: " + key, "the step daemon logs what slurm.conf says"})
	}
	return gaps
}

// lastOf is where each key is set for the last time, which counts.
func lastOf(set []slurmconf.Setting) map[string]int {
	last := make(map[string]int, len(set))
	for i, s := range set {
		if s.On == "" {
			last[strings.ToLower(s.Key)] = i
		}
	}
	return last
}

// isNode reports whether a line is the node's, or all nodes'.
func isNode(names, name string) bool {
	if strings.EqualFold(names, "DEFAULT") {
		return true
	}
	hosts, err := slurmconf.ExpandHosts(names)
	return err == nil && slices.Contains(hosts, name)
}

func matches(rules []rule, s slurmconf.Setting) (gaps []Gap) {
	for _, r := range rules {
		if strings.EqualFold(r.key, s.Key) && r.is(s.Value) {
			gaps = append(gaps, Gap{s.String(), r.why})
		}
	}
	return gaps
}

// Text is the list for a terminal, with its sum.
func Text(gaps []Gap) string {
	if len(gaps) == 0 {
		return "all that is configured for a step daemon is done\n"
	}
	var b strings.Builder
	for _, g := range gaps {
		fmt.Fprintln(&b, g)
	}
	count := "1 setting is"
	if len(gaps) != 1 {
		count = fmt.Sprintf("%d settings are", len(gaps))
	}
	fmt.Fprintf(&b, "%s not done, or not in full: docs/slurm.md says more, and what is planned\n", count)
	return b.String()
}
