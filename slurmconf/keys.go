package slurmconf

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"stepd/srunopt"
)

// keySet are the keys of one file, in lower case.
type keySet map[string]setter

// slurmKeys are the keys of slurm.conf that a node daemon reads, lines of
// nodes and partitions aside.
func (l *loader) slurmKeys() keySet {
	c, dir := l.cfg, l.dir
	return keySet{
		"clustername":                   parsed(&c.ClusterName, clusterName),
		"slurmdspooldir":                parsed(&c.SpoolDir, l.spoolDir),
		"slurmdpidfile":                 unused,
		"slurmdlogfile":                 parsed(&c.SlurmdLogFile, l.pattern),
		"slurmddebug":                   parsed(&c.SlurmdDebug, debugLevel),
		"proctracktype":                 parsed(&c.ProctrackType, proctrackType),
		"taskplugin":                    parsed(&c.TaskPlugin, taskPlugin),
		"taskpluginparam":               parsed(&c.TaskPluginParam, taskPluginParam),
		"jobcontainertype":              parsed(&c.JobContainerType, oneOf([]string{"job_container/"}, "none", "tmpfs", "linux")),
		"namespacetype":                 parsed(&c.JobContainerType, oneOf([]string{"namespace/"}, "none", "tmpfs", "linux")),
		"mpidefault":                    parsed(&c.MpiDefault, l.mpiDefault),
		"plugstackconfig":               beside(&c.PlugStackConfig, dir),
		"plugindir":                     absoluteList(&c.PluginDir, ":"),
		"prolog":                        script(&c.Prolog, dir),
		"epilog":                        script(&c.Epilog, dir),
		"prologflags":                   parsed(&c.PrologFlags, prologFlags),
		"prologepilogtimeout":           orUnlimited(&c.PrologEpilogTimeout, seconds(&c.PrologEpilogTimeout)),
		"taskprolog":                    beside(&c.TaskProlog, dir),
		"taskepilog":                    beside(&c.TaskEpilog, dir),
		"killwait":                      seconds(&c.KillWait),
		"unkillablesteptimeout":         secondsFrom1(&c.UnkillableStepTimeout),
		"unkillablestepprogram":         beside(&c.UnkillableStepProgram, dir),
		"minjobage":                     seconds(&c.MinJobAge),
		"propagateresourcelimits":       limits(&c.PropagateResourceLimits, named),
		"propagateresourcelimitsexcept": limits(&c.PropagateResourceLimits, allBut),
		"propagateprioprocess":          count(&c.PropagatePrioProcess, 0, 2),
		"jobacctgathertype":             parsed(&c.JobAcctGatherType, oneOf([]string{"jobacct_gather/", "acct_gather/"}, "none", "linux", "cgroup")),
		"jobacctgatherfrequency":        frequency(&c.JobAcctGatherFrequency),
		"jobacctgatherparams":           parsed(&c.JobAcctGatherParams, acctParams),
		"selecttype":                    parsed(&c.SelectType, selectType),
		"selecttypeparameters":          parsed(&c.SelectTypeParameters, selectParams),
		"defmempercpu":                  memory(&c.DefMemPerCPU),
		"defmempernode":                 memory(&c.DefMemPerNode),
		"maxmempercpu":                  memory(&c.MaxMemPerCPU),
		"maxmempernode":                 memory(&c.MaxMemPerNode),
		"grestypes":                     parsed(&c.GresTypes, gresTypes),
		"jobfileappend":                 boolean(&c.JobFileAppend),
		"maxtaskspernode":               count(&c.MaxTasksPerNode, 1, 65533),
		"tmpfs":                         unused,
		"launchparameters":              list(&c.LaunchParameters),
		"interactivestepoptions":        text(&c.InteractiveStepOptions),
		"debugflags":                    parsed(&c.DebugFlags, debugFlags),
	}
}

// severalTimes reports which keys may be repeated.
func severalTimes(key string) bool { return key == "prolog" || key == "epilog" }

// clusterName refuses what would leave a directory or a line when the name
// stands in a path, a file name or a log.
func clusterName(v string) (string, *flaw) {
	if v == "" || len(v) > 40 || strings.ContainsAny(v, "/ \t\"%") {
		return "", wrong("write at most 40 letters and digits", "not a name for a cluster")
	}
	return strings.ToLower(v), nil
}

func (l *loader) spoolDir(v string) (string, *flaw) {
	dir, f := l.pattern(v)
	l.cfg.SlurmdSpoolDir = dir
	return joinDir(dir, "stepd"), f
}

// pattern is an absolute path in which the first %h is the host's name and the
// first %n the node's.
func (l *loader) pattern(v string) (string, *flaw) {
	v = strings.Replace(v, "%h", l.hostname, 1)
	return absolute(strings.Replace(v, "%n", l.cfg.Node.Name, 1))
}

func debugLevel(v string) (string, *flaw) {
	names := []string{"quiet", "fatal", "error", "info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5"}
	if n, err := strconv.Atoi(v); err == nil && n >= 0 && n < len(names) {
		v = names[n]
	}
	return oneOf(nil, names...)(v)
}

func proctrackType(v string) (string, *flaw) {
	word, f := oneOf([]string{"proctrack/"}, "cgroup", "linuxproc", "pgid")(v)
	return "proctrack/" + word, f
}

// mpiDefault takes one of the types that there are.
func (l *loader) mpiDefault(v string) (string, *flaw) {
	word := srunopt.MPIType(strings.ToLower(v))
	if word != "pmix" && !slices.Contains(l.mpiTypes, word) {
		return "", wrong("write one of "+strings.Join(l.mpiTypes, ", "), "there is no such MPI type")
	}
	return word, nil
}

func script(field *[]string, dir string) setter {
	return func(v string) *flaw {
		if v != "" {
			*field = append(*field, joinDir(dir, v))
		}
		return nil
	}
}

// prologFlags refuses what contradicts itself, as slurm.conf(5) does.
func prologFlags(v string) ([]string, *flaw) {
	told, f := flags(v, "alloc", "contain", "deferbatch", "nohold", "forcerequeueonfail", "runinjob", "serial", "x11")
	has := func(words ...string) bool {
		return slices.ContainsFunc(told, func(w string) bool { return slices.Contains(words, strings.ToLower(w)) })
	}
	switch {
	case has("nohold") && has("contain", "x11", "runinjob"):
		f = wrong("leave out NoHold, or Contain, X11 and RunInJob", "NoHold lets an allocation be answered before its prolog has ended, and the others do not")
	case has("serial") && has("runinjob"):
		f = wrong("leave out one of them", "Serial and RunInJob exclude each other")
	case f != nil: // a flag that is not known
	case has("nohold") && !has("alloc", "deferbatch", "forcerequeueonfail"):
		f = &flaw{SeverityWarning, "NoHold has no effect without Alloc", "write Alloc,NoHold"}
	case has("forcerequeueonfail"):
		f = &flaw{SeverityWarning, "ForceRequeueOnFail means Alloc here: a batch job whose prolog fails is FAILED, and the node is drained", "write Alloc"}
	case has("x11"):
		f = &flaw{SeverityWarning, "X11 is not forwarded here: the flag means Contain", "write Contain"}
	}
	return told, f
}

// selectType is a plugin of Slurm's that chooses within a node: cons_res is cons_tres of releases
// before 23.11.
func selectType(v string) (string, *flaw) {
	word, f := oneOf([]string{"select/"}, "linear", "cons_tres", "cons_res")(v)
	return "select/" + word, f
}

// selectParams: the CR_ words report what is given out to one job alone. Others choose among
// nodes, or are of gres that several jobs share.
func selectParams(v string) ([]string, *flaw) {
	none := []string{"cr_board", "cr_board_memory", "cr_core_default_dist_block", "cr_lln", "cr_pack_nodes", "other_cons_res", "other_cons_tres",
		"ll_shared_gres", "multiple_sharing_gres_pj", "enforce_binding_gres", "one_task_per_sharing_gres"}
	all, f := flags(v, append(none, "cr_cpu", "cr_cpu_memory", "cr_core", "cr_core_memory", "cr_socket", "cr_socket_memory", "cr_memory", "cr_one_task_per_core")...)
	var idle []string
	for _, w := range all {
		if slices.Contains(none, strings.ToLower(w)) {
			idle = append(idle, fmt.Sprintf("flag %q has no effect on the choice within one node", w))
		}
	}
	if idle != nil && f != nil {
		idle = append(idle, f.why)
	}
	if idle != nil {
		f = &flaw{SeverityWarning, strings.Join(idle, "; "), ""}
	}
	return all, f
}

// flags warns of words that no release has had, since a newer one may.
func flags(v string, known ...string) ([]string, *flaw) {
	all := words(v)
	for _, w := range all {
		if !slices.Contains(known, strings.ToLower(w)) {
			return all, &flaw{SeverityWarning, fmt.Sprintf("flag %q is not known and has no effect", w), ""}
		}
	}
	return all, nil
}

// Which limits a list of names stands for.
const (
	named  = "named"
	allBut = "all but"
)

// debugFlags takes the words that a release has had, most of which are the controller's, and
// returns those for which a node logs more, as package node writes them.
func debugFlags(v string) (out []string, f *flaw) {
	ours := []string{"Cgroup", "CPU_Bind", "Gres", "JobAccountGather", "JobContainer", "Steps"}
	for _, w := range words(v) {
		if i := slices.IndexFunc(ours, func(flag string) bool { return strings.EqualFold(flag, w) }); i >= 0 {
			out = append(out, ours[i])
			continue
		}
		_, warned := flags(w, "accrue", "agent", "auditrpcs", "audittls", "backfill", "backfillmap", "burstbuffer", "conmgr", "cpufrequency", "data", "dbd_agent",
			"dependency", "elasticsearch", "energy", "extsensors", "federation", "frontend", "gang", "glob_silence", "hetjob", "jobcomp", "license", "metrics", "mpi",
			"namespace", "network", "networkraw", "no_conf_hash", "nodefeatures", "power", "priority", "profile", "protocol", "reservation", "route", "sackd", "sack",
			"script", "selecttype", "switch", "timecray", "tls", "tracejobs", "triggers", "workqueue")
		f = cmp.Or(f, warned)
	}
	return out, f
}

func limits(field *[]string, meaning string) setter {
	return func(v string) *flaw {
		all := srunopt.ResourceLimits()
		var set []string
		for _, w := range words(v) {
			name := strings.TrimPrefix(strings.ToUpper(w), "RLIMIT_")
			switch {
			case name == "ALL":
				set = all
			case name == "NONE":
				set = nil
			case slices.Contains(all, name):
				set = append(set, name)
			default:
				return wrong("write ALL, NONE or some of "+strings.Join(all, ","), "%q is no limit", w)
			}
		}
		*field = slices.DeleteFunc(all, func(name string) bool { return slices.Contains(set, name) == (meaning == allBut) })
		return nil
	}
}

// frequency reads JobAcctGatherFrequency: a number, or TYPE=NUMBER items.
func frequency(field *time.Duration) setter {
	return func(v string) *flaw {
		for _, item := range words(v) {
			kind, interval, ok := strings.Cut(item, "=")
			if !ok {
				kind, interval = "task", item
			}
			var d time.Duration
			if f := seconds(&d)(interval); f != nil {
				return f
			}
			switch strings.ToLower(kind) {
			case "task":
				*field = d
			case "energy", "network", "filesystem":
			default:
				return wrong("write task=SECONDS", "%q is not sampled", kind)
			}
		}
		return nil
	}
}

// TaskPluginParam is the key of that name: what tasks are bound to where a
// step does not say so itself.
type TaskPluginParam struct {
	// Bind is the default of --cpu-bind: "none", "boards", "sockets", "ldoms",
	// "cores" or "threads"; "" binds automatically. CpuBind of this node wins over
	// its partition's, and both over TaskPluginParam.
	Bind string
	// Autobind is what automatic binding falls back to where it finds no match:
	// "threads", "cores", "sockets" or "none"; "" is none.
	Autobind string
	// Verbose reports every binding, as --cpu-bind=verbose does.
	Verbose bool
	// OOMKillStep kills the whole step when the kernel kills one process of it
	// for want of memory.
	OOMKillStep bool
}

// JobAcctGatherParams is the key of that name.
type JobAcctGatherParams struct {
	// NoShared leaves shared memory out of the resident size, UsePss counts it
	// in proportion; both cannot be.
	NoShared, UsePss bool
	// OverMemoryKill kills a step that a sample finds over its memory.
	OverMemoryKill bool
}

// taskPlugin reads the list; "none" stands alone.
func taskPlugin(v string) (out []string, _ *flaw) {
	const remedy = "write task/affinity,task/cgroup, one of them, or task/none"
	none := false
	for _, w := range words(v) {
		switch word := bare(w, "task/"); {
		case word == "none":
			none = true
		case word != "affinity" && word != "cgroup":
			return nil, wrong(remedy, "%q is not available", w)
		case slices.Contains(out, "task/"+word):
			return nil, wrong(remedy, "%q is given twice", w)
		default:
			out = append(out, "task/"+word)
		}
	}
	switch {
	case none && out != nil:
		return nil, wrong(remedy, "none excludes the others")
	case !none && out == nil:
		return nil, wrong(remedy, "no plugin is named")
	}
	return out, nil
}

func taskPluginParam(v string) (p TaskPluginParam, _ *flaw) {
	const remedy = "write one of none, boards, sockets, cores, threads, and any of autobind=none|sockets|cores|threads, Verbose, SlurmdOffSpec, SlurmdSpecOverride, OOMKillStep"
	for _, w := range words(v) {
		word, kind, valued := strings.Cut(strings.ToLower(w), "=")
		switch {
		case word == "autobind" && slices.Contains([]string{"none", "sockets", "cores", "threads"}, kind):
			p.Autobind = kind
		case valued:
			return p, wrong(remedy, "%q is not known", w)
		case slices.Contains([]string{"none", "boards", "sockets", "cores", "threads"}, word):
			if p.Bind != "" && p.Bind != word {
				return p, wrong(remedy, "%s excludes %s", p.Bind, word)
			}
			p.Bind = word
		case word == "verbose":
			p.Verbose = true
		case word == "oomkillstep":
			p.OOMKillStep = true
		case word == "slurmdoffspec", word == "slurmdspecoverride": // no effect here
		default:
			return p, wrong(remedy, "%q is not known", w)
		}
	}
	return p, nil
}

// cpuBind reads CpuBind of a node or a partition into the word of --cpu-bind.
func cpuBind(v string) (string, *flaw) {
	words := map[string]string{"none": "none", "socket": "sockets", "ldom": "ldoms", "core": "cores", "thread": "threads"}
	word := words[strings.TrimSuffix(strings.ToLower(v), "s")]
	if word == "" {
		return "", wrong("write one of none, socket, ldom, core, thread", "not available")
	}
	return word, nil
}

func acctParams(v string) (p JobAcctGatherParams, _ *flaw) {
	const remedy = "write some of NoShared, UsePss, OverMemoryKill, DisableGPUAcct, no_file_cache"
	for _, w := range words(v) {
		switch strings.ToLower(w) {
		case "noshared":
			p.NoShared = true
		case "usepss":
			p.UsePss = true
		case "overmemorykill":
			p.OverMemoryKill = true
		case "disablegpuacct", "no_file_cache": // no effect here
		case "noovermemorykill": // of old releases, and the default since
		default:
			return p, wrong(remedy, "%q is not known", w)
		}
	}
	if p.NoShared && p.UsePss {
		return p, wrong(remedy, "NoShared excludes UsePss")
	}
	return p, nil
}

// flaw is what is wrong with a value, and what to write instead.
type flaw struct {
	severity    Severity
	why, remedy string
}

func wrong(remedy, format string, args ...any) *flaw {
	return &flaw{SeverityError, fmt.Sprintf(format, args...), remedy}
}

// setter puts a value into its field, or says why it cannot; then the field
// keeps what it had.
type setter func(value string) *flaw

// secondsMax is the longest interval that Slurm's 16-bit fields hold.
const secondsMax = 65533

func text(field *string) setter { return func(v string) *flaw { *field = v; return nil } }

// number reads a whole number. A leading zero means octal to Slurm, which
// no site wants, so it is refused.
func number(v string, low, high uint64) (uint64, *flaw) {
	remedy := fmt.Sprintf("write a number from %d to %d", low, high)
	if len(v) > 1 && v[0] == '0' && !strings.HasPrefix(strings.ToLower(v), "0x") {
		return 0, wrong(remedy, "a leading zero makes it an octal number for Slurm")
	}
	n, err := strconv.ParseUint(v, 0, 64)
	if err != nil || strings.ContainsAny(v, "_oObB") && !strings.HasPrefix(strings.ToLower(v), "0x") {
		return 0, wrong(remedy, "not a whole number")
	}
	if n < low || n > high {
		return 0, wrong(remedy, "out of range")
	}
	return n, nil
}

// parsed puts what parse makes of a value into its field, unless parse finds an error.
func parsed[T any](field *T, parse func(string) (T, *flaw)) setter {
	return func(v string) *flaw {
		x, f := parse(v)
		if f == nil || f.severity != SeverityError {
			*field = x
		}
		return f
	}
}

// optional is for a field that is nil where its key is not set.
func optional[T any](field **T, set func(*T) setter) setter {
	return parsed(field, func(v string) (*T, *flaw) {
		x := new(T)
		return x, set(x)(v)
	})
}

// hostList takes "n[01-16],login", or "ALL", as it is written.
func hostList(field *string) setter {
	return func(v string) *flaw {
		if _, err := ExpandHosts(v); err != nil {
			// The names may be of other nodes alone, whose matter it is.
			return &flaw{SeverityWarning, err.Error(), "write a list such as n[1-3,5],m"}
		}
		*field = v
		return nil
	}
}

func count[T int | int64 | uint64](field *T, low, high uint64) setter {
	return times(field, 1, low, high)
}

// times takes a number of units.
func times[T ~int | ~int64 | ~uint64](field *T, unit T, low, high uint64) setter {
	return parsed(field, func(v string) (T, *flaw) {
		n, f := number(v, low, high)
		return T(n) * unit, f
	})
}

func seconds(field *time.Duration) setter { return times(field, time.Second, 0, secondsMax) }

// secondsFrom1 is for a wait that must not be none.
func secondsFrom1(field *time.Duration) setter { return times(field, time.Second, 1, secondsMax) }

// orUnlimited takes Slurm's words for "no limit" too, which is 0 here.
func orUnlimited[T int | uint64 | time.Duration](field *T, set setter) setter {
	return func(v string) *flaw {
		if strings.EqualFold(v, "INFINITE") || strings.EqualFold(v, "UNLIMITED") {
			*field = 0
			return nil
		}
		return set(v)
	}
}

func boolean(field *bool) setter { return parsed(field, parseBool) }

// notBoolean takes the same words for a field that says the opposite of its key.
func notBoolean(field *bool) setter {
	return parsed(field, func(v string) (bool, *flaw) {
		yes, f := parseBool(v)
		return !yes, f
	})
}

func parseBool(v string) (bool, *flaw) {
	switch strings.ToLower(v) {
	case "yes", "true", "up", "1":
		return true, nil
	case "no", "false", "down", "0":
		return false, nil
	}
	return false, wrong("write yes or no", "neither yes nor no")
}

// words splits at commas; empty items vanish.
func words(v string) []string {
	return slices.DeleteFunc(strings.Split(v, ","), func(s string) bool { return s == "" })
}

func list(field *[]string) setter { return func(v string) *flaw { *field = words(v); return nil } }

// oneOf takes one of the allowed words, with or without one of the prefixes
// ("proctrack/"), in any case, and returns the word alone.
func oneOf(prefixes []string, allowed ...string) func(string) (string, *flaw) {
	return func(v string) (string, *flaw) {
		word := bare(v, prefixes...)
		if !slices.Contains(allowed, word) {
			return "", wrong("write one of "+strings.Join(allowed, ", "), "not available")
		}
		return word, nil
	}
}

// bare lowers a plugin's name and cuts its kind off.
func bare(v string, prefixes ...string) string {
	v = strings.ToLower(v)
	for _, p := range prefixes {
		if word, ok := strings.CutPrefix(v, p); ok {
			return word
		}
	}
	return v
}

func absolute(v string) (string, *flaw) {
	if !filepath.IsAbs(v) {
		return "", wrong("write a path that begins with /", "not an absolute path")
	}
	return filepath.Clean(v), nil
}

// beside takes a path; a relative one is beneath dir.
func beside(field *string, dir string) setter {
	return func(v string) *flaw {
		*field = joinDir(dir, v)
		return nil
	}
}

func joinDir(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// absoluteList splits at sep; every item must be an absolute path.
func absoluteList(field *[]string, sep string) setter {
	return parsed(field, func(v string) (out []string, _ *flaw) {
		for item := range strings.SplitSeq(v, sep) {
			switch {
			case item == "":
			case !filepath.IsAbs(item):
				return nil, wrong("write paths that begin with /", "%q is not an absolute path", item)
			default:
				out = append(out, filepath.Clean(item))
			}
		}
		return out, nil
	})
}

// memory reads a size in MiB; 0 and Slurm's words for it are no limit.
func memory(field *uint64) setter { return orUnlimited(field, count(field, 0, memoryMax)) }
