package slurm

import (
	"errors"
	"testing"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// onReleases runs a test on 22.05, and by `make slurm-matrix` on each release.
func onReleases(t *testing.T, test func(t *testing.T, release string)) {
	t.Helper()
	testkit.RequireRoot(t)
	releases := cluster.Releases()
	if !matrix() {
		releases = releases[:1]
	}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) { test(t, release) })
	}
}

// startSite starts a cluster with our step daemon, which ends with the test. It is of 22.05 where
// the site names no release, and has the user alice where it names none. Debian may not have
// another release any more: then the test is skipped.
func startSite(t *testing.T, site cluster.Site) *cluster.Cluster {
	t.Helper()
	testkit.RequireRoot(t)
	if site.Release == "" {
		site.Release = cluster.Releases()[0]
	}
	if site.Programs == "" {
		site.Programs = programs(t)
	}
	if site.Users == nil {
		site.Users = []string{"alice"}
	}
	site.Cache, site.StepDaemon = cache(), ours
	c, err := cluster.Start(t.Context(), site)
	if errors.Is(err, cluster.ErrMoved) && site.Release != cluster.Releases()[0] {
		t.Skipf("not run: %v", err)
	}
	must(t, err)
	t.Cleanup(func() {
		keep(t, c, "ours")
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// ofRelease is a site of cluster.Sites, of a release.
func ofRelease(name, release string) cluster.Site {
	site := cluster.Sites[name]
	site.Release = release
	return site
}
