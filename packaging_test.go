package stepd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"stepd/mpi"
	"stepd/site"
	"stepd/slurmconf"
)

// TestUnitOfMistakes: systemd does not start noded again after a mistake in its files.
func TestUnitOfMistakes(t *testing.T) {
	if line := fmt.Sprintf("\nRestartPreventExitStatus=%d\n", site.MistakenExit); !strings.Contains(readText(t, "packaging/noded.service"), line) {
		t.Errorf("packaging/noded.service has not %q", line)
	}
}

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

// TestImageHasMakefiles: the image of the tests installs packages by the Makefile before it has the
// sources: all that the Makefile includes exists in the image.
func TestImageHasMakefiles(t *testing.T) {
	image := readText(t, "Dockerfile")
	included := regexp.MustCompile(`(?m)^include (\S+)$`).FindAllStringSubmatch(readText(t, "Makefile"), -1)
	if len(included) == 0 {
		t.Error("the Makefile includes nothing")
	}
	for _, m := range included {
		if want := "COPY " + m[1] + " " + filepath.Dir(m[1]) + "/\n"; !strings.Contains(image, want) {
			t.Errorf("the Dockerfile has no line %q", want)
		}
	}
}

// TestFuzzWithoutGit: make finds the fuzz tests of a tarball's tree, and only those.
func TestFuzzWithoutGit(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"Makefile", "spank", "mpi", "slurm"} {
		here, err := filepath.Abs(name)
		if err == nil {
			err = os.Symlink(here, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"a/b/c_test.go": "func FuzzFirst(f *testing.F) {}\nfunc FuzzSecond(f *testing.F) {}\n",
		"d/e_test.go":   "func TestNone(t *testing.T) {}\n", "build/f_test.go": "func FuzzOld(f *testing.F) {}\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// It builds programs that do nothing.
	played := "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ $1 != -o ] || cp /bin/true $2; shift; done\n"
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(played), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", "-s", "fuzz", "GO="+filepath.Join(dir, "go"), "BUILD=build")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=0") // not the test runner's
	out, err := cmd.CombinedOutput()
	if got := string(out); err != nil || got != "a/b FuzzFirst\na/b FuzzSecond\n" {
		t.Errorf("make fuzz: %v, %q", err, got)
	}
}
