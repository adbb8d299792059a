package slurmconf

import (
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
