package spank

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
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

// TestRootRequireSafe: the error names the file, what is wrong and the remedy.
func TestRootRequireSafe(t *testing.T) {
	testkit.RequireRoot(t)
	dir := stackDir(t, map[string]string{"x.so": ""})
	file := filepath.Join(dir, "plugstack.conf")
	if err := os.WriteFile(file, []byte("\nrequired "+dir+"/x.so\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	check := func() error {
		if _, err := StackOf(step.SpankConf{Plugstack: file}); err != nil {
			t.Fatal(err)
		}
		_, err := StackOf(step.SpankConf{Plugstack: file, RequireSafe: true})
		return err
	}
	if err := check(); err != nil {
		t.Errorf("a safe stack: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "x.so"), 0o646); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("cannot load the plugin stack: %[1]s/plugstack.conf:2: %[2]q may be written by everybody, and stepd.conf has RequireSafePlugins=yes; chmod o-w %[1]s/x.so", dir, dir+"/x.so")
	if err := check(); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestRootUnsafeACL: an access control list gives what the mode does not show.
func TestRootUnsafeACL(t *testing.T) {
	testkit.RequireRoot(t)
	dir := stackDir(t, map[string]string{"f": ""})
	f := filepath.Join(dir, "f")
	// acl(5) as the kernel has it: version 2, then tag, permissions, id: owner
	// rw, user 7001 rw, group r, mask rw, other r.
	acl := []byte{2, 0, 0, 0}
	for _, e := range [][3]uint32{{1, 6, ^uint32(0)}, {2, 6, 7001}, {4, 4, ^uint32(0)}, {0x10, 6, ^uint32(0)}, {0x20, 4, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[0]))
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[1]))
		acl = binary.LittleEndian.AppendUint32(acl, e[2])
	}
	if why, _ := UnsafeFile(f); why != "" {
		t.Fatal(why)
	}
	if err := unix.Lsetxattr(f, "system.posix_acl_access", acl, 0); err != nil {
		t.Skipf("no access control lists here: %v", err)
	}
	if why, remedy := UnsafeFile(f); !strings.Contains(why, "access control list") || remedy != "setfacl -b "+f {
		t.Errorf("got %q, %q", why, remedy)
	}
}
