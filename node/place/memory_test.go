package place

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
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

// TestMemoryAboveSlice: a slice lies in the slices that its name begins with.
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
}
