package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRootReadme runs every command of README.md: the commands of its blocks, in their
// order, and the ones that its text and tables name.
func TestRootReadme(t *testing.T) {
	n := startNode(t, site{})
	// "stepctl alloc … stepctl run" finds the second stepctl by its PATH.
	path := "PATH=" + filepath.Dir(n.bin) + ":/usr/local/bin:/usr/bin:/bin"
	n.userFile(t, "my_program", "#!/bin/sh\necho rank $SLURM_PROCID\n", 0o755)
	n.userFile(t, "job.sh", "#!/bin/sh\nstepctl run hostname\n", 0o755)
	mpi := "../build/examples/cpi"
	if _, err := os.Stat(mpi); err != nil {
		missing(t, "the example MPI programs are not built: run make examples")
	}
	n.userFile(t, "my_mpi_program", readFile(t, mpi), 0o755)

	readme := readFile(t, "../README.md")
	fence := regexp.MustCompile("(?ms)^```.*?^```$") // holds output beside commands
	text := fence.ReplaceAllString(readme, "")
	blocks, err := consoleBlocks(readme)
	must(t, err)
	var commands []string
	for _, b := range blocks {
		for _, c := range b.commands {
			if b.norun != "a part of what make demo prints" {
				command, _, _ := strings.Cut(c.text, "  #")
				commands = append(commands, strings.TrimSpace(command))
			}
		}
	}
	if len(commands) < 10 {
		t.Fatalf("README.md has %d commands in its blocks: %q", len(commands), commands)
	}
	for _, command := range commands {
		t.Run(command, func(t *testing.T) {
			var c call
			words := strings.Fields(command)
			switch words[0] {
			case "make":
				makes(t, words[1:])
				return
			case "systemctl":
				unit := "../packaging/" + words[len(words)-1] + ".service"
				if _, err := os.Stat(unit); err != nil {
					t.Error(err)
				}
				return
			case "bin/stepctl": // by root, where no noded runs
				c = call{root: true, args: append(words[1:2:2], append([]string{"--standalone"}, words[2:]...)...), env: []string{"NODED_SOCKET=", "SLURM_CONF=", path}}
			case "stepctl":
				c = call{args: words[1:], env: []string{path}}
			default:
				t.Fatalf("%q is no command that this test knows", command)
			}
			if r := n.do(t, c); r.code != 0 {
				t.Errorf("%s: %v", command, r)
			}
		})
	}

	// The commands that a sentence or a table names.
	spans := regexp.MustCompile("`(stepctl|make) ([^`]+)`").FindAllStringSubmatch(text, -1)
	if len(spans) < 10 {
		t.Errorf("README.md names %d commands: %q", len(spans), spans)
	}
	for _, m := range spans {
		t.Run(m[1]+" "+m[2], func(t *testing.T) {
			words := strings.Fields(m[2])
			if m[1] == "make" {
				makes(t, words)
			} else if r := n.ctl(t, append(words, "--help")...); r.code != 0 {
				t.Error(r)
			}
		})
	}

	// The commands of the screen of output, as far as they are not the blocks'.
	for _, m := range regexp.MustCompile(`(?m)^\$ stepctl (\w+)`).FindAllStringSubmatch(readme, -1) {
		if r := n.ctl(t, m[1], "--help"); r.code != 0 {
			t.Errorf("%s: %v", m[0], r)
		}
	}
}

// makes holds that the Makefile has these targets.
func makes(t *testing.T, args []string) {
	t.Helper()
	cmd := exec.Command("make", append([]string{"-n", "-C", ".."}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("make %q: %v\n%s", args, err, tail(string(out), 400))
	}
}
