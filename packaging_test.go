package stepd

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"stepd/mpi"
	"stepd/slurmconf"
)

// TestPackagedConfiguration: the files that the package puts into /etc/stepd say
// nothing, and what they propose in comments is without a mistake.
func TestPackagedConfiguration(t *testing.T) {
	proposal := regexp.MustCompile(`(?m)^#(\w+=)`)
	dir := t.TempDir()
	for _, name := range []string{"slurm.conf", "stepd.conf"} {
		text := readText(t, "packaging/etc/"+name)
		for _, line := range strings.Split(text, "\n") {
			if line != "" && line[0] != '#' {
				t.Errorf("packaging/etc/%s is more than comments: %q", name, line)
			}
		}
		if len(proposal.FindAllString(text, -1)) < 5 {
			t.Errorf("packaging/etc/%s proposes nothing", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(proposal.ReplaceAllString(text, "$1")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"node.pem", "node.key", "ca.pem"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, problems, err := slurmconf.LoadAs(filepath.Join(dir, "slurm.conf"), "n07", "", mpi.Names()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Severity == slurmconf.SeverityError || p.Severity == slurmconf.SeverityWarning {
			t.Errorf("%s: %s", p.Severity, p)
		}
	}
}
