package slurmconf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"stepd/srunopt"
)

// keySet are the keys of one file, in lower case.
type keySet map[string]setter

// isForeignLine reports whether key begins a line of several KEY=VALUE pairs that
// does not concern a node daemon.
func isForeignLine(key string) bool {
	switch strings.ToLower(key) {
	case "slurmctldhost", "nodeset", "downnodes", "frontendname", "switchname":
		return true
	}
	return false
}

// slurmKeys are the keys of slurm.conf that a node daemon reads, lines of
// nodes and partitions aside.
func (l *loader) slurmKeys() keySet {
	c, dir := l.cfg, l.dir
	return keySet{
		"clustername":                   clusterName(&c.ClusterName),
		"slurmdspooldir":                l.spoolDir(&c.SpoolDir),
		"slurmdpidfile":                 unused,
		"slurmdlogfile":                 l.pattern(&c.SlurmdLogFile),
		"slurmddebug":                   debugLevel(&c.SlurmdDebug),
		"proctracktype":                 proctrackType(&c.ProctrackType),
		"taskplugin":                    taskPlugin(&c.TaskPlugin),
		"taskpluginparam":               taskPluginParam(&c.TaskPluginParam),
		"jobcontainertype":              oneOf(&c.JobContainerType, []string{"job_container/"}, "none", "tmpfs", "linux"),
		"namespacetype":                 oneOf(&c.JobContainerType, []string{"namespace/"}, "none", "tmpfs", "linux"),
		"mpidefault":                    mpiDefault(&c.MpiDefault, l.mpiTypes),
		"plugstackconfig":               beside(&c.PlugStackConfig, dir),
		"plugindir":                     absoluteList(&c.PluginDir, ":"),
		"prolog":                        script(&c.Prolog, dir),
		"epilog":                        script(&c.Epilog, dir),
		"prologflags":                   prologFlags(&c.PrologFlags),
		"prologepilogtimeout":           secondsOrNone(&c.PrologEpilogTimeout),
		"taskprolog":                    beside(&c.TaskProlog, dir),
		"taskepilog":                    beside(&c.TaskEpilog, dir),
		"killwait":                      seconds(&c.KillWait),
		"unkillablesteptimeout":         secondsFrom1(&c.UnkillableStepTimeout),
		"unkillablestepprogram":         beside(&c.UnkillableStepProgram, dir),
		"minjobage":                     seconds(&c.MinJobAge),
		"propagateresourcelimits":       limits(&c.PropagateResourceLimits, named),
		"propagateresourcelimitsexcept": limits(&c.PropagateResourceLimits, allBut),
		"propagateprioprocess":          count(&c.PropagatePrioProcess, 0, 2),
		"jobacctgathertype":             oneOf(&c.JobAcctGatherType, []string{"jobacct_gather/", "acct_gather/"}, "none", "linux", "cgroup"),
		"jobacctgatherfrequency":        frequency(&c.JobAcctGatherFrequency),
		"jobacctgatherparams":           acctParams(&c.JobAcctGatherParams),
		"selecttype":                    text(&c.SelectType),
		"selecttypeparameters":          selectParams(&c.SelectTypeParameters),
		"defmempercpu":                  memory(&c.DefMemPerCPU),
		"defmempernode":                 memory(&c.DefMemPerNode),
		"maxmempercpu":                  memory(&c.MaxMemPerCPU),
		"maxmempernode":                 memory(&c.MaxMemPerNode),
		"grestypes":                     gresTypes(&c.GresTypes),
		"maxtaskspernode":               count(&c.MaxTasksPerNode, 1, 65533),
		"tmpfs":                         unused,
		"launchparameters":              list(&c.LaunchParameters),
		"interactivestepoptions":        text(&c.InteractiveStepOptions),
		"debugflags":                    unused,
	}
}

// severalTimes reports which keys may be repeated.
func severalTimes(key string) bool { return key == "prolog" || key == "epilog" }

// clusterName refuses what would leave a directory or a line when the name
// stands in a path, a file name or a log.
func clusterName(field *string) setter {
	return func(v string) *flaw {
		if v == "" || len(v) > 40 || strings.ContainsAny(v, "/ \t\"%") {
			return wrong("write at most 40 letters and digits", "not a name for a cluster")
		}
		*field = strings.ToLower(v)
		return nil
	}
}

func (l *loader) spoolDir(field *string) setter {
	return func(v string) *flaw {
		var dir string
		if f := l.pattern(&dir)(v); f != nil {
			return f
		}
		*field = joinDir(dir, "stepd")
		return nil
	}
}

// pattern is an absolute path in which the first %h is the host's name and the
// first %n the node's.
func (l *loader) pattern(field *string) setter {
	return func(v string) *flaw {
		v = strings.Replace(v, "%h", l.hostname, 1)
		v = strings.Replace(v, "%n", l.cfg.Node.Name, 1)
		return absolute(field)(v)
	}
}

func debugLevel(field *string) setter {
	names := []string{"quiet", "fatal", "error", "info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5"}
	return func(v string) *flaw {
		if n, err := strconv.Atoi(v); err == nil && n >= 0 && n < len(names) {
			v = names[n]
		}
		return oneOf(field, nil, names...)(v)
	}
}

func proctrackType(field *string) setter {
	return func(v string) *flaw {
		var word string
		f := oneOf(&word, []string{"proctrack/"}, "cgroup", "linuxproc", "pgid")(v)
		if f != nil {
			return f
		}
		*field = "proctrack/" + word
		return nil
	}
}

// mpiDefault takes one of the types that there are. Slurm's names of pmix by the
// library's release, "pmix_v4", mean pmix.
func mpiDefault(field *string, types []string) setter {
	return func(v string) *flaw {
		word := bare(v, "mpi/")
		if strings.HasPrefix(word, "pmix_v") {
			word = "pmix"
		}
		if word != "pmix" && !slices.Contains(types, word) {
			return wrong("write one of "+strings.Join(types, ", "), "there is no such MPI type")
		}
		*field = word
		return nil
	}
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
func prologFlags(field *[]string) setter {
	return func(v string) *flaw {
		var told []string
		f := flags(&told, "alloc", "contain", "deferbatch", "nohold", "forcerequeueonfail", "runinjob", "serial", "x11")(v)
		has := func(words ...string) bool {
			return slices.ContainsFunc(told, func(w string) bool { return slices.Contains(words, strings.ToLower(w)) })
		}
		switch {
		case has("nohold") && has("contain", "x11", "runinjob"):
			return wrong("leave out NoHold, or Contain, X11 and RunInJob", "NoHold lets an allocation be answered before its prolog has ended, and the others do not")
		case has("serial") && has("runinjob"):
			return wrong("leave out one of them", "Serial and RunInJob exclude each other")
		}
		*field = told
		switch {
		case f == nil && has("nohold") && !has("alloc", "deferbatch", "forcerequeueonfail"):
			return &flaw{SeverityWarning, "NoHold has no effect without Alloc", "write Alloc,NoHold"}
		case f == nil && has("forcerequeueonfail"):
			return &flaw{SeverityWarning, "ForceRequeueOnFail means Alloc here: a batch job whose prolog fails is FAILED, and the node is drained", "write Alloc"}
		case f == nil && has("x11"):
			return &flaw{SeverityWarning, "X11 is not forwarded here: the flag means Contain", "write Contain"}
		}
		return f
	}
}

// selectParams: one of the CR_ words reports whether memory is given out; most
// others are the controller's.
func selectParams(field *[]string) setter {
	return flags(field, "cr_cpu", "cr_cpu_memory", "cr_core", "cr_core_memory", "cr_socket", "cr_socket_memory", "cr_board", "cr_board_memory", "cr_memory",
		"cr_one_task_per_core", "cr_core_default_dist_block", "cr_lln", "cr_pack_nodes", "other_cons_res", "other_cons_tres",
		"ll_shared_gres", "multiple_sharing_gres_pj", "enforce_binding_gres", "one_task_per_sharing_gres")
}

// flags warns of words that no release has had, since a newer one may.
func flags(field *[]string, known ...string) setter {
	return func(v string) *flaw {
		*field = words(v)
		for _, w := range *field {
			if !slices.Contains(known, strings.ToLower(w)) {
				return &flaw{SeverityWarning, fmt.Sprintf("flag %q is not known and has no effect", w), ""}
			}
		}
		return nil
	}
}

// Which limits a list of names stands for.
const (
	named  = "named"
	allBut = "all but"
)

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
