package site

import (
	"path/filepath"
	"strings"
	"testing"

	"stepd/slurmconf"
)

// TestHiddenDirectories: a directory of noded's that a private one hides from jobs is
// reported, with the consequences and the remedy.
func TestHiddenDirectories(t *testing.T) {
	dir := t.TempDir()
	covered, beside := filepath.Join(dir, "covered"), filepath.Join(dir, "covered2")
	for _, tc := range []struct {
		name, kind, run, spool string
		want                   []string
	}{
		{"neither", "tmpfs", beside, beside, nil},
		{"no container", "none", covered, covered, nil},
		{"run", "tmpfs", filepath.Join(covered, "a", "run"), beside, []string{"the run directory"}},
		{"spool", "linux", beside, filepath.Join(covered, "spool"), []string{"the spool directory"}},
		{"both, and one is it", "tmpfs", covered, covered + "/", []string{"the run directory", "the spool directory"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &Site{conf: &slurmconf.Config{File: "slurm.conf", JobContainerType: tc.kind}, Run: tc.run, Spool: tc.spool}
			s.conf.Container.Dirs = []string{"/dev/shm", covered}
			s.checkHidden()
			if len(s.problems) != len(tc.want) {
				t.Fatalf("found %v, want %q", s.problems, tc.want)
			}
			for i, p := range s.problems {
				if text := p.String(); !strings.Contains(text, tc.want[i]) || !strings.Contains(text, covered) || !strings.Contains(p.Remedy, "-dir") || p.Severity != slurmconf.SeverityWarning {
					t.Errorf("problem %d is %s %q, want it to name %q", i, p.Severity, text, tc.want[i])
				}
			}
		})
	}
	s := &Site{conf: &slurmconf.Config{JobContainerType: "tmpfs"}, Run: "/tmp/n/run", Spool: "/var/spool/stepd"}
	s.checkHidden()
	if len(s.problems) != 1 {
		t.Errorf("of the default Dirs: %v", s.problems)
	}
}
