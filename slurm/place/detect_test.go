package place

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/proctrack/detect"
)

func TestKept(t *testing.T) {
	asked := key("boot", "0::/x\n", detect.Wish{})
	want := found{"cgroup/hybrid", "/sys/fs/cgroup/unified", map[string]string{"memory": "/sys/fs/cgroup/memory", "cpuset": "/a b"}}
	path := filepath.Join(Dir(t.TempDir()), keptName)
	if _, ok := readKept(path, asked); ok {
		t.Fatal("an answer that was never kept")
	}
	if err := keep(path, asked, want); err != nil {
		t.Fatal(err)
	}
	got, ok := readKept(path, asked)
	if !ok || got.kind != want.kind || got.parent != want.parent || !maps.Equal(got.v1, want.v1) {
		t.Fatalf("%+v %v", got, ok)
	}
	for name, other := range map[string]string{
		"another boot": key("other", "0::/x\n", detect.Wish{}), "another plugin": key("boot", "0::/x\n", detect.Wish{Plugin: detect.V1}),
		"another cgroup": key("boot", "0::/y\n", detect.Wish{}), "another mount": key("boot", "0::/x\n", detect.Wish{Mountpoint: "/cg"}),
	} {
		if _, ok := readKept(path, other); ok {
			t.Errorf("%s: the answer is taken", name)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(b) { // the spool was full
		if f, ok := parseKept(b[:i], asked); ok && !strings.HasSuffix(string(b[:i]), "\n") {
			t.Errorf("%q is taken: %+v", b[:i], f)
		}
	}
}

func TestDelegating(t *testing.T) {
	mount := t.TempDir()
	leaf := filepath.Join(mount, "system.slice/slurmd.scope/slurmd")
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		t.Fatal(err)
	}
	give := func(dir, controllers string) {
		if err := os.WriteFile(filepath.Join(mount, dir, "cgroup.subtree_control"), []byte(controllers), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := delegating(leaf, mount); got != leaf {
		t.Errorf("none delegates: %q", got)
	}
	give(".", "cpu memory\n")
	if got := delegating(leaf, mount); got != mount {
		t.Errorf("the root alone delegates: %q", got)
	}
	give("system.slice/slurmd.scope", "cpuset memory\n")
	give("system.slice/slurmd.scope/slurmd", "\n")
	if got, want := delegating(leaf, mount), filepath.Dir(leaf); got != want {
		t.Errorf("the scope delegates: %q", got)
	}
}

func FuzzParseKept(f *testing.F) {
	f.Add("x\ncgroup/v2\n/sys/fs/cgroup\nmemory /m\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := parseKept([]byte(text), "x")
		if ok && (!filepath.IsAbs(got.parent) || !strings.HasPrefix(text, "x\n")) {
			t.Fatalf("%q: %+v", text, got)
		}
	})
}
