package spank

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Release is the Slurm release that a plugin was built for, as its
// plugin_version encodes since 21.08 (major<<16 | minor<<8 | micro).
type Release struct {
	Major, Minor, Micro uint8
}

// String is Slurm's way to write it: "22.05.8".
func (r Release) String() string { return fmt.Sprintf("%s.%d", r.series(), r.Micro) }

// series is the release without its micro version: "22.05".
func (r Release) series() string { return fmt.Sprintf("%02d.%02d", r.Major, r.Minor) }

// oldSeries stands for every release in which plugin_version was whatever
// number the author gave to SPANK_PLUGIN: up to 20.11.
const oldSeries = "20.11"

// knownSeries are the releases whose plugin interface was compared with ours.
func knownSeries() []string {
	return []string{"21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"}
}

// CheckRelease decides by its plugin_version whether a plugin may be loaded,
// and returns the release that it was built for. allow lists further releases
// ("20.11", "27.02", "any": SpankAllowReleases of stepd.conf); "20.11" stands
// for all older ones, whose number is the author's, and a plugin of theirs
// counts as one of 20.11.0. The error is for the user: it names the release
// and the remedy, the caller adds the plugin. Micro versions are never looked at.
func CheckRelease(pluginVersion uint32, hasVersion bool, allow []string) (Release, error) {
	if !hasVersion {
		return Release{}, errors.New("cannot tell the release: there is no plugin_version; build the plugin with SPANK_PLUGIN()")
	}
	r, isRelease := releaseOf(pluginVersion)
	known := knownSeries()
	// Two digits each: the order of the text is the order of the releases.
	if isRelease && r.series() >= known[0] {
		if slices.Contains(known, r.series()) || allowed(allow, r.series()) {
			return r, nil
		}
		return r, fmt.Errorf("cannot accept release %s: known are %s; to load it all the same, set SpankAllowReleases=%s in stepd.conf",
			r, strings.Join(known, " "), r.series())
	}
	old := Release{Major: 20, Minor: 11}
	if allowed(allow, oldSeries) || isRelease && allowed(allow, r.series()) {
		return old, nil
	}
	return old, fmt.Errorf("cannot accept plugin_version %d: a number of the author's own means release 20.11 or older, known are %s to %s; rebuild the plugin, or set SpankAllowReleases=%s in stepd.conf",
		pluginVersion, known[0], known[len(known)-1], oldSeries)
}

func allowed(allow []string, series string) bool {
	return slices.Contains(allow, series) || slices.Contains(allow, "any")
}

// releaseOf reads a plugin_version, if it can be a release at all: Slurm's
// minor versions are months.
func releaseOf(v uint32) (r Release, ok bool) {
	r = Release{Major: uint8(v >> 16), Minor: uint8(v >> 8), Micro: uint8(v)}
	return r, v>>24 == 0 && r.Major > 0 && r.Major < 100 && r.Minor >= 1 && r.Minor <= 12
}
