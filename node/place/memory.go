package place

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"stepd/node"
	"stepd/proctrack"
)

// MemoryAbove is the lowest memory limit, in bytes, of the cgroups above the steps of t, and the
// file that has it; "" is none.
func MemoryAbove(t node.Tracker) (limit uint64, file string) {
	c, ok := t.(*cgroupTracker)
	if !ok {
		return 0, ""
	}
	dir, v1 := c.roots.V1["memory"]
	switch {
	case v1: // in a hybrid tree, too
	case c.kind == proctrack.KindCgroupV1:
		return 0, ""
	case c.scope != nil: // noded's own cgroup is not above the scope
		dir = filepath.Join(c.scope.mount, slicePath(cmp.Or(c.scope.slice, "system.slice")))
	default:
		dir = c.roots.Parent
	}
	return memoryAbove(dir)
}

// slicePath is the path of a slice below the mount: a-b.slice lies in a.slice, and -.slice is the
// mount itself (systemd.slice(5)).
func slicePath(slice string) (path string) {
	for i, r := range slice {
		if r == '-' && i > 0 {
			path = filepath.Join(path, slice[:i]+".slice")
		}
	}
	return filepath.Join(path, strings.TrimPrefix(slice, "-.slice"))
}

// memoryAbove is MemoryAbove of a directory, which need not exist.
func memoryAbove(dir string) (limit uint64, file string) {
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			n, perr := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			if err != nil || perr != nil || n >= unlimitedV1 { // "max" is no number
				continue
			}
			if file == "" || n < limit {
				limit, file = n, path
			}
		}
	}
	return limit, file
}

// unlimitedV1 is below what cgroup v1 shows of a group without a limit, which depends on the size
// of a page.
const unlimitedV1 = 1 << 62
