package slurmconf

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"stepd/step"
)

// Stepd is stepd.conf: our own keys, in a file of their own because a real
// slurmd stops at keys that it does not know.
type Stepd struct {
	// HookTimeout bounds each call of a SPANK hook; 0, the default, is no bound.
	HookTimeout time.Duration
	// ExitGrace is how long processes may live after the step's end that plugins have
	// started in slurm_spank_exit. Default 2 s.
	ExitGrace time.Duration
	// SpankAllowReleases are further releases of plugins to accept: "20.11",
	// or "any".
	SpankAllowReleases []string
	// QuarantineAfter crashes in a row a plugin is left out; 0, the default, is
	// never.
	QuarantineAfter int
	// SpankStrict makes the failure of a required plugin's hook fail the step
	// where Slurm lets it succeed.
	SpankStrict bool
	// NoNewPrivs sets no_new_privs for every task.
	NoNewPrivs bool
	// RequireSafePlugins refuses plugins and plugstack files that users
	// other than root may change.
	RequireSafePlugins bool
	// MetricsListen is the address of the metrics page: "IP:PORT", or "unix" for a
	// socket in the run directory; "", the default, is none.
	MetricsListen string
	// UserStepsMax, UserConnectionsMax, UserRequestBytes and UserReplayBytes bound what
	// one user other than root has of the node; 0, the default, is noded's.
	UserStepsMax, UserConnectionsMax, UserRequestBytes int
	UserReplayBytes                                    int64
	// SpoolTimeout is how long the spool may take to answer before noded refuses what
	// needs it. Default 20 s.
	SpoolTimeout time.Duration
	// KeepSteps ended steps stay visible whatever their age. Default 1000.
	KeepSteps int
	// StepProcessesPercent of the processes and threads that the machine can have are a step's
	// at most; 0 is no limit. nil is 50 where cgroup v2 limits them, and no limit where v1 would:
	// a step waits there up to 10 ms until its host is in the controller's tree.
	StepProcessesPercent *float64
	// ReplayBytes of output are kept for clients that attach later; 0, the
	// default, is none.
	ReplayBytes int64
	// SpawnStepsMax bounds the steps of a job that its MPI programs have spawned and
	// that run; 0, the default, is noded's 128.
	SpawnStepsMax int
	// PublishedNamesMax bounds the names that the MPI programs of a job have
	// published; 0, the default, is noded's 1024.
	PublishedNamesMax int
	// PeerPorts are the first and the last of the ports at which slurmstepd listens for a step's
	// other nodes; 0 and 0, the default, are any.
	PeerPorts [2]uint16
	// PMI2 bounds what ranks may ask by PMI-1 and PMI-2; zero fields are pmi2's
	// defaults.
	PMI2 step.PMI2Conf
}

// keys are the keys of a file in dir.
func (s *Stepd) keys(dir string) keySet {
	keys := keySet{
		"hooktimeout":          seconds(&s.HookTimeout),
		"exitgrace":            seconds(&s.ExitGrace),
		"spankallowreleases":   parsed(&s.SpankAllowReleases, releases),
		"quarantineafter":      count(&s.QuarantineAfter, 0, 1000),
		"spankstrict":          boolean(&s.SpankStrict),
		"nonewprivs":           boolean(&s.NoNewPrivs),
		"requiresafeplugins":   boolean(&s.RequireSafePlugins),
		"metricslisten":        parsed(&s.MetricsListen, listenAt),
		"userstepsmax":         count(&s.UserStepsMax, 1, 1_000_000),
		"userconnectionsmax":   count(&s.UserConnectionsMax, 8, 1_000_000),
		"userrequestbytes":     count(&s.UserRequestBytes, 1<<20, 1<<40),
		"userreplaybytes":      count(&s.UserReplayBytes, 1<<16, 1<<40),
		"stepprocessespercent": optional(&s.StepProcessesPercent, func(x *float64) setter { return percent(x, 100) }),
		"keepsteps":            count(&s.KeepSteps, 0, 1_000_000),
		"spooltimeout":         secondsFrom1(&s.SpoolTimeout),
		"spawnstepsmax":        count(&s.SpawnStepsMax, 1, 65533),
		"publishednamesmax":    count(&s.PublishedNamesMax, 1, 1_000_000),
		"replaybytes":          count(&s.ReplayBytes, 0, 1<<30),
		"peerports":            parsed(&s.PeerPorts, portRange),
	}
	maps.Copy(keys, pmi2Keys(&s.PMI2))
	return keys
}

// portRange takes "60001-60999".
func portRange(v string) (ports [2]uint16, f *flaw) {
	first, last, _ := strings.Cut(v, "-")
	for i, text := range []string{first, cmp.Or(last, first)} {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
		if err != nil || n == 0 {
			return [2]uint16{}, wrong("write the first and the last port, such as 60001-60999", "not a range of ports")
		}
		ports[i] = uint16(n)
	}
	if ports[0] > ports[1] {
		return [2]uint16{}, wrong("write the smaller one first", "%d is larger than %d", ports[0], ports[1])
	}
	return ports, nil
}

// listenAt takes "127.0.0.1:9817", or "unix".
func listenAt(v string) (string, *flaw) {
	if strings.EqualFold(v, "unix") {
		return "unix", nil
	}
	a, err := netip.ParseAddrPort(v)
	switch {
	case err != nil || a.Port() == 0:
		return "", wrong("write an address and a port such as 127.0.0.1:9817, or unix", "not an IP address with a port")
	case !a.Addr().IsLoopback():
		return a.String(), &flaw{SeverityWarning, "everybody who reaches this address may read the page", "write 127.0.0.1 or ::1, or keep others away by a firewall"}
	}
	return a.String(), nil
}

func releases(v string) ([]string, *flaw) {
	release := regexp.MustCompile(`^([0-9]{2}\.[0-9]{2}|any)$`)
	out := words(v)
	for _, w := range out {
		if !release.MatchString(w) {
			return nil, wrong("write releases such as 20.11,27.02, or any", "%q is no release", w)
		}
	}
	return out, nil
}

// Bounds of the PMI limits: below the lower ones no MPI library starts, above
// the upper ones a limit bounds nothing.
const (
	pmiKeyMin, pmiKeyMax     = 32, 4096
	pmiValueMin, pmiValueMax = 128, 1 << 18
	// A PMI-2 frame has its length in six digits.
	pmiFrameMin, pmiFrameMax = 1024, 999_999
	pmiTotalMin, pmiTotalMax = 64 << 10, 1 << 30
)

// pmi2Keys are the keys of stepd.conf that bound what the ranks of a step may
// ask by PMI-1 and PMI-2.
func pmi2Keys(c *step.PMI2Conf) keySet {
	return keySet{
		"pmi1keybytes":     count(&c.KeyBytes1, pmiKeyMin, pmiKeyMax),
		"pmi2keybytes":     count(&c.KeyBytes2, pmiKeyMin, pmiKeyMax),
		"pmi2valuebytes":   count(&c.ValueBytes, pmiValueMin, pmiValueMax),
		"pmi2framebytes":   count(&c.FrameBytes, pmiFrameMin, pmiFrameMax),
		"pmi2attributes":   count(&c.Attributes, 16, 65536),
		"pmi2keysperrank":  count(&c.KeysPerRank, 16, 1<<20),
		"pmi2totalbytes":   count(&c.TotalBytes, pmiTotalMin, pmiTotalMax),
		"pmi2queuebytes":   count(&c.QueueBytes, 4096, 1<<26),
		"pmi2waitsperrank": count(&c.WaitsPerRank, 1, 65536),
		"pmi2closegrace":   secondsFrom1(&c.CloseGrace),
		"pmi2fencetimeout": seconds(&c.FenceTimeout),
		"pmi2spawntimeout": seconds(&c.SpawnTimeout),
	}
}

// mpiKeys are the keys of Slurm's mpi.conf (mpi.conf(5)). The keys of its ways
// between nodes have no effect: the stepds of a step have one of their own. The key
// for temporary files has no effect either: they lie in the run directory, where no user
// can interfere, and which tasks with a /tmp of their own see as well.
func mpiKeys(c *step.PMIxConf) keySet {
	keys := keySet{
		"pmixtimeout": secondsFrom1(&c.Timeout),
		"pmixdebug":   boolean(&c.Debug),
		"pmixenv":     parsed(&c.Env, mpiEnv),
		// slurmstepd's default is no.
		"pmixshareservertopology": notBoolean(&c.KeepTopology),
	}
	for _, other := range []string{
		"pmixclitmpdirbase", "pmixcollfence", "pmixdirectconn", "pmixdirectconnearly", "pmixdirectconnucx", "pmixdirectsamearch",
		"pmixfencebarrier", "pmixnetdevicesucx", "pmixtlsucx",
	} {
		keys[other] = notForUs
	}
	return keys
}

// notForUs takes any value of a key that tunes what slurmstepd alone does.
func notForUs(string) *flaw {
	return &flaw{SeverityWarning, "the key tunes slurmstepd's own PMIx plugin and has no effect here", ""}
}

// mpiEnv reads PMIxEnv: NAME=VALUE, parted by semicolons.
func mpiEnv(v string) (env []string, _ *flaw) {
	for item := range strings.SplitSeq(v, ";") {
		name, _, ok := strings.Cut(item, "=")
		switch {
		case item == "":
		case !ok || name == "" || strings.ContainsAny(name, " \t"):
			return nil, wrong("write NAME=VALUE;NAME=VALUE", "%q sets no variable", item)
		case strings.HasPrefix(name, "LD_"):
			return nil, wrong("set what a PMIx library reads", "%s would change what the PMIx server loads", name)
		default:
			env = append(env, item)
		}
	}
	return env, nil
}

// checkPMI2 finds limits that contradict each other: a key with its value must
// fit into a frame, where each semicolon of it may be written twice.
func (l *loader) checkPMI2() {
	c := l.cfg.Stepd.PMI2
	const words = 256 // cmd=kvs-put, its other attributes, and what parts them
	need := 2*(max(cmp.Or(c.KeyBytes1, 256), cmp.Or(c.KeyBytes2, 64))+cmp.Or(c.ValueBytes, 1024)) + words
	frame, queue := cmp.Or(c.FrameBytes, 64<<10), cmp.Or(c.QueueBytes, 256<<10)
	last := func(keys ...string) (s statement) {
		for _, k := range keys {
			if at, ok := l.told[k]; ok && at.line >= s.line {
				s = at
			}
		}
		return s
	}
	switch {
	case frame < need:
		l.probs.at(last("pmi1keybytes", "pmi2keybytes", "pmi2valuebytes", "pmi2framebytes"), SeverityError, "raise PMI2FrameBytes, or lower the others",
			"cannot use PMI2FrameBytes of %d: a key and a value of the most that is allowed need %d", frame, need)
	case queue < need:
		l.probs.at(last("pmi1keybytes", "pmi2keybytes", "pmi2valuebytes", "pmi2queuebytes"), SeverityError, "raise PMI2QueueBytes, or lower the others",
			"cannot use PMI2QueueBytes of %d: an answer of the most that is allowed needs %d", queue, need)
	}
}

// Cgroup is cgroup.conf, with Slurm's keys, units and defaults (cgroup.conf(5)).
// Without the file every field has its default, which confines nothing.
type Cgroup struct {
	// CgroupPlugin is "autodetect" (the default), "cgroup/v1", "cgroup/v2" or
	// "disabled", with which no cgroup is made at all.
	CgroupPlugin string
	// CgroupMountpoint is where the controllers are mounted: /sys/fs/cgroup by
	// default. The key is for tests.
	CgroupMountpoint string

	// ConstrainCores keeps tasks on the step's CPUs by a cpuset.
	ConstrainCores bool
	// ConstrainRAMSpace limits memory to AllowedRAMSpace percent of what was
	// allocated. It needs memory as a consumable resource; see
	// Config.MemoryIsConsumable.
	ConstrainRAMSpace bool
	// ConstrainSwapSpace limits memory and swap together to AllowedRAMSpace plus
	// AllowedSwapSpace percent of what was allocated. Where ConstrainRAMSpace is
	// no, AllowedRAMSpace counts as 100, and memory alone has this same limit.
	ConstrainSwapSpace bool
	// ConstrainDevices lets tasks open the devices of their own GRES only, and
	// devices that are no GRES.
	ConstrainDevices bool

	// AllowedRAMSpace (default 100) and AllowedSwapSpace (default 0) are percent
	// of the allocated memory. They may exceed 100.
	AllowedRAMSpace, AllowedSwapSpace float64
	// MaxRAMPercent bounds a memory limit, MaxSwapPercent the sum of memory and
	// swap, both in percent of the node's RealMemory; both are 100 by
	// default. They are the limits of what has no memory allocated to it.
	MaxRAMPercent, MaxSwapPercent float64
	// MinRAMSpace, in MiB, is below no memory limit. Default 30.
	MinRAMSpace uint64
	// MemorySwappiness, 0 to 100, is for cgroup v1 and with ConstrainSwapSpace;
	// nil leaves the kernel's.
	MemorySwappiness *int

	// IgnoreSystemd makes cgroups without asking systemd. v2 only.
	IgnoreSystemd bool
	// SystemdTimeout is how long systemd may take to make the scope; the key is
	// in milliseconds. Default 1 s.
	SystemdTimeout time.Duration
	// EnableControllers enables controllers from the root of the tree downwards,
	// where systemd has not done so. v2 only.
	EnableControllers bool
	// CgroupSlice is the slice for the scope, "" for systemd's default
	// (system.slice). v2 only.
	CgroupSlice string
}

func defaultCgroup() Cgroup {
	return Cgroup{
		CgroupPlugin: "autodetect", CgroupMountpoint: "/sys/fs/cgroup",
		AllowedRAMSpace: 100, MaxRAMPercent: 100, MaxSwapPercent: 100, MinRAMSpace: 30,
		SystemdTimeout: time.Second,
	}
}

// Bounds of the percentages: what is no slip of the keyboard.
const (
	percentMax = 100
	allowedMax = 1_000_000
)

func (c *Cgroup) keys() keySet {
	keys := keySet{
		"cgroupplugin":            parsed(&c.CgroupPlugin, cgroupPlugin),
		"cgroupmountpoint":        parsed(&c.CgroupMountpoint, absolute),
		"constraincores":          boolean(&c.ConstrainCores),
		"constrainramspace":       boolean(&c.ConstrainRAMSpace),
		"constrainswapspace":      boolean(&c.ConstrainSwapSpace),
		"constraindevices":        boolean(&c.ConstrainDevices),
		"allowedramspace":         percent(&c.AllowedRAMSpace, allowedMax),
		"allowedswapspace":        percent(&c.AllowedSwapSpace, allowedMax),
		"maxrampercent":           percent(&c.MaxRAMPercent, allowedMax),
		"maxswappercent":          percent(&c.MaxSwapPercent, percentMax),
		"minramspace":             count(&c.MinRAMSpace, 0, memoryMax),
		"memoryswappiness":        optional(&c.MemorySwappiness, func(n *int) setter { return count(n, 0, 100) }),
		"signalchildrenprocesses": unused,
		"ignoresystemd":           boolean(&c.IgnoreSystemd),
		"ignoresystemdonfailure":  unused,
		"systemdtimeout":          times(&c.SystemdTimeout, time.Millisecond, 1, secondsMax*1000),
		"enablecontrollers":       boolean(&c.EnableControllers),
		"enableextracontrollers":  unused,
		"cgroupslice":             parsed(&c.CgroupSlice, slice),
	}
	// Keys of older releases, which files still hold.
	for _, old := range []string{
		"cgroupautomount", "cgroupreleaseagentdir", "alloweddevicesfile", "taskaffinity",
		"constrainkmemspace", "allowedkmemspace", "maxkmempercent", "minkmemspace",
		"memorylimitenforcement", "memorylimitthreshold",
	} {
		keys[old] = obsolete
	}
	return keys
}

// nothing takes any value of a key that is read elsewhere, or concerns the controller alone.
func nothing(string) *flaw { return nil }

// unused takes any value of a key of Slurm's that has no effect here.
func unused(string) *flaw { return &flaw{SeverityIgnored, "the key has no effect here", ""} }

// obsolete takes any value of a key that newer releases do not have.
func obsolete(string) *flaw {
	return &flaw{SeverityWarning, "the key is obsolete and has no effect", "remove it"}
}

func cgroupPlugin(v string) (string, *flaw) {
	word, f := oneOf([]string{"cgroup/"}, "autodetect", "v1", "v2", "disabled")(v)
	switch {
	case f != nil:
		f.remedy = "write one of autodetect, cgroup/v1, cgroup/v2, disabled"
	case word == "v1" || word == "v2":
		word = "cgroup/" + word
	}
	return word, f
}

// slice reads the name of a systemd slice. systemd makes its parents of the
// dashes in it; a path is none.
func slice(v string) (string, *flaw) {
	name, ok := strings.CutSuffix(v, ".slice")
	if !ok || name == "" || len(v) > 255 || strings.ContainsAny(v, "/ \t\"%\x7f") || strings.HasPrefix(v, ".") {
		return "", wrong("write a name such as system.slice", "not the name of a slice")
	}
	return v, nil
}

// percent reads a number with or without decimals: "98.5".
func percent(field *float64, high float64) setter {
	return parsed(field, func(v string) (float64, *flaw) {
		remedy := fmt.Sprintf("write a percentage from 0 to %.0f, such as 98.5", high)
		x, err := strconv.ParseFloat(v, 64)
		switch {
		case err != nil || strings.Trim(v, "0123456789.") != "": // no sign, exponent, NaN or %
			return 0, wrong(remedy, "not a number")
		case x > high:
			return 0, wrong(remedy, "out of range")
		}
		return x, nil
	})
}

// Container is this node's part of job_container.conf.
type Container struct {
	// BasePath holds the private directories; %h and %n in it are left to its
	// user. "" means that no line is for this node.
	BasePath     string
	AutoBasePath bool
	// Dirs get a private directory each; nil is /tmp and /dev/shm.
	Dirs           []string
	InitScript     string
	Shared         bool
	EntireStepInNS bool
	// CloneNSScript runs when the namespace was made, CloneNSEpilog before it
	// goes; each has 10 s unless the Wait says otherwise.
	CloneNSScript, CloneNSEpilog         string
	CloneNSScriptWait, CloneNSEpilogWait time.Duration
	// PIDNamespace and UserNamespace are CloneNSFlags.
	PIDNamespace, UserNamespace bool
}

func (c *Container) keys() keySet {
	return keySet{
		"nodename":           nothing, // containerFile's
		"basepath":           parsed(&c.BasePath, basePath),
		"autobasepath":       boolean(&c.AutoBasePath),
		"dirs":               absoluteList(&c.Dirs, ","),
		"initscript":         parsed(&c.InitScript, absolute),
		"shared":             boolean(&c.Shared),
		"entirestepinns":     boolean(&c.EntireStepInNS),
		"clonensscript":      parsed(&c.CloneNSScript, absolute),
		"clonensscript_wait": seconds(&c.CloneNSScriptWait),
		"clonensepilog":      parsed(&c.CloneNSEpilog, absolute),
		"clonensepilog_wait": seconds(&c.CloneNSEpilogWait),
		"clonensflags":       c.cloneFlags,
	}
}

// cloneFlags reads CloneNSFlags, whose words are clone(2)'s.
func (c *Container) cloneFlags(v string) *flaw {
	c.PIDNamespace, c.UserNamespace = false, false
	for _, word := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == '|' }) {
		switch strings.ToUpper(strings.TrimSpace(word)) {
		case "CLONE_NEWNS": // a job always has it
		case "CLONE_NEWPID":
			c.PIDNamespace = true
		case "CLONE_NEWUSER":
			c.UserNamespace = true
		default:
			return wrong("write CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, parted by commas", "%q is not available", word)
		}
	}
	return nil
}

// noBasePath switches the plugin off on some nodes where a line for all nodes
// has switched it on.
const noBasePath = "none"

func basePath(v string) (string, *flaw) {
	if strings.EqualFold(v, noBasePath) {
		return noBasePath, nil
	}
	return absolute(v)
}

// containerFile applies job_container.conf: first the lines for all nodes,
// over them those with this node in their NodeName, key by key.
func (l *loader) containerFile(file string, stmts []statement) {
	c := &l.cfg.Container
	for _, s := range stmts {
		if slices.ContainsFunc(s.pairs[1:], func(p pair) bool { return p.is("NodeName") }) {
			l.probs.at(s, SeverityError, "write NodeName first in its line", "cannot use NodeName behind %s: the line would be for all nodes", s.pairs[0].key)
		}
		if !s.pairs[0].is("NodeName") {
			l.set(s, s.pairs, c.keys(), SeverityError)
		}
	}
	for _, s := range stmts {
		if !s.pairs[0].is("NodeName") {
			continue
		}
		target := &Container{} // lines of other nodes are checked all the same
		if names, ok := l.hosts(s, s.pairs[0]); ok && slices.Contains(names, l.cfg.Node.Name) {
			target = c
		}
		l.set(s, s.pairs, target.keys(), SeverityError)
	}
	if c.BasePath == noBasePath {
		c.BasePath = ""
		l.cfg.JobContainerType = "none"
	}
	l.containerTogether(file)
	if l.cfg.JobContainerType != "none" && c.BasePath == "" {
		l.probs.at(statement{file: file}, SeverityError, "write BasePath=DIRECTORY, or JobContainerType=job_container/none into slurm.conf",
			"cannot make job containers: no BasePath for node %s", l.cfg.Node.Name)
	}
}

// containerTogether finds what does not go together in job_container.conf.
func (l *loader) containerTogether(file string) {
	c, s := &l.cfg.Container, statement{file: file}
	switch {
	case l.cfg.JobContainerType == "tmpfs" && (c.PIDNamespace || c.UserNamespace):
		l.probs.at(s, SeverityError, "write JobContainerType=job_container/linux into slurm.conf", "cannot use CloneNSFlags with job_container/tmpfs, which makes a mount namespace alone")
	case l.cfg.JobContainerType == "linux" && c.PIDNamespace && c.EntireStepInNS:
		l.probs.at(s, SeverityError, "leave out one of them", "cannot use EntireStepInNS with CLONE_NEWPID: plugins would find no /proc/self")
	}
}
