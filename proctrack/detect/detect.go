// Package detect finds out which process tracker this node can have, and where
// its cgroups go. noded asks once, at its start. stepd does not import this
// package: its Spec has the result, and stepd stays small.
package detect

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/proctrack"
)

// The values of ProctrackType that are known. Empty means Cgroup.
const (
	Cgroup    = "proctrack/cgroup"
	LinuxProc = "proctrack/linuxproc"
	PGID      = "proctrack/pgid"
)

// The values of CgroupPlugin (cgroup.conf). Empty means Autodetect.
const (
	Autodetect = "autodetect"
	V1         = "cgroup/v1"
	V2         = "cgroup/v2"
	Disabled   = "disabled"
)

// Wish is what the site's files ask for. The zero value asks for the best.
type Wish struct {
	// ProctrackType is slurm.conf's.
	ProctrackType string
	// Plugin is cgroup.conf's CgroupPlugin, Mountpoint its CgroupMountpoint ("" is
	// /sys/fs/cgroup): where the v2 tree is looked for first.
	Plugin, Mountpoint string
	// IgnoreSystemd is cgroup.conf's: no scope is made.
	IgnoreSystemd bool
}

// Answer is what the node gets.
type Answer struct {
	// Kind is for step.Proctrack and for node status.
	Kind string
	// Parent is the directory that proctrack.NewRoot is to make its root in;
	// empty for trackers without cgroups. V1 are those in the v1 hierarchies that
	// limits can use, by controller.
	Parent string
	V1     map[string]string
	// Mount is the v2 mount point, Own the caller's cgroup as the kernel gives
	// it (relative to its cgroup namespace); both empty where v2 is not used.
	Mount, Own string
	// Scope says that systemd runs the host: the root belongs into a scope, which
	// is delegated to the node, and into Parent where that cannot be had.
	Scope bool
	// Fallbacks lists what was asked for and is not had.
	Fallbacks []Fallback
}

// Fallback is one line of node status.
type Fallback struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Detect looks at this node. The error says that ProctrackType or CgroupPlugin
// is none we have. A node without a usable cgroup tree is no error: the answer
// is the best of cgroup v2, v1's freezer and linuxproc that can be had, and says
// why it is not a better one.
func Detect(w Wish) (Answer, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Answer{}, fmt.Errorf("cannot read the mounts: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil && !os.IsNotExist(err) { // a kernel without cgroups has no such file
		return Answer{}, fmt.Errorf("cannot read the own cgroup: %w", err)
	}
	return decide(w, facts{
		mode:      cgroups.Mode(),
		mountinfo: mounts,
		cgroup:    own,
		usable:    usable,
		systemd:   systemdRuns(),
		descent:   proctrack.CheckDescent(),
	})
}

// systemdRuns reports whether process 1 is systemd (sd_booted(3)).
func systemdRuns() bool {
	st, err := os.Lstat("/run/systemd/system")
	if err != nil || !st.IsDir() {
		return false
	}
	comm, err := os.ReadFile("/proc/1/comm")
	return err == nil && strings.TrimSpace(string(comm)) == "systemd"
}

// facts is what decide knows about the node; tests make their own.
type facts struct {
	mode      cgroups.CGMode
	mountinfo []byte
	cgroup    []byte
	// usable says why no cgroup can be made in a directory, or nil.
	usable  func(dir string) error
	systemd bool
	// descent says why processes cannot be tracked by descent, or is nil.
	descent error
}

func decide(w Wish, f facts) (Answer, error) {
	switch w.ProctrackType {
	case "", Cgroup:
		return decideCgroup(w, f)
	case LinuxProc:
		return Answer{Kind: proctrack.KindLinuxProc}, nil
	case PGID:
		return decidePGID(f.descent), nil
	}
	return Answer{}, fmt.Errorf("cannot use ProctrackType=%q: want %s, %s or %s", w.ProctrackType, Cgroup, LinuxProc, PGID)
}

// InsteadOfPGID is why steps are tracked by descent where ProctrackType is PGID.
const InsteadOfPGID = "a process that leaves the group (setsid) would outlive its step: " + LinuxProc + ", which finds it, is used"

// decidePGID keeps to the process group only where the kernel has nothing better.
func decidePGID(descent error) Answer {
	if descent != nil {
		return Answer{Kind: proctrack.KindPGID}
	}
	return Answer{Kind: proctrack.KindLinuxProc, Fallbacks: []Fallback{{What: PGID, Why: InsteadOfPGID}}}
}

func decideCgroup(w Wish, f facts) (Answer, error) {
	v1, err := v1Parents(f)
	if err != nil {
		return Answer{}, err
	}
	switch w.Plugin {
	case Disabled:
		return fallBack(Answer{}, "CgroupPlugin=disabled in cgroup.conf"), nil
	case V1:
		return placeV1(Answer{}, v1, f.mode), nil
	case "", Autodetect, V2:
	default:
		return Answer{}, fmt.Errorf("cannot use CgroupPlugin=%q: want %s, %s, %s or %s", w.Plugin, Autodetect, V1, V2, Disabled)
	}
	a, err := decideV2(w, f)
	if err != nil {
		return Answer{}, err
	}
	if a.Parent != "" {
		a.V1 = v1.parents()
		return a, nil
	}
	if freezer := v1["freezer"]; w.Plugin == V2 || freezer.dir == "" {
		return a, nil
	}
	why := a.Fallbacks[len(a.Fallbacks)-1].Why
	return placeV1(Answer{Fallbacks: []Fallback{{What: V2, Why: why}}}, v1, f.mode), nil
}

// decideV2 has no Parent in its answer where v2 cannot be used.
func decideV2(w Wish, f facts) (Answer, error) {
	mount, err := findMount(f.mountinfo, w.Mountpoint)
	if err != nil {
		return Answer{}, err
	}
	if mount == nil {
		return fallBack(Answer{}, noMountWhy(f.mode)), nil
	}
	a := Answer{Kind: proctrack.KindCgroupHybrid, Mount: mount.Mountpoint}
	if f.mode == cgroups.Unified {
		a.Kind = proctrack.KindCgroupV2
	}
	_, a.Own, err = f.own()
	if err != nil {
		return Answer{}, err
	}
	if err := ofOthers(mount); err != nil {
		return fallBack(a, err.Error()), nil
	}
	if !f.systemd {
		return place(a, mount, f.usable), nil
	}
	a = placeUnderSystemd(a, mount, f.usable)
	a.Scope = a.Parent != "" && !w.IgnoreSystemd
	return a, nil
}

// placeUnderSystemd puts the root below the mount rather than below the own
// cgroup: that is a unit's, which must not limit what is below it since it has
// processes of its own.
func placeUnderSystemd(a Answer, mount *mountinfo.Info, usable func(string) error) Answer {
	if usable(mount.Mountpoint) == nil {
		a.Parent = mount.Mountpoint
		return a
	}
	return place(a, mount, usable)
}

// place puts the root below the own cgroup, where the site has put noded, else
// below the mount.
func place(a Answer, mount *mountinfo.Info, usable func(string) error) Answer {
	own, visible := below(mount, a.Own)
	if visible {
		err := usable(own)
		if err == nil {
			a.Parent = own
			return a
		}
		if own == mount.Mountpoint {
			return fallBack(a, err.Error())
		}
		a.Fallbacks = append(a.Fallbacks, Fallback{What: "cgroup root below noded's own cgroup", Why: err.Error()})
	}
	if err := usable(mount.Mountpoint); err != nil {
		a.Fallbacks = nil // the reason that counts is the last one
		return fallBack(a, err.Error())
	}
	a.Parent = mount.Mountpoint
	return a
}

// ofOthers refuses a mount that shows what is above the own cgroup namespace: a
// container's, to which the host's tree was given. No file says where in that tree
// its own cgroup is, and the other cgroups may hold roots of other nodeds, by the same
// name.
func ofOthers(mount *mountinfo.Info) error {
	if mount.Root != "/.." && !strings.HasPrefix(mount.Root, "/../") {
		return nil
	}
	return fmt.Errorf("cannot use %q: it shows cgroups beyond noded's own cgroup namespace (start the container with --cgroupns=host, or without this mount)", mount.Mountpoint)
}

func fallBack(a Answer, why string) Answer {
	a.Kind, a.Parent = proctrack.KindLinuxProc, ""
	a.Fallbacks = append(a.Fallbacks, Fallback{What: Cgroup, Why: why})
	return a
}

func noMountWhy(mode cgroups.CGMode) string {
	if mode == cgroups.Unavailable {
		return "no cgroup file system is mounted"
	}
	return "only cgroup v1 is mounted (a cgroup2 mount can stand beside it, for example at /sys/fs/cgroup/unified)"
}

const usualMount = "/sys/fs/cgroup"

// findMount finds the v2 tree: at its usual places first, else wherever it is.
func findMount(data []byte, first string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMountsFromReader(bytes.NewReader(data), mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("cannot parse the mounts: %w", err)
	}
	first = cmp.Or(first, usualMount)
	for _, usual := range []string{first, filepath.Join(first, "unified"), usualMount, usualMount + "/unified"} {
		for _, m := range mounts {
			if m.Mountpoint == usual {
				return m, nil
			}
		}
	}
	if len(mounts) == 0 {
		return nil, nil
	}
	if m := mounts[0]; !filepath.IsAbs(m.Mountpoint) {
		return nil, fmt.Errorf("cannot parse the mounts: mount point %q is not absolute", m.Mountpoint)
	}
	return mounts[0], nil
}

// below maps a path of /proc/PID/cgroup to a directory. A mount may show a
// part of the tree only (its root is not "/"), and a process may be outside of
// that part, or of its cgroup namespace ("/../x").
func below(mount *mountinfo.Info, own string) (dir string, visible bool) {
	if !strings.HasPrefix(own, "/") || path.Clean(own) != own {
		return "", false
	}
	rest := own
	if mount.Root != "/" {
		var ok bool
		rest, ok = strings.CutPrefix(own, mount.Root)
		if !ok || (rest != "" && rest[0] != '/') {
			return "", false
		}
	}
	return filepath.Join(mount.Mountpoint, rest), true
}

// usable tries what making a cgroup needs, and makes none.
func usable(dir string) error {
	err := linux.IgnoringEINTR(func() error {
		return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	})
	if err != nil {
		return fmt.Errorf("cannot make cgroups in %q: %w", dir, err)
	}
	// Below a threaded cgroup no process can be started as in a cgroup of its
	// own (cgroup-v2.rst, "Threads"). The tree's root has no such file.
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.type"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot make cgroups in %q: %w", dir, err)
	}
	kind := strings.TrimSpace(string(data))
	if kind == "threaded" || kind == "domain invalid" {
		return fmt.Errorf("cannot make cgroups in %q: its cgroup.type is %q", dir, kind)
	}
	return nil
}

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
	own, _, err := f.own()
	if err != nil {
		return nil, err
	}
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

// own are the own paths, by controller of v1 and in v2's tree.
func (f facts) own() (v1 map[string]string, v2 string, err error) {
	v1, v2, err = cgroups.ParseCgroupFromReaderUnified(bytes.NewReader(f.cgroup))
	if err != nil {
		return nil, "", fmt.Errorf("cannot parse the own cgroup: %w", err)
	}
	return v1, v2, nil
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
