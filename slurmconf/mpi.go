package slurmconf

import (
	"cmp"
	"strings"

	"stepd/step"
)

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
