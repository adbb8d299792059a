package proctrack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// limitHint lists the limits on the number and depth of cgroups that hold for
// children of dir: the limits of dir itself and of all its ancestors.
func limitHint(dir string) string {
	var limits []string
	for ; ; dir = filepath.Dir(dir) {
		for _, knob := range []string{"cgroup.max.descendants", "cgroup.max.depth"} {
			data, err := os.ReadFile(filepath.Join(dir, knob))
			if err != nil {
				continue // the root has none, and above it there is no cgroup
			}
			if value := strings.TrimSpace(string(data)); value != "max" {
				limits = append(limits, fmt.Sprintf("%s=%s in %q", knob, value, dir))
			}
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if len(limits) == 0 {
		return ""
	}
	return strings.Join(limits, ", ") + ": raise it"
}

// dyingHint reports removed groups that the kernel still keeps: they count
// until the last reference to them is dropped.
func dyingHint(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.stat"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if n, ok := strings.CutPrefix(line, "nr_dying_descendants "); ok {
			return fmt.Sprintf("%s removed cgroups below %q are not freed yet", strings.TrimSpace(n), dir)
		}
	}
	return ""
}
