package place

import (
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
