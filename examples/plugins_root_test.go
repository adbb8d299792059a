// Package examples has tests alone: the examples are in C. Here the plugins run
// under a driver that calls the hooks as a step does, built with the project's
// header and with Slurm's own where it is installed.
package examples

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"stepd/internal/testkit"
)

// build is one compiled set: the plugins and the driver.
type build struct {
	dir string
}

// eachHeader runs f with the plugins built against each header there is.
func eachHeader(t *testing.T, f func(t *testing.T, b build)) {
	testkit.RequireRoot(t)
	headers := map[string]string{"ours": "../spank/host/include"}
	if _, err := os.Stat("/usr/include/slurm/spank.h"); err == nil {
		headers["slurm"] = "/usr/include"
	}
	for name, include := range headers {
		include, err := filepath.Abs(include)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			run(t, "make", "-s", "-C", "plugins", "INCLUDE="+include, "OUT="+dir, "CFLAGS=-O1 -g -Wall -Wextra -Werror")
			run(t, "cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-I"+include,
				"testdata/driver.c", "-o", dir+"/driver", "-ldl")
			f(t, build{dir})
		})
	}
}

// tempDir is a directory of root's that users can pass through.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "plugins-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// step plays one step and returns the task's output, or its own complaint, and
// the exit code.
func (b build) step(t *testing.T, plugin, context, option, command string, args ...string) (string, int) {
	t.Helper()
	argv := append([]string{filepath.Join(b.dir, plugin), context, option, "7001", command}, args...)
	cmd := exec.Command(filepath.Join(b.dir, "driver"), argv...)
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(out), "\n"), cmd.ProcessState.ExitCode()
}

func TestRootNice(t *testing.T) {
	eachHeader(t, func(t *testing.T, b build) {
		tests := []struct {
			name, option string
			args         []string
			want         string
			code         int
		}{
			{"nothing asked", "-", nil, "0", 0},
			{"argument", "-", []string{"nice=7"}, "7", 0},
			{"urgent, from root", "-", []string{"nice=-5"}, "-5", 0},
			{"option", "12", nil, "12", 0},
			{"option over argument", "3", []string{"nice=7"}, "3", 0},
			{"option 0 over argument", "0", []string{"nice=7"}, "0", 0},
			{"urgent, from a user", "-5", nil, "nice: --nice-task=-5: want a number from 0 to 19", 11},
			{"too large", "20", nil, "nice: --nice-task=20: want a number from 0 to 19", 11},
			{"not a number", "5x", nil, "nice: --nice-task=5x: want a number from 0 to 19", 11},
			{"beyond a long", "99999999999999999999", nil, "nice: --nice-task=99999999999999999999: want a number from 0 to 19", 11},
			{"empty argument", "-", []string{"nice="}, "nice: nice=: want a number from -20 to 19", 10},
			{"unknown argument", "-", []string{"prio=7"}, "nice: prio=7: unknown argument, want nice=N", 10},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				out, code := b.step(t, "nice.so", "remote", tt.option, "nice", tt.args...)
				if out != tt.want || code != tt.code {
					t.Errorf("got %q and code %d, want %q and %d", out, code, tt.want, tt.code)
				}
			})
		}
	})
}

func TestRootPrivdir(t *testing.T) {
	eachHeader(t, func(t *testing.T, b build) {
		base, target := tempDir(t), tempDir(t)
		if err := os.WriteFile(target+"/of-the-node", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		before := mounts(t, base, target)
		args := []string{"base=" + base, "target=" + target}
		script := "cd " + target + ` && ls -A && stat -c '%a %u %g' . && mkdir -p a/b && ln -s ` + target + ` link && touch ./-rf "a/b
c" && chmod 0 a/b && grep -c ' ` + target + ` .*nosuid,nodev' /proc/self/mountinfo; ls ` + base
		out, code := b.step(t, "privdir.so", "remote", "-", script, args...)
		if want := "700 7001 7001\n1\n4711.3"; out != want || code != 0 {
			t.Errorf("the task says %q with code %d, want %q", out, code, want)
		}
		empty(t, base)
		if _, err := os.Stat(target + "/of-the-node"); err != nil {
			t.Error(err)
		}
		if after := mounts(t, base, target); after != before {
			t.Errorf("mounts of the node before:\n%s\nafter:\n%s", before, after)
		}
		if out, code := b.step(t, "privdir.so", "local", "-", "true"); out != "" || code != 0 {
			t.Errorf("in the client: %q, code %d", out, code)
		}
	})
}

func TestRootPrivdirRefuses(t *testing.T) {
	eachHeader(t, func(t *testing.T, b build) {
		top := tempDir(t)
		for _, d := range []string{"base", "open", "theirs", "target", "used/4711.3"} {
			if err := os.MkdirAll(filepath.Join(top, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Chmod(top+"/open", 0o777), os.Chown(top+"/theirs", 7001, 7001),
			os.Symlink("base", top+"/link"), os.Symlink("target", top+"/tlink"),
			os.WriteFile(top+"/used/4711.3/keep", nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		tests := []struct{ name, base, target, want string }{
			{"base that others can write", "open", "target", "no other user may write"},
			{"base of a user", "theirs", "target", "must belong to root"},
			{"base through a link", "link", "target", "cannot open base="},
			{"no base", "none", "target", "No such file"},
			{"no target", "base", "none", "No such file"},
			{"target through a link", "base", "tlink", "cannot open target="},
			{"base in target", "base", "", "which covers it"},
			{"base is target", "base", "base", "which covers it"},
			{"dots", "base/../base", "target", "absolute paths"},
			{"directory that is there", "used", "target", "File exists"},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				out, code := b.step(t, "privdir.so", "remote", "-", "echo ran",
					"base="+top+"/"+tt.base, "target="+strings.TrimSuffix(top+"/"+tt.target, "/"))
				if !strings.Contains(out, tt.want) || strings.Contains(out, "ran") || code != 12 {
					t.Errorf("got %q and code %d, want %q and 12", out, code, tt.want)
				}
				empty(t, top+"/base")
			})
		}
		if _, err := os.Stat(top + "/used/4711.3/keep"); err != nil {
			t.Error("a directory that was not made here was removed")
		}
	})
}

func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left in %s: %v", dir, left)
	}
}

// mounts lists the node's mounts that have to do with one of the directories.
func mounts(t *testing.T, dirs ...string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found strings.Builder
	for line := range strings.Lines(string(b)) {
		for _, dir := range dirs {
			if strings.Contains(line, dir) {
				found.WriteString(line)
			}
		}
	}
	return found.String()
}
