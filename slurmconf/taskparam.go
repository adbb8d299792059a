package slurmconf

import (
	"slices"
	"strings"
)

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
func taskPlugin(field *[]string) setter {
	return func(v string) *flaw {
		const remedy = "write task/affinity,task/cgroup, one of them, or task/none"
		var out []string
		none := false
		for _, w := range words(v) {
			switch word := bare(w, "task/"); {
			case word == "none":
				none = true
			case word != "affinity" && word != "cgroup":
				return wrong(remedy, "%q is not available", w)
			case slices.Contains(out, "task/"+word):
				return wrong(remedy, "%q is given twice", w)
			default:
				out = append(out, "task/"+word)
			}
		}
		switch {
		case none && out != nil:
			return wrong(remedy, "none excludes the others")
		case !none && out == nil:
			return wrong(remedy, "no plugin is named")
		}
		*field = out
		return nil
	}
}

func taskPluginParam(field *TaskPluginParam) setter {
	return func(v string) *flaw {
		const remedy = "write one of none, boards, sockets, cores, threads, and any of autobind=none|sockets|cores|threads, Verbose, SlurmdOffSpec, SlurmdSpecOverride, OOMKillStep"
		var p TaskPluginParam
		for _, w := range words(v) {
			word, kind, valued := strings.Cut(strings.ToLower(w), "=")
			switch {
			case word == "autobind" && slices.Contains([]string{"none", "sockets", "cores", "threads"}, kind):
				p.Autobind = kind
			case valued:
				return wrong(remedy, "%q is not known", w)
			case slices.Contains([]string{"none", "boards", "sockets", "cores", "threads"}, word):
				if p.Bind != "" && p.Bind != word {
					return wrong(remedy, "%s excludes %s", p.Bind, word)
				}
				p.Bind = word
			case word == "verbose":
				p.Verbose = true
			case word == "oomkillstep":
				p.OOMKillStep = true
			case word == "slurmdoffspec", word == "slurmdspecoverride": // no effect here
			default:
				return wrong(remedy, "%q is not known", w)
			}
		}
		*field = p
		return nil
	}
}

// cpuBind reads CpuBind of a node or a partition into the word of --cpu-bind.
func cpuBind(field *string) setter {
	words := map[string]string{"none": "none", "socket": "sockets", "ldom": "ldoms", "core": "cores", "thread": "threads"}
	return func(v string) *flaw {
		word := words[strings.TrimSuffix(strings.ToLower(v), "s")]
		if word == "" {
			return wrong("write one of none, socket, ldom, core, thread", "not available")
		}
		*field = word
		return nil
	}
}

func acctParams(field *JobAcctGatherParams) setter {
	return func(v string) *flaw {
		const remedy = "write some of NoShared, UsePss, OverMemoryKill, DisableGPUAcct, no_file_cache"
		var p JobAcctGatherParams
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
				return wrong(remedy, "%q is not known", w)
			}
		}
		if p.NoShared && p.UsePss {
			return wrong(remedy, "NoShared excludes UsePss")
		}
		*field = p
		return nil
	}
}
