package detect

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"stepd/proctrack"
)

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDecide(t *testing.T) {
	// refuse makes directories unusable.
	refuse := func(dirs ...string) func(string) error {
		return func(dir string) error {
			for _, d := range dirs {
				if d == dir {
					return fmt.Errorf("cannot make cgroups in %q: %w", dir, unix.EROFS)
				}
			}
			return nil
		}
	}
	hybridV1 := v1Of("cpu", "cpuset", "cpuacct", "memory", "devices", "blkio", "pids")
	ownMemory := maps.Clone(hybridV1)
	ownMemory["memory"] = "/sys/fs/cgroup/memory/a/b"
	const readOnly = `cannot make cgroups in "/sys/fs/cgroup": read-only file system`
	tests := []struct {
		name, conf, mounts, cgroup string
		plugin, mountpoint         string
		systemd, ignore            bool
		mode                       cgroups.CGMode
		usable                     func(string) error
		descent                    error
		want                       Answer
	}{
		{
			name: "systemd on pure v2", mounts: "mountinfo.unified", cgroup: "0::/system.slice/noded.service\n", mode: cgroups.Unified, systemd: true,
			want: Answer{Kind: proctrack.KindCgroupV2, Mount: "/sys/fs/cgroup", Own: "/system.slice/noded.service", Parent: "/sys/fs/cgroup", Scope: true},
		},
		{
			name: "systemd that is to be ignored", mounts: "mountinfo.unified", cgroup: "0::/system.slice/noded.service\n", mode: cgroups.Unified, systemd: true, ignore: true,
			want: Answer{Kind: proctrack.KindCgroupV2, Mount: "/sys/fs/cgroup", Own: "/system.slice/noded.service", Parent: "/sys/fs/cgroup"},
		},
		{
			name: "systemd, the own cgroup alone is usable", mounts: "mountinfo.unified", cgroup: "0::/a\n", mode: cgroups.Unified, systemd: true, usable: refuse("/sys/fs/cgroup"),
			want: Answer{Kind: proctrack.KindCgroupV2, Mount: "/sys/fs/cgroup", Own: "/a", Parent: "/sys/fs/cgroup/a", Scope: true},
		},
		{
			name: "another supervisor on pure v2", mounts: "mountinfo.unified", cgroup: "0::/services/noded\n", mode: cgroups.Unified,
			want: Answer{Kind: proctrack.KindCgroupV2, Mount: "/sys/fs/cgroup", Own: "/services/noded", Parent: "/sys/fs/cgroup/services/noded"},
		},
		{
			name: "hybrid, in the root cgroup", conf: Cgroup, mounts: "mountinfo.hybrid", cgroup: "9:name=systemd:/\n4:memory:/a/b\n0::/\n", mode: cgroups.Hybrid,
			want: Answer{Kind: proctrack.KindCgroupHybrid, Mount: "/sys/fs/cgroup/unified", Own: "/", Parent: "/sys/fs/cgroup/unified", V1: ownMemory},
		},
		{
			name: "v1 asked for", plugin: V1, mounts: "mountinfo.hybrid", cgroup: "4:memory:/a/b\n0::/\n", mode: cgroups.Hybrid,
			want: Answer{Kind: proctrack.KindCgroupV1, Parent: "/sys/fs/cgroup/freezer", V1: ownMemory},
		},
		{
			name: "v1, below the own cgroups", plugin: V1, mounts: "mountinfo.hybrid", cgroup: "6:freezer:/f\n4:memory:/a/b\n", mode: cgroups.Hybrid,
			usable: refuse("/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpuset", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/blkio", "/sys/fs/cgroup/devices"),
			want:   Answer{Kind: proctrack.KindCgroupV1, Parent: "/sys/fs/cgroup/freezer/f", V1: map[string]string{"memory": "/sys/fs/cgroup/memory/a/b"}},
		},
		{
			name: "no freezer", plugin: V1, mounts: "mountinfo.unified", cgroup: "0::/\n", mode: cgroups.Unified,
			want: Answer{Kind: proctrack.KindLinuxProc, Fallbacks: []Fallback{{Cgroup, "the freezer hierarchy of cgroup v1 is not mounted"}}},
		},
		{
			name: "v2 asked for, v1 mounted", plugin: V2, mounts: "mountinfo.legacy", cgroup: "4:memory:/\n", mode: cgroups.Legacy,
			want: Answer{Kind: proctrack.KindLinuxProc, Fallbacks: []Fallback{{Cgroup, onlyV1}}},
		},
		{
			name: "v2 is read-only, v1 is not", mounts: "mountinfo.hybrid", cgroup: "0::/\n", mode: cgroups.Hybrid, usable: refuse("/sys/fs/cgroup/unified"),
			want: Answer{Kind: proctrack.KindCgroupV1, Parent: "/sys/fs/cgroup/freezer", V1: v1Of("cpu", "cpuset", "cpuacct", "memory", "devices", "blkio", "pids"),
				Fallbacks: []Fallback{{V2, `cannot make cgroups in "/sys/fs/cgroup/unified": read-only file system`}}},
		},
		{
			name: "no cgroups wanted", plugin: Disabled, mounts: "mountinfo.hybrid", cgroup: "0::/\n", mode: cgroups.Hybrid,
			want: Answer{Kind: proctrack.KindLinuxProc, Fallbacks: []Fallback{{Cgroup, "CgroupPlugin=disabled in cgroup.conf"}}},
		},
		{
			name: "the tree is elsewhere", mountpoint: "/sys/fs/cgroup/unified", mounts: "mountinfo.hybrid", cgroup: "0::/\n", mode: cgroups.Hybrid,
			want: Answer{Kind: proctrack.KindCgroupHybrid, Mount: "/sys/fs/cgroup/unified", Own: "/", Parent: "/sys/fs/cgroup/unified", V1: hybridV1},
		},
		{
			name: "v1 only", mounts: "mountinfo.legacy", cgroup: "4:memory:/\n", mode: cgroups.Legacy,
			want: Answer{Kind: proctrack.KindCgroupV1, Parent: "/sys/fs/cgroup/freezer", V1: hybridV1, Fallbacks: []Fallback{{V2, onlyV1}}},
		},
		{
			name: "no cgroups at all", mounts: "mountinfo.none", mode: cgroups.Unavailable,
			want: Answer{Kind: proctrack.KindLinuxProc, Fallbacks: []Fallback{{Cgroup, "no cgroup file system is mounted"}}},
		},
		{
			name: "container with a read-only tree", mounts: "mountinfo.unified", cgroup: "0::/\n", mode: cgroups.Unified, usable: refuse("/sys/fs/cgroup"),
			want: Answer{Kind: proctrack.KindLinuxProc, Mount: "/sys/fs/cgroup", Own: "/", Fallbacks: []Fallback{{Cgroup, readOnly}}},
		},
		{
			name: "own cgroup not usable", mounts: "mountinfo.unified", cgroup: "0::/a\n", mode: cgroups.Unified, usable: refuse("/sys/fs/cgroup/a"),
			want: Answer{Kind: proctrack.KindCgroupV2, Mount: "/sys/fs/cgroup", Own: "/a", Parent: "/sys/fs/cgroup",
				Fallbacks: []Fallback{{"cgroup root below noded's own cgroup", `cannot make cgroups in "/sys/fs/cgroup/a": read-only file system`}}},
		},
		{
			name: "nothing usable", mounts: "mountinfo.unified", cgroup: "0::/a\n", mode: cgroups.Unified, usable: refuse("/sys/fs/cgroup/a", "/sys/fs/cgroup"),
			want: Answer{Kind: proctrack.KindLinuxProc, Mount: "/sys/fs/cgroup", Own: "/a", Fallbacks: []Fallback{{Cgroup, readOnly}}},
		},
		{
			name: "outside of the cgroup namespace", mounts: "mountinfo.unified", cgroup: "0::/../other\n", mode: cgroups.Unified,
			want: Answer{Kind: proctrack.KindCgroupV2, Mount: "/sys/fs/cgroup", Own: "/../other", Parent: "/sys/fs/cgroup"},
		},
		{
			name: "a mount of a part of the tree", mounts: "mountinfo.part", cgroup: "0::/docker/12ab/init\n", mode: cgroups.Unified,
			want: Answer{Kind: proctrack.KindCgroupV2, Mount: "/sys/fs/cgroup", Own: "/docker/12ab/init", Parent: "/sys/fs/cgroup/init"},
		},
		{
			name: "a container with the host's tree in a namespace of its own", mounts: "mountinfo.beyond", cgroup: "0::/\n", mode: cgroups.Unified,
			want: Answer{Kind: proctrack.KindLinuxProc, Mount: "/sys/fs/cgroup", Own: "/", Fallbacks: []Fallback{{Cgroup,
				`cannot use "/sys/fs/cgroup": it shows cgroups beyond noded's own cgroup namespace (start the container with --cgroupns=host, or without this mount)`}}},
		},
		{
			name: "a mount of another part", mounts: "mountinfo.part", cgroup: "0::/docker/12abc\n", mode: cgroups.Unified,
			want: Answer{Kind: proctrack.KindCgroupV2, Mount: "/sys/fs/cgroup", Own: "/docker/12abc", Parent: "/sys/fs/cgroup"},
		},
		{name: "linuxproc asked for", conf: LinuxProc, mounts: "mountinfo.unified", mode: cgroups.Unified, want: Answer{Kind: proctrack.KindLinuxProc}},
		{
			name: "pgid asked for", conf: PGID, mounts: "mountinfo.unified", mode: cgroups.Unified,
			want: Answer{Kind: proctrack.KindLinuxProc, Fallbacks: []Fallback{{PGID, InsteadOfPGID}}},
		},
		{
			name: "pgid asked for, and no descent", conf: PGID, mounts: "mountinfo.unified", mode: cgroups.Unified, descent: os.ErrNotExist,
			want: Answer{Kind: proctrack.KindPGID},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.usable == nil {
				tt.usable = refuse()
			}
			got, err := decide(Wish{tt.conf, tt.plugin, tt.mountpoint, tt.ignore}, facts{tt.mode, testdata(t, tt.mounts), []byte(tt.cgroup), tt.usable, tt.systemd, tt.descent})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("decide (-want +got):\n%s", diff)
			}
		})
	}
}

const onlyV1 = "only cgroup v1 is mounted (a cgroup2 mount can stand beside it, for example at /sys/fs/cgroup/unified)"

// v1Of are the parents below the usual mounts.
func v1Of(controllers ...string) map[string]string {
	out := make(map[string]string)
	for _, c := range controllers {
		out[c] = "/sys/fs/cgroup/" + c
	}
	return out
}

func TestDecideRefuses(t *testing.T) {
	none := func(string) error { return nil }
	tests := []struct {
		name, conf, mounts, cgroup, want string
	}{
		{"unknown type", "proctrack/sgi_job", "", "", `cannot use ProctrackType="proctrack/sgi_job"`},
		{"garbage in mountinfo", Cgroup, "1 2 3\n", "", "cannot parse the mounts"},
		{"garbage in cgroup", Cgroup, string(testdata(t, "mountinfo.unified")), "nonsense\n", "cannot parse the own cgroup"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := decide(Wish{ProctrackType: tt.conf}, facts{cgroups.Unified, []byte(tt.mounts), []byte(tt.cgroup), none, false, nil})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestUsable(t *testing.T) {
	dir := t.TempDir()
	if err := usable(dir); err != nil {
		t.Errorf("usable(%q) = %v, want nil", dir, err)
	}
	if err := usable(filepath.Join(dir, "absent")); err == nil {
		t.Error("an absent directory is usable")
	}
	for kind, ok := range map[string]bool{"domain\n": true, "domain threaded\n": true, "threaded\n": false, "domain invalid\n": false} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte(kind), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := usable(dir); (err == nil) != ok {
			t.Errorf("with cgroup.type %q: %v, want ok=%v", kind, err, ok)
		}
	}
}

func TestDetectHere(t *testing.T) {
	a, err := Detect(Wish{})
	if err != nil {
		t.Fatal(err)
	}
	if (a.Parent == "") != (a.Kind == proctrack.KindLinuxProc) {
		t.Errorf("kind %q with parent %q", a.Kind, a.Parent)
	}
	if a.Kind == proctrack.KindLinuxProc && len(a.Fallbacks) == 0 {
		t.Error("linuxproc is not announced")
	}
}

func FuzzDecide(f *testing.F) {
	for _, name := range []string{"mountinfo.unified", "mountinfo.hybrid", "mountinfo.part", "mountinfo.none"} {
		f.Add(testdata(f, name), []byte("0::/docker/12ab/init\n"))
	}
	f.Add([]byte("  :    - cgroup2  "), []byte("::/")) // a mount without a mount point
	f.Fuzz(func(t *testing.T, mounts, own []byte) {
		a, err := decide(Wish{}, facts{cgroups.Unified, mounts, own, func(string) error { return nil }, false, nil})
		if err != nil || a.Parent == "" {
			return
		}
		// Whatever the kernel says, the root stays at or below the mount.
		if a.Kind == proctrack.KindCgroupV1 {
			return
		}
		mount := filepath.Clean(a.Mount)
		if a.Parent != mount && a.Parent != a.Mount && !strings.HasPrefix(a.Parent, strings.TrimSuffix(mount, "/")+"/") {
			t.Errorf("parent %q is not below mount %q", a.Parent, a.Mount)
		}
	})
}
