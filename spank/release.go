package spank

import (
	"fmt"
	"slices"
)

// Release is a Slurm release as plugins carry it: major<<16|minor<<8|micro
// (slurm_version.h, SLURM_VERSION_NUM).
type Release uint32

// String is "22.05.8".
func (r Release) String() string {
	return fmt.Sprintf("%s.%d", r.series(), r&0xff)
}

// series is "22.05".
func (r Release) series() string { return fmt.Sprintf("%d.%02d", r>>16, r>>8&0xff) }

// knownSeries are the releases whose SPANK ABI was checked against their
// spank.h: from 21.08, when plugin_version began to be the release and the
// error codes took their present numbers, to 26.05.
var knownSeries = []string{"21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"}

// CheckRelease tells which release a plugin was built for, or why it is
// refused. allow lists further series ("20.11") or "any" (SpankAllowReleases).
func CheckRelease(pluginVersion uint32, hasVersion bool, allow []string) (Release, error) {
	r := Release(pluginVersion)
	if slices.Contains(allow, "any") {
		return r, nil
	}
	if !hasVersion {
		return r, fmt.Errorf("it exports no plugin_version, so that its release is not known; %s", allowHint("any"))
	}
	if slices.Contains(knownSeries, r.series()) || slices.Contains(allow, r.series()) {
		return r, nil
	}
	newest := knownSeries[len(knownSeries)-1]
	// Up to 20.11 the number was the author's own: usually a small one.
	if r>>16 < 21 || r.series() < knownSeries[0] {
		return r, fmt.Errorf("it was built for a Slurm release before %s (plugin_version %#x), whose error codes differ; build it again, or %s",
			knownSeries[0], pluginVersion, allowHint("any"))
	}
	return r, fmt.Errorf("it was built for Slurm %s, which is not one of the releases %s to %s that are known here; %s",
		r, knownSeries[0], newest, allowHint(r.series()))
}

func allowHint(what string) string {
	return fmt.Sprintf("SpankAllowReleases=%s in stepd.conf accepts it", what)
}
