package place

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"

	"stepd/node"
	"stepd/proctrack"
)

// TestMemoryAbove: the lowest limit on the way up counts, in the words of both versions; what is
// no limit does not.
func TestMemoryAbove(t *testing.T) {
	top := t.TempDir()
	write := func(dir, name, text string) string {
		t.Helper()
		path := filepath.Join(top, dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	deep := filepath.Join(top, "pod/noded/stepd-1") // the last does not exist
	write("pod/noded", "memory.max", "max\n")
	write("pod", "memory.limit_in_bytes", "9223372036854771712\n")
	if n, file := memoryAbove(deep); file != "" {
		t.Errorf("without a limit: %d of %s", n, file)
	}
	write("pod/noded", "memory.max", "4294967296\n")
	want := write("pod", "memory.max", "2147483648\n")
	if n, file := memoryAbove(deep); n != 2<<30 || file != want {
		t.Errorf("got %d of %s, want 2 GiB of %s", n, file, want)
	}
}

// TestMemoryAboveSlice: a slice lies in the slices that its name begins with. In a hybrid tree v1 limits
// the steps.
func TestMemoryAboveSlice(t *testing.T) {
	mount := t.TempDir()
	for i, dir := range []string{"hpc.slice/hpc-big.slice", "system.slice", "."} {
		if err := os.MkdirAll(filepath.Join(mount, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(mount, dir, "memory.max"), fmt.Appendln(nil, i+1), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for slice, want := range map[string]uint64{"": 2, "system.slice": 2, "hpc.slice": 3, "hpc-big.slice": 1, "hpc-big-steps.slice": 1, "-.slice": 3} {
		if got, file := MemoryAbove(&cgroupTracker{scope: &scope{slice: slice, mount: mount}}); got != want {
			t.Errorf("CgroupSlice=%q: %d of %q, want %d", slice, got, file, want)
		}
	}
	v1 := proctrack.RootConfig{V1: map[string]string{"memory": filepath.Join(mount, "hpc.slice/hpc-big.slice")}}
	if got, file := MemoryAbove(&cgroupTracker{roots: v1, scope: &scope{mount: mount}}); got != 1 {
		t.Errorf("in a hybrid tree: %d of %q, want the limit of v1", got, file)
	}
}

// TestMemoryWithoutScope: where systemd makes no scope, the limit of noded's own cgroup is reported.
func TestMemoryWithoutScope(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "memory.max")
	if err := os.WriteFile(file, []byte("2147483648\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	tr := &cgroupTracker{announcer: &announcer{log: log}, roots: proctrack.RootConfig{Parent: dir}, scope: &scope{mount: t.TempDir(), patience: 1}}
	if err := tr.enterScope(); err != nil {
		t.Fatal(err)
	}
	want := node.Fallback{What: "memory limit of the scope", Why: file + " allows noded and all steps together 2048 MB"}
	if got := tr.Fallbacks(); len(got) != 2 || got[1] != want {
		t.Errorf("the fallbacks are %+v, want the second to be %+v", got, want)
	}
}
