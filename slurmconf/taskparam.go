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
