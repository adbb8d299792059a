package slurmconf

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"stepd/srunopt"
	"stepd/step"
)

// DefaultSpool is the spool of a noded whose files and flags name none.
const DefaultSpool = "/var/spool/stepd"

// Config is what a node daemon needs of a site's files. The fields have the
// names of the keys; a comment gives the default and where the field differs
// from what is written. Load makes it; afterwards it is only read.
type Config struct {
	// File is slurm.conf as an absolute path, "" without one.
	File string

	// ClusterName is in lower case, as in Slurm. Default "local".
	ClusterName string
	// Node is this host's NodeName line. Without any line in the file it is a
	// node of the host's short name with all its values by default.
	Node Node
	// Partition is the default partition if this node is in it, else the first
	// one that holds the node, else "".
	Partition string

	// SlurmdSpoolDir is where slurmd has its files, "" where no file says it.
	SlurmdSpoolDir string
	// SpoolDir is SlurmdSpoolDir with "/stepd" added: slurmd's own spool is
	// never ours. Default /var/spool/stepd.
	SpoolDir string
	// SlurmdLogFile is absolute, "" by default. In these two the first %h is the
	// host's name and the first %n the node's.
	SlurmdLogFile string
	// SlurmdDebug is a word: quiet, fatal, error, info (the default), verbose,
	// debug, debug2 to debug5. A number in the file becomes its word.
	SlurmdDebug string

	// DebugFlags are those for which a node logs more, as slurm.conf(5) writes them.
	DebugFlags []string

	// ProctrackType is "proctrack/cgroup" (the default), "proctrack/linuxproc"
	// or "proctrack/pgid".
	ProctrackType string
	// TaskPlugin lists "task/affinity" and "task/cgroup" in the order of the
	// file; nil is task/none. Default: both, each where the node lets it.
	TaskPlugin []string
	// TaskPluginParam is zero by default: automatic binding.
	TaskPluginParam TaskPluginParam
	// JobContainerType is "none" (the default), "tmpfs" or "linux". Slurm 25.11 calls
	// the key NamespaceType; both names are read. It is "none" too where
	// job_container.conf says BasePath=none for this node.
	JobContainerType string
	// MpiDefault is "none" (the default), "pmi2" or a "pmix".
	MpiDefault string

	// PlugStackConfig is absolute; default plugstack.conf beside slurm.conf,
	// "" without a slurm.conf. The file need not exist.
	PlugStackConfig string
	// PluginDir are the directories to search for plugins that are named
	// without one, in order. Default: where Slurm's packages put plugins.
	PluginDir []string

	// Prolog and Epilog may be given several times, and each may be a glob
	// pattern. Relative ones are beneath slurm.conf's directory.
	Prolog, Epilog []string
	PrologFlags    []string
	// PrologEpilogTimeout 0, the default, is no bound.
	PrologEpilogTimeout    time.Duration
	TaskProlog, TaskEpilog string

	// KillWait is 30 s by default, UnkillableStepTimeout 60 s, MinJobAge 300 s.
	KillWait, UnkillableStepTimeout, MinJobAge time.Duration
	UnkillableStepProgram                      string

	// PropagateResourceLimits are the limits to propagate, in upper case and
	// without RLIMIT_: all ten by default, the key's limits, or all but the
	// limits of PropagateResourceLimitsExcept.
	PropagateResourceLimits []string
	// PropagatePrioProcess is 0 (the default), 1 or 2.
	PropagatePrioProcess int

	// JobAcctGatherType is "none" (the default), "linux" or "cgroup".
	JobAcctGatherType string
	// JobAcctGatherFrequency is the interval of task sampling: 30 s by
	// default, 0 is never. What is left at a task's end is read in any case.
	JobAcctGatherFrequency time.Duration
	JobAcctGatherParams    JobAcctGatherParams

	// SelectType and SelectTypeParameters say what a job has for itself, and whether memory is given
	// out: see Unit, OneTaskPerCore and MemoryIsConsumable.
	SelectType           string // default "select/cons_tres"
	SelectTypeParameters []string
	// DefMemPerCPU and DefMemPerNode are the memory of a step that asks for none,
	// in MiB; at most one of them is not 0. MaxMemPerCPU and MaxMemPerNode bound
	// what it may ask for. 0, the default, is no limit. Where the partition says
	// them, they are the partition's.
	DefMemPerCPU, DefMemPerNode uint64
	MaxMemPerCPU, MaxMemPerNode uint64

	// GresTypes are the names of generic resources that the site has. Gres is
	// what this node has of them, in the order of its NodeName's Gres=, devices
	// in the order of gres.conf: Gres= says how much, gres.conf which devices.
	// What gres.conf has beyond Gres= is left out with a warning; where it has
	// less, the lower count holds and DrainReasons says so.
	GresTypes []string
	Gres      []Gres
	// DrainReasons are why this node should be drained, although its files can
	// be used: "gres/gpu: slurm.conf has 2, gres.conf 1".
	DrainReasons []string

	// JobFileAppend reports whether a batch job's output is appended to what a file has, unless
	// the job says otherwise.
	JobFileAppend bool

	// MaxTasksPerNode is 512 by default, as in Slurm.
	MaxTasksPerNode  int
	LaunchParameters []string
	// InteractiveStepOptions are what salloc gives to srun where LaunchParameters has
	// use_interactive_step: "--interactive --preserve-env --pty $SHELL" by default.
	InteractiveStepOptions string

	// Stepd is stepd.conf, Container this node's part of job_container.conf.
	Stepd     Stepd
	Container Container
	// Cgroup is cgroup.conf.
	Cgroup Cgroup
	// Mpi is mpi.conf; zero fields are the PMIx plugin's defaults.
	Mpi step.PMIxConf
	// Control is empty but for LoadSlurmd.
	Control Control
}

// defaults is the configuration without any file.
func defaults(hostname string) *Config {
	return &Config{
		ClusterName:             "local",
		Node:                    Node{Name: shortName(hostname)},
		SpoolDir:                DefaultSpool,
		SlurmdDebug:             "info",
		ProctrackType:           "proctrack/cgroup",
		TaskPlugin:              []string{"task/affinity", "task/cgroup"},
		JobContainerType:        "none",
		MpiDefault:              "none",
		PluginDir:               defaultPluginDir(),
		KillWait:                30 * time.Second,
		UnkillableStepTimeout:   60 * time.Second,
		MinJobAge:               300 * time.Second,
		PropagateResourceLimits: srunopt.ResourceLimits(),
		JobAcctGatherType:       "none",
		JobAcctGatherFrequency:  30 * time.Second,
		SelectType:              "select/cons_tres",
		MaxTasksPerNode:         512,
		InteractiveStepOptions:  "--interactive --preserve-env --pty $SHELL",
		Stepd:                   Stepd{KeepSteps: 1000, SpoolTimeout: 20 * time.Second, ExitGrace: 2 * time.Second, PMI2: step.PMI2Conf{SpawnTimeout: 2 * time.Minute}},
		Container:               Container{CloneNSScriptWait: 10 * time.Second, CloneNSEpilogWait: 10 * time.Second},
		Cgroup:                  defaultCgroup(),
	}
}

// defaultPluginDir lists where Slurm's own install, Red Hat's and Debian's
// packages put plugins.
func defaultPluginDir() []string {
	dirs := []string{"/usr/lib64/slurm", "/usr/lib/slurm", "/usr/local/lib/slurm"}
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu"}[runtime.GOARCH]
	if triplet != "" {
		dirs = append(dirs, filepath.Join("/usr/lib", triplet, "slurm-wlm"), filepath.Join("/usr/lib", triplet, "slurm"))
	}
	return dirs
}

func shortName(hostname string) string {
	short, _, _ := strings.Cut(hostname, ".")
	return short
}

// MemoryIsConsumable reports whether memory is given out to steps: then the
// defaults and bounds above apply to steps that ask for none, and cgroup.conf's
// ConstrainRAMSpace has an effect. It is so with a CR_*_Memory or CR_Memory in
// SelectTypeParameters, and, as in Slurm, where that key is not set and
// SelectType is not select/linear.
func (c *Config) MemoryIsConsumable() bool {
	if c.SelectTypeParameters == nil {
		return c.SelectType != "select/linear"
	}
	return slices.ContainsFunc(c.SelectTypeParameters, func(w string) bool {
		w = strings.ToLower(w)
		return strings.HasPrefix(w, "cr_") && strings.HasSuffix(w, "_memory")
	})
}

// Unit is what one job has for itself of the node: "node" with select/linear, else what the CR_ word
// of SelectTypeParameters says: "cpu", "core" or "socket". Where that key is not set it is "core", as
// in Slurm, and "cpu" where it has none of these words.
func (c *Config) Unit() string {
	switch {
	case c.SelectType == "select/linear":
		return "node"
	case c.SelectTypeParameters == nil:
		return "core"
	}
	for _, w := range c.SelectTypeParameters {
		unit, _ := strings.CutSuffix(strings.ToLower(w), "_memory")
		if unit, ok := strings.CutPrefix(unit, "cr_"); ok && (unit == "core" || unit == "socket") {
			return unit
		}
	}
	return "cpu"
}

// OneTaskPerCore reports whether SelectTypeParameters has CR_ONE_TASK_PER_CORE.
func (c *Config) OneTaskPerCore() bool {
	return slices.ContainsFunc(c.SelectTypeParameters, func(w string) bool { return strings.EqualFold(w, "CR_ONE_TASK_PER_CORE") })
}

// Load reads slurm.conf at path and the files beside it. hostname is this
// machine's name, full or short; it finds the node's own line. With path ""
// nothing is read and every value is its default, which is a valid
// configuration.
//
// The problems are all that was found, file by file; where one is an error, the
// configuration is not the one that the site wanted. Load itself fails only
// where a file cannot be read at all: then there is no configuration.
func Load(path, hostname string) (*Config, []Problem, error) { return LoadAs(path, hostname, "") }

// LoadAs is Load where the caller gives the node's name: its line is
// NodeName=node alone. With "" it is Load. mpiTypes are what MpiDefault may be; none
// stands for the types that Slurm's documentation has.
func LoadAs(path, hostname, node string, mpiTypes ...string) (*Config, []Problem, error) {
	if len(mpiTypes) == 0 {
		mpiTypes = slurmMPITypes
	}
	return run(&loader{mpiTypes: mpiTypes, cfg: defaults(cmp.Or(node, hostname)), hostname: hostname, nodeName: node, nodeSeen: map[string]statement{}, told: map[string]statement{}}, path)
}

// slurmMPITypes are the MPI plugins that Slurm's documentation has.
var slurmMPITypes = []string{"none", "pmi2", "pmix"}

func run(l *loader, path string) (*Config, []Problem, error) {
	if l.nodeName != "" {
		l.cfg.Node.Name = l.nodeName
	}
	if path == "" {
		return l.cfg, nil, nil
	}
	file, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	l.cfg.File, l.dir = file, filepath.Dir(file)
	l.cfg.PlugStackConfig = filepath.Join(l.dir, "plugstack.conf")
	stmts, err := l.read(file)
	if err != nil {
		return nil, l.probs.all(), fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	l.slurmFile(stmts)
	if err := l.besideFiles(); err != nil {
		return nil, l.probs.all(), err
	}
	l.together()
	return l.cfg, l.probs.all(), nil
}

// loader is the state of one Load.
type loader struct {
	cfg      *Config
	hostname string
	mpiTypes []string
	nodeName string // as the caller gave it, "" if it did not
	// control are the controllers' lines, nil where no caller asks for them.
	control *controlLines
	digest  io.Writer // as reader has it
	dir     string    // slurm.conf's
	probs   problems

	nodeFrom    statement // of this node's line, if there is one
	nodeDefault Node
	nodes       []nodeLine
	nodeSeen    map[string]statement
	partDefault partitionLine
	parts       []partitionLine
	part        *partitionLine // the line of Config.Partition
	memoryFrom  statement      // part's line, where it has memory keys

	// told are the lines of plain keys, in lower case; a later one wins.
	told map[string]statement
}

func (l *loader) read(file string) ([]statement, error) {
	r := &reader{probs: &l.probs, dir: l.dir, digest: l.digest}
	if l.cfg.File != file { // beside slurm.conf, which may name the cluster
		r.cluster = l.cfg.ClusterName
	}
	err := r.read(file)
	return r.out, err
}

// slurmFile applies slurm.conf: the nodes first, since other values have the
// node's name in them.
func (l *loader) slurmFile(stmts []statement) {
	var plain []statement
	for _, s := range stmts {
		switch first := s.pairs[0]; {
		case skips(l, first):
		case first.is("NodeName"):
			l.nodeLine(s)
		case first.is("PartitionName"):
			l.partitionLine(s)
		case l.control != nil && first.is("SlurmctldHost"):
			l.control.host(s)
		case isForeignLine(first.key):
			l.probs.ignored(s, first.key, ClassController)
		default:
			plain = append(plain, s)
		}
	}
	l.chooseNode()
	l.choosePartition()
	keys := l.slurmKeys()
	if l.control != nil {
		maps.Copy(keys, l.control.keys(&l.cfg.Control))
	}
	l.plainKeys(plain, keys, SeverityIgnored)
	launchWords(l)
	if l.control != nil {
		l.cfg.Control.Addrs = l.control.addrs()
	}
	l.exclude()
}

// skips reports whether a line is of no use to a step daemon, to which slurmd sends what it
// knows of the node and the job: a site may have thousands of them, and each step pays for it.
func skips(l *loader, first pair) bool {
	return l.control != nil && (first.is("PartitionName") || first.is("NodeName") && l.nodeName != "")
}

// besideFiles reads the files that may stand beside slurm.conf.
func (l *loader) besideFiles() error {
	for _, f := range []struct {
		name  string
		apply func(file string, stmts []statement)
	}{
		{"stepd.conf", func(_ string, stmts []statement) { l.plainKeys(stmts, l.cfg.Stepd.keys(l.dir), SeverityError) }},
		{"cgroup.conf", func(_ string, stmts []statement) { l.plainKeys(stmts, l.cfg.Cgroup.keys(), SeverityError) }},
		{"gres.conf", l.gresFile},
		{"job_container.conf", l.containerFile},
		{"mpi.conf", func(_ string, stmts []statement) { l.plainKeys(stmts, mpiKeys(&l.cfg.Mpi), SeverityError) }},
	} {
		if l.control != nil && f.name == "gres.conf" {
			continue // slurmd sends it
		}
		file := filepath.Join(l.dir, f.name)
		stmts, err := l.read(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot read configuration %q: %w", file, err)
		}
		f.apply(file, stmts)
	}
	return nil
}

// plainKeys applies a file of one KEY=VALUE a line.
func (l *loader) plainKeys(stmts []statement, keys keySet, unknown Severity) {
	seen := map[string]statement{}
	for _, s := range stmts {
		pairs := l.onePair(s)
		key := strings.ToLower(pairs[0].key)
		if first, dup := seen[key]; dup && keys[key] != nil && !severalTimes(key) {
			l.probs.at(s, SeverityWarning, "remove one of them", "%s was set at %s:%d already: this one counts", pairs[0].key, first.file, first.line)
		}
		seen[key] = s
		if keys[key] != nil {
			l.told[key] = s
		}
		l.set(s, pairs, keys, unknown)
	}
}

// onePair returns the first pair, and complains about others: Slurm's parser
// stops at them.
func (l *loader) onePair(s statement) []pair {
	if len(s.pairs) > 1 {
		l.probs.at(s, SeverityError, "write it on a line of its own", "cannot use %s behind %s", s.pairs[1].key, s.pairs[0].key)
	}
	return s.pairs[:1]
}

// set puts pairs into the fields of keys. unknown is the severity of a key
// that is not among them. It reports whether all values were taken.
func (l *loader) set(s statement, pairs []pair, keys keySet, unknown Severity) bool {
	taken := true
	for _, p := range pairs {
		set, ok := keys[strings.ToLower(p.key)]
		if !ok {
			l.unknownKey(s, p, keys, unknown)
			continue
		}
		if f := set(p.value); f != nil {
			l.probs.value(s, p, f)
			taken = taken && f.severity != SeverityError
		}
	}
	return taken
}

// unknownKey reports a key that is not read. In slurm.conf most of them are
// the controller's; one that is nearly a key of ours is a slip.
func (l *loader) unknownKey(s statement, p pair, keys keySet, sev Severity) {
	if l.probs.unread {
		return
	}
	found := Problem{Severity: sev, File: s.file, Line: s.line}
	if class := classOf(p.key); class != "" && sev == SeverityIgnored && !s.pairs[0].is("NodeName") {
		l.probs.ignored(s, p.key, class)
		return
	}
	own := (&Stepd{}).keys(l.dir)[strings.ToLower(p.key)] != nil
	near := meantKey(p.key, keys)
	switch {
	case own:
		if sev == SeverityIgnored {
			found.Severity = SeverityWarning
		}
		found.Text = p.key + " is not a key of this file and is not read"
		found.Remedy = "move it to stepd.conf beside slurm.conf: a real slurmd stops at it here"
	case sev == SeverityError:
		found.Text = fmt.Sprintf("cannot use key %q: there is none of that name", p.key)
	case near != "":
		found.Severity = SeverityWarning
		found.Text = p.key + " is not a known key"
	default:
		found.Severity = SeverityWarning
		found.Text = p.key + " is not a key of Slurm's, releases 22.05 to 26.05"
	}
	if near != "" && !own {
		found.Remedy = fmt.Sprintf("is %q meant?", near)
	}
	l.probs.add(found)
}

// exclusive are pairs of keys of which Slurm allows one.
func exclusive() [][2]string {
	return [][2]string{
		{"PropagateResourceLimits", "PropagateResourceLimitsExcept"},
		{"DefMemPerCPU", "DefMemPerNode"},
		{"MaxMemPerCPU", "MaxMemPerNode"},
		{"Sockets", "SocketsPerBoard"},
		{"CoreSpecCount", "CpuSpecList"},
	}
}

// exclude finds plain keys that exclude each other; the first of a pair is to
// stay.
func (l *loader) exclude() {
	for _, keys := range exclusive() {
		first, one := l.told[strings.ToLower(keys[0])]
		second, both := l.told[strings.ToLower(keys[1])]
		if one && both {
			l.probs.at(second, SeverityError, "remove one of them", "cannot use %s beside %s of %s:%d", keys[1], keys[0], first.file, first.line)
		}
	}
}

// excludeIn does so within one line.
func (l *loader) excludeIn(s statement) {
	for _, keys := range exclusive() {
		has := func(key string) bool {
			return slices.ContainsFunc(s.pairs, func(p pair) bool { return p.is(key) })
		}
		if has(keys[0]) && has(keys[1]) {
			l.probs.at(s, SeverityError, "remove one of them", "cannot use %s beside %s", keys[1], keys[0])
		}
	}
}

// nodeTogether checks what the keys of a NodeName line mean together.
func (l *loader) nodeTogether(s statement, n *Node) {
	l.excludeIn(s)
	if n.RealMemory > 0 && n.MemSpecLimit >= n.RealMemory {
		l.probs.valueOf(s, "MemSpecLimit", wrong("leave memory to the steps", "RealMemory is %d", n.RealMemory))
	}
}

// together checks, when all files are read, what their keys mean together, and
// gives way with defaults that cannot be.
func (l *loader) together() {
	l.defaultBinding()
	l.partitionMemory()
	l.memoryBounds()
	l.checkPMI2()
	if l.cfg.Cgroup.CgroupPlugin == "disabled" {
		l.withoutCgroups()
		return
	}
	l.constraints()
}

// memoryBounds: a default above its bound is refused to every step.
func (l *loader) memoryBounds() {
	c := l.cfg
	for _, k := range []struct {
		key       string
		def, most uint64
	}{
		{"DefMemPerCPU", c.DefMemPerCPU, c.MaxMemPerCPU},
		{"DefMemPerNode", c.DefMemPerNode, c.MaxMemPerNode},
	} {
		from := l.memoryFrom
		if from.line == 0 {
			from = l.told[strings.ToLower(k.key)]
		}
		if k.most > 0 && k.def > k.most {
			l.probs.at(from, SeverityError, "write it lower, or Max"+k.key[3:]+" higher", "cannot use %s=%d: it is more than the %d MiB that a step may ask for", k.key, k.def, k.most)
		}
	}
}

// withoutCgroups is CgroupPlugin=disabled: what needs cgroups must not have
// been asked for.
func (l *loader) withoutCgroups() {
	c := l.cfg
	const remedy = "write another one, or CgroupPlugin=autodetect into cgroup.conf"
	for _, k := range []struct {
		key   string
		needs bool
	}{
		{"ProctrackType", c.ProctrackType == "proctrack/cgroup"},
		{"TaskPlugin", slices.Contains(c.TaskPlugin, "task/cgroup")},
		{"JobAcctGatherType", c.JobAcctGatherType == "cgroup"},
	} {
		if s, told := l.told[strings.ToLower(k.key)]; told && k.needs {
			l.probs.valueOf(s, k.key, wrong(remedy, "cgroup.conf has CgroupPlugin=disabled"))
		}
	}
	if c.ProctrackType == "proctrack/cgroup" {
		c.ProctrackType = "proctrack/linuxproc"
	}
	c.TaskPlugin = slices.DeleteFunc(c.TaskPlugin, func(w string) bool { return w == "task/cgroup" })
}

// constraints warns about constraints that have no effect.
func (l *loader) constraints() {
	c := l.cfg
	for _, k := range []struct {
		key    string
		on     bool
		memory bool
	}{
		{"ConstrainCores", c.Cgroup.ConstrainCores, false},
		{"ConstrainRAMSpace", c.Cgroup.ConstrainRAMSpace, true},
		{"ConstrainSwapSpace", c.Cgroup.ConstrainSwapSpace, true},
		{"ConstrainDevices", c.Cgroup.ConstrainDevices, false},
	} {
		s := l.told[strings.ToLower(k.key)]
		switch {
		case !k.on:
		case !slices.Contains(c.TaskPlugin, "task/cgroup"):
			l.probs.valueOf(s, k.key, &flaw{SeverityWarning, "it has no effect without task/cgroup", "add task/cgroup to TaskPlugin in slurm.conf"})
		case k.memory && !c.MemoryIsConsumable():
			l.probs.valueOf(s, k.key, &flaw{SeverityWarning, "no memory is given out to steps: MaxRAMPercent of the node's limits each", "write SelectTypeParameters=CR_Core_Memory into slurm.conf"})
		}
	}
	if c.Cgroup.MemorySwappiness != nil && !c.Cgroup.ConstrainSwapSpace {
		l.probs.valueOf(l.told["memoryswappiness"], "MemorySwappiness", &flaw{SeverityWarning, "it has no effect without ConstrainSwapSpace", "write ConstrainSwapSpace=yes"})
	}
}
