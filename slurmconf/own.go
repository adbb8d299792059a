package slurmconf

import (
	"maps"
	"regexp"
	"time"

	"stepd/step"
)

// Stepd is stepd.conf: our own keys, in a file of their own because a real
// slurmd stops at keys that it does not know (rulings 22).
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
	// RequireSafePlugins refuses plugins and plugstack files that somebody
	// other than root may change.
	RequireSafePlugins bool
	// MetricsListen is the address of the metrics page, "" for none.
	MetricsListen string
	// KeepSteps ended steps stay visible whatever their age. Default 1000.
	KeepSteps int
	// ReplayBytes of output are kept for those who attach later; 0, the
	// default, is none.
	ReplayBytes int64
	// PMI2 bounds what ranks may ask by PMI-1 and PMI-2; zero fields are pmi2's
	// defaults.
	PMI2 step.PMI2Conf
}

func (s *Stepd) keys() keySet {
	keys := keySet{
		"hooktimeout":        seconds(&s.HookTimeout),
		"spankallowreleases": releases(&s.SpankAllowReleases),
		"quarantineafter":    count(&s.QuarantineAfter, 0, 1000),
		"spankstrict":        boolean(&s.SpankStrict),
		"nonewprivs":         boolean(&s.NoNewPrivs),
		"requiresafeplugins": boolean(&s.RequireSafePlugins),
		"metricslisten":      text(&s.MetricsListen),
		"keepsteps":          count(&s.KeepSteps, 0, 1_000_000),
		"replaybytes":        count(&s.ReplayBytes, 0, 1<<30),
	}
	maps.Copy(keys, pmi2Keys(&s.PMI2))
	return keys
}

func releases(field *[]string) setter {
	release := regexp.MustCompile(`^([0-9]{2}\.[0-9]{2}|any)$`)
	return func(v string) *flaw {
		out := words(v)
		for _, w := range out {
			if !release.MatchString(w) {
				return wrong("write releases such as 20.11,27.02, or any", "%q is no release", w)
			}
		}
		*field = out
		return nil
	}
}
