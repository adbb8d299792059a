package slurmconf

import (
	"cmp"
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"stepd/step"
)

// Stepd is stepd.conf: our own keys, in a file of their own because a real
// slurmd stops at keys that it does not know.
type Stepd struct {
	// HookTimeout bounds each call of a SPANK hook; 0, the default, is no bound.
	HookTimeout time.Duration
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
	// ReplayBytes of output are kept for clients that attach later; 0, the
	// default, is none.
	ReplayBytes int64
	// SpawnStepsMax bounds the steps of a job that its MPI programs have spawned and
	// that run; 0, the default, is noded's 128.
	SpawnStepsMax int
	// PublishedNamesMax bounds the names that the MPI programs of a job have
	// published; 0, the default, is noded's 1024.
	PublishedNamesMax int
	// PMI2 bounds what ranks may ask by PMI-1 and PMI-2; zero fields are pmi2's
	// defaults.
	PMI2 step.PMI2Conf
}

// keys are the keys of a file in dir.
func (s *Stepd) keys(dir string) keySet {
	keys := keySet{
		"hooktimeout":        seconds(&s.HookTimeout),
		"spankallowreleases": parsed(&s.SpankAllowReleases, releases),
		"quarantineafter":    count(&s.QuarantineAfter, 0, 1000),
		"spankstrict":        boolean(&s.SpankStrict),
		"nonewprivs":         boolean(&s.NoNewPrivs),
		"requiresafeplugins": boolean(&s.RequireSafePlugins),
		"metricslisten":      parsed(&s.MetricsListen, listenAt),
		"userstepsmax":       count(&s.UserStepsMax, 1, 1_000_000),
		"userconnectionsmax": count(&s.UserConnectionsMax, 8, 1_000_000),
		"userrequestbytes":   count(&s.UserRequestBytes, 1<<20, 1<<40),
		"userreplaybytes":    count(&s.UserReplayBytes, 1<<16, 1<<40),
		"keepsteps":          count(&s.KeepSteps, 0, 1_000_000),
		"spooltimeout":       secondsFrom1(&s.SpoolTimeout),
		"spawnstepsmax":      count(&s.SpawnStepsMax, 1, 65533),
		"publishednamesmax":  count(&s.PublishedNamesMax, 1, 1_000_000),
		"replaybytes":        count(&s.ReplayBytes, 0, 1<<30),
	}
	maps.Copy(keys, pmi2Keys(&s.PMI2))
	return keys
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
