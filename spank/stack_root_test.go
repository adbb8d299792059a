package spank

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/internal/testkit"
)

// TestRootUnsafeStack: what is not root's alone is found on the whole way, by
// symlinks too.
func TestRootUnsafeStack(t *testing.T) {
	testkit.RequireRoot(t)
	dir := stackDir(t, map[string]string{
		"lib/safe.so": "", "theirs/real.so": "",
	})
	file := filepath.Join(dir, "plugstack.conf")
	if err := os.WriteFile(file, []byte("required safe.so\nrequired "+dir+"/link.so\noptional gone.so\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("theirs/real.so", filepath.Join(dir, "link.so")); err != nil {
		t.Fatal(err)
	}
	unsafe := func() []string {
		t.Helper()
		s, err := ReadStack(file, []string{filepath.Join(dir, "lib")})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, p := range s.Unsafe() {
			if p.Severity != SeverityWarning {
				t.Errorf("severity %q", p.Severity)
			}
			out = append(out, strings.ReplaceAll(p.String(), dir+"/", ""))
		}
		return out
	}
	if got := unsafe(); len(got) > 0 {
		t.Errorf("a safe stack: %q", got)
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "theirs"), 7001, 0); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`spank: plugstack.conf: "plugstack.conf" may be written by everybody`,
		`spank: plugstack.conf:2: "theirs" belongs to uid 7001, not to root`,
	}
	if diff := cmp.Diff(want, unsafe()); diff != "" {
		t.Error(diff)
	}
}
