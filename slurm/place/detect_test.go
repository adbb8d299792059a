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
	asked := key("boot", detect.Wish{})
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
		"another boot": key("other", detect.Wish{}), "another plugin": key("boot", detect.Wish{Plugin: detect.V1}),
		"another mount": key("boot", detect.Wish{Mountpoint: "/cg"}),
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

func FuzzParseKept(f *testing.F) {
	f.Add("x\ncgroup/v2\n/sys/fs/cgroup\nmemory /m\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := parseKept([]byte(text), "x")
		if ok && (!filepath.IsAbs(got.parent) || !strings.HasPrefix(text, "x\n")) {
			t.Fatalf("%q: %+v", text, got)
		}
	})
}
