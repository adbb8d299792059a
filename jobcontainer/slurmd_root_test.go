package jobcontainer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
)

// mountsBelow counts the mounts below dir.
func mountsBelow(t *testing.T, dir string) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			n++
		}
	}
	return n
}

// TestRootSlurmd makes, finds and removes a job's container where Slurm's plugin has it.
func TestRootSlurmd(t *testing.T) {
	testkit.RequireRoot(t)
	for _, tc := range []struct {
		name string
		flat bool
		tmp  string // below BASE/NODE/7/.7
	}{{"22.05", true, "."}, {"later", false, "_tmp"}} {
		t.Run(tc.name, func(t *testing.T) {
			base, ctx := filepath.Join(t.TempDir(), "base"), t.Context()
			script := filepath.Join(t.TempDir(), "init")
			if err := os.WriteFile(script, []byte("#!/bin/sh\nenv | grep ^SLURM | sort > "+script+".env; readlink /proc/self/ns/mnt > "+script+".ns\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			clone := script + ".clone"
			if err := os.WriteFile(clone, []byte("#!/bin/sh\necho $SLURM_NS >> "+clone+".ran\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			s, err := NewSlurmd(Config{
				BasePath: base, AutoBasePath: true, NodeName: "n1",
				InitScript: script, CloneNSScript: clone, CloneNSEpilog: clone,
			}, tc.flat)
			if err != nil {
				t.Fatal(err)
			}
			user := step.User{Name: "alice", UID: 7001, GID: 7001}
			if _, err := s.Open(7); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "PrologFlags=Contain") {
				t.Errorf("no container yet: %v", err)
			}
			for range 2 { // the second finds what a killed one has left
				if err := s.Create(ctx, 7, user, "/work"); err != nil {
					t.Fatal(err)
				}
			}
			dir := filepath.Join(base, "n1", "7")
			ns, err := s.Open(7)
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			if n := mountsBelow(t, base); n != 2 {
				t.Errorf("%d mounts", n)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, ".7", tc.tmp), &st); err != nil || st.Uid != 7001 || st.Gid != 0 || st.Mode != unix.S_IFDIR|0o700 {
				t.Errorf("the private directory: %+v, %v", st, err)
			}
			env, _ := os.ReadFile(script + ".env")
			want := "SLURMD_NODENAME=n1\nSLURM_JOB_GID=7001\nSLURM_JOB_ID=7\nSLURM_JOB_MOUNTPOINT_SRC=" + dir + "/.7\nSLURM_JOB_UID=7001\nSLURM_JOB_USER=alice\nSLURM_JOB_WORK_DIR=/work\n"
			if string(env) != want {
				t.Errorf("InitScript's environment:\n%s", env)
			}
			own, _ := os.Readlink("/proc/self/ns/mnt")
			if in, _ := os.ReadFile(script + ".ns"); strings.TrimSpace(string(in)) != own {
				t.Errorf("InitScript was in %s, and the node is %s", in, own)
			}
			if err := os.WriteFile(filepath.Join(dir, ".7", tc.tmp, "f"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := s.Delete(ctx, 7, user, "/work"); err != nil {
					t.Fatal(err)
				}
			}
			if ran, _ := os.ReadFile(clone + ".ran"); string(ran) != strings.Repeat(dir+"/.ns\n", 3) {
				t.Errorf("CloneNSScript, twice, and CloneNSEpilog: %q", ran)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || mountsBelow(t, base) != 0 {
				t.Errorf("after Delete: %v, %d mounts", err, mountsBelow(t, base))
			}
		})
	}
}

// TestRootSlurmdTrust: no folder in which users write, and no folder of a user's, has containers.
func TestRootSlurmdTrust(t *testing.T) {
	testkit.RequireRoot(t)
	for name, prepare := range map[string]func(base string) error{
		"writable": func(base string) error { return os.Chmod(base, 0o777) },
		"a user's node": func(base string) error {
			return errors.Join(os.Chmod(base, 0o1777), os.Mkdir(filepath.Join(base, "n1"), 0o755), os.Chown(filepath.Join(base, "n1"), 7001, 7001))
		},
	} {
		base := t.TempDir()
		if err := prepare(base); err != nil {
			t.Fatal(err)
		}
		s, err := NewSlurmd(Config{BasePath: base, NodeName: "n1"}, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Create(t.Context(), 7, step.User{UID: 7001}, "/"); err == nil || mountsBelow(t, base) != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
