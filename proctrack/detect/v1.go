package detect

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"

	"stepd/proctrack"
)

// hierarchy is one v1 controller's place: dir is where cgroups can be made, ""
// where that is nowhere, and why.
type hierarchy struct{ dir, why string }

type hierarchies map[string]hierarchy

// v1Controllers are the controllers that tracking, limits and accounting can use.
var v1Controllers = []string{"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids"}

// v1Parents finds the v1 hierarchies. The root goes below the own cgroup, where
// the site has put noded, else below the mount, as on v2.
func v1Parents(f facts) (hierarchies, error) {
	mounts, err := mountinfo.GetMountsFromReader(bytes.NewReader(f.mountinfo), mountinfo.FSTypeFilter("cgroup"))
	if err != nil {
		return nil, fmt.Errorf("cannot parse the mounts: %w", err)
	}
	own := ownV1(f.cgroup)
	found := make(hierarchies)
	for _, m := range mounts {
		for _, c := range strings.Split(m.VFSOptions, ",") {
			if !slices.Contains(v1Controllers, c) || found[c].dir != "" || !strings.HasPrefix(m.Mountpoint, "/") {
				continue
			}
			found[c] = f.placeIn(m, own[c])
		}
	}
	return found, nil
}

func (f facts) placeIn(m *mountinfo.Info, own string) hierarchy {
	if err := ofOthers(m); err != nil {
		return hierarchy{why: err.Error()}
	}
	if dir, visible := below(m, own); visible && f.usable(dir) == nil {
		return hierarchy{dir: dir}
	}
	if err := f.usable(m.Mountpoint); err != nil {
		return hierarchy{why: err.Error()}
	}
	return hierarchy{dir: m.Mountpoint}
}

// ownV1 reads /proc/self/cgroup, "4:memory:/a/b" (cgroups(7)): the own path by
// controller.
func ownV1(data []byte) map[string]string {
	own := make(map[string]string)
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for _, c := range strings.Split(fields[1], ",") {
			own[c] = fields[2]
		}
	}
	return own
}

// parents leaves out the freezer, which limits nothing.
func (h hierarchies) parents() map[string]string {
	var out map[string]string
	for c, at := range h {
		if at.dir == "" || c == "freezer" {
			continue
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[c] = at.dir
	}
	return out
}

// placeV1 tracks by the freezer, the v1 hierarchy that has no other use.
func placeV1(a Answer, h hierarchies, mode cgroups.CGMode) Answer {
	freezer, mounted := h["freezer"]
	switch {
	case freezer.dir != "":
		a.Kind, a.Parent, a.V1 = proctrack.KindCgroupV1, freezer.dir, h.parents()
		return a
	case mounted:
		return fallBack(a, freezer.why)
	case mode == cgroups.Unavailable:
		return fallBack(a, noMountWhy(mode))
	}
	return fallBack(a, "the freezer hierarchy of cgroup v1 is not mounted")
}
