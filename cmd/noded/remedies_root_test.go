package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

// sick is a node of which noded --check finds something.
type sick struct {
	t   *testing.T
	dir string
}

func (s *sick) path(names ...string) string {
	return filepath.Join(append([]string{s.dir}, names...)...)
}

func (s *sick) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// conf writes one of the site's files.
func (s *sick) conf(name, text string) {
	s.t.Helper()
	write(s.t, s.path(name), text)
}

// check is what noded --check says, without what is in order or is this machine's own.
func (s *sick) check() (lines []string, code int) {
	s.t.Helper()
	var out, words bytes.Buffer
	cmd := exec.Command(s.path("bin", "noded"), "-f", s.path("slurm.conf"), "--run-dir", s.path("run"), "--spool-dir", s.path("spool"), "--check")
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	_, found, _ := strings.Cut(out.String(), "\n\n") // behind the headline
	for line := range strings.Lines(strings.ReplaceAll(found, "\n  ", " ")) {
		about, _, _ := strings.Cut(strings.TrimPrefix(line, "warning: "), ":")
		if strings.HasPrefix(line, "ok: ") || about == "limits" || about == "systemd" || about == "cgroups" {
			continue
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines, cmd.ProcessState.ExitCode()
}

// newSick makes a node in which all is well.
func newSick(t *testing.T) *sick {
	t.Helper()
	testkit.RequireRoot(t)
	programs := os.Getenv("STEPD_BIN")
	if programs == "" {
		programs = "../../bin"
	}
	// Not below /tmp, where everybody may write and job containers have their own.
	dir, err := os.MkdirTemp("/var/lib", "stepd-check-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &sick{t, dir}
	s.must(os.Chmod(dir, 0o755))
	for _, name := range []string{"bin", "run", "spool", "base", "lib"} {
		s.must(os.Mkdir(s.path(name), 0o755))
	}
	for _, name := range []string{"noded", "stepd", "spankhost"} {
		if out, err := exec.Command("cp", filepath.Join(programs, name), s.path("bin")).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: run make first\n%s", err, out)
		}
	}
	s.write()
	return s
}

// write makes all files as they should be.
func (s *sick) write() {
	s.t.Helper()
	s.conf("slurm.conf", "NodeName=vm CPUs=1\nNodeName=other\nJobContainerType=job_container/tmpfs\nProlog="+s.path("prolog")+"\n")
	s.conf("job_container.conf", "BasePath="+s.path("base")+"\n")
	s.conf("plugstack.conf", "")
	s.conf("stepd.conf", "RequireSafePlugins=yes\n")
	s.conf("prolog", "#!/bin/sh\n")
	s.must(os.Chmod(s.path("prolog"), 0o755))
}

// fault is one of them.
type fault struct {
	name  string
	fault func()
	says  string // the finding
	mend  func() // as its remedy says; nil is that the remedy is a command
	fatal bool   // a mistake, not a warning
	after func()
}

func (s *sick) faults() []fault {
	mount := func(data string, flags uintptr) func() {
		return func() {
			s.must(unix.Mount("spool", s.path("spool"), "tmpfs", flags, "mode=0755,"+data))
		}
	}
	unmount := func() { s.must(unix.Unmount(s.path("spool"), 0)) }
	var used net.Listener
	return []fault{
		{name: "a spool that all may write in", fault: func() { s.must(os.Chmod(s.path("spool"), 0o777)) }, says: "error: spool: others than root may write", fatal: true},
		{name: "a spool of a user", fault: func() { s.must(os.Chown(s.path("spool"), 7001, 0)) }, says: "error: spool: \"" + s.path("spool") + "\" belongs to uid 7001", fatal: true},
		{name: "a run directory of a user", fault: func() { s.must(os.Chown(s.path("run"), 7001, 0)) }, says: "error: run directory: \"" + s.path("run") + "\" belongs to uid 7001", fatal: true},
		{
			name: "a spool that is a file", says: "is no directory; remove it", fatal: true,
			fault: func() { s.must(os.Remove(s.path("spool"))); s.conf("spool", "") },
			mend:  func() { s.must(os.Remove(s.path("spool"))) },
			after: func() { s.must(os.Mkdir(s.path("spool"), 0o755)) },
		},
		{name: "a program that a group may write", fault: func() { s.must(os.Chmod(s.path("bin", "stepd"), 0o775)) }, says: "warning: programs: "},
		{name: "a program of a user", fault: func() { s.must(os.Chown(s.path("bin", "spankhost"), 7001, 0)) }, says: "warning: programs: "},
		{
			name: "a program that is gone", says: "install the package anew", fatal: true,
			fault: func() { s.must(os.Rename(s.path("bin", "stepd"), s.path("away"))) },
			mend:  func() { s.must(os.Rename(s.path("away"), s.path("bin", "stepd"))) },
		},
		{name: "a BasePath that all may write in", fault: func() { s.must(os.Chmod(s.path("base"), 0o777)) }, says: "error: containers: ", fatal: true},
		{name: "a BasePath of a user", fault: func() { s.must(os.Chown(s.path("base"), 7001, 0)) }, says: "error: containers: ", fatal: true},
		{
			name: "a BasePath that is not there", says: "make it or set AutoBasePath=true", fatal: true,
			fault: func() { s.must(os.Remove(s.path("base"))) },
			mend:  func() { s.conf("job_container.conf", "AutoBasePath=true\nBasePath="+s.path("base")+"\n") },
			after: func() { s.must(os.Mkdir(s.path("base"), 0o755)) },
		},
		{
			name: "an InitScript of a user", says: "error: containers: cannot use \"" + s.path("init"), fatal: true,
			fault: func() {
				s.conf("job_container.conf", "BasePath="+s.path("base")+"\nInitScript="+s.path("init")+"\n")
				s.conf("init", "#!/bin/sh\n")
				s.must(os.Chown(s.path("init"), 7001, 0))
			},
		},
		{name: "a prolog that all may write", fault: func() { s.must(os.Chmod(s.path("prolog"), 0o757)) }, says: "error: scripts: cannot run prolog", fatal: true},
		{name: "a prolog of a user", fault: func() { s.must(os.Chown(s.path("prolog"), 7001, 0)) }, says: "error: scripts: cannot run prolog", fatal: true},
		{
			name: "a prolog that cannot be executed", says: "it is no executable file; install it with chmod 755", fatal: true,
			fault: func() { s.must(os.Chmod(s.path("prolog"), 0o644)) },
			mend:  func() { s.must(os.Chmod(s.path("prolog"), 0o755)) },
		},
		{
			name: "a file of the stack that all may write", says: "plugstack.conf", fatal: true,
			fault: func() { s.must(os.Chmod(s.path("plugstack.conf"), 0o666)) },
		},
		{
			name: "a file of the stack that users do not read", says: "may not be read by all users",
			fault: func() { s.must(os.Chmod(s.path("plugstack.conf"), 0o600)) },
		},
		{
			name: "a directory of the stack that users do not enter", says: "may not be entered by all users",
			fault: func() {
				s.conf("plugstack.conf", "include "+s.path("lib", "*.conf")+"\n")
				s.conf("lib/empty.conf", "")
				s.must(os.Chmod(s.path("lib"), 0o700))
			},
		},
		{
			name: "a plugin that is not there", says: "install it, or remove the line", fatal: true,
			fault: func() { s.conf("plugstack.conf", "required "+s.path("lib", "x.so")+"\n") },
			mend:  func() { s.conf("plugstack.conf", "") },
		},
		{
			name: "a program of the site's that is not there", says: "install it, or remove the key",
			fault: func() {
				s.conf("slurm.conf", "NodeName=vm CPUs=1\nNodeName=other\nUnkillableStepProgram="+s.path("gone")+"\n")
			},
			mend: func() { s.conf("gone", "#!/bin/sh\n"); s.must(os.Chmod(s.path("gone"), 0o755)) },
		},
		{
			name: "an address that is in use", says: "write another MetricsListen", fatal: true,
			fault: func() {
				var err error
				used, err = net.Listen("tcp", "127.0.0.1:0")
				s.must(err)
				s.conf("stepd.conf", "MetricsListen="+used.Addr().String()+"\n")
			},
			mend:  func() { s.conf("stepd.conf", "MetricsListen=unix\n") },
			after: func() { s.must(used.Close()) },
		},
		{
			name: "no PMIx", says: "install it, or write another MpiDefault",
			fault: func() { s.conf("slurm.conf", "NodeName=vm CPUs=1\nNodeName=other\nMpiDefault=pmix\n") },
			mend:  func() { s.conf("slurm.conf", "NodeName=vm CPUs=1\nNodeName=other\nMpiDefault=pmi2\n") },
		},
		{
			name: "a clock that was set back", says: "it was set back; set it",
			fault: func() {
				s.conf("spool/durable.journal", "")
				ahead := time.Now().Add(time.Hour)
				s.must(os.Chtimes(s.path("spool", "durable.journal"), ahead, ahead))
			},
			mend: func() { s.must(os.Chtimes(s.path("spool", "durable.journal"), time.Now(), time.Now())) },
		},
		{name: "a spool that is full", fault: mount("size=1m", 0), says: "error: disk: ", fatal: true, mend: func() { unmount(); mount("size=64m", 0)() }, after: unmount},
		{name: "a spool without room for files", fault: mount("nr_inodes=50", 0), says: "more files; remove files, or make it with more inodes", fatal: true, mend: func() { unmount(); mount("nr_inodes=5000", 0)() }, after: unmount},
		{name: "a spool that is read-only", fault: mount("size=64m", unix.MS_RDONLY), says: "mounted read-only; mount -o remount,rw", fatal: true, mend: func() { s.must(exec.Command("mount", "-o", "remount,rw", s.path("spool")).Run()) }, after: unmount},
	}
}

// TestRootRemedies: each fault is found and nothing else, its remedy is a command that mends
// it, or says what was done here, and then all is well.
func TestRootRemedies(t *testing.T) {
	s := newSick(t)
	// The clock of a test machine is kept by no daemon.
	const clock = "warning: clock: no daemon keeps it"
	findings := func() (lines []string, code int) {
		all, code := s.check()
		for _, line := range all {
			if !strings.HasPrefix(line, clock) {
				lines = append(lines, line)
			}
		}
		return lines, code
	}
	if lines, code := findings(); len(lines) > 0 || code != 0 {
		t.Fatalf("a node in which all is well: %d, %q", code, lines)
	}
	for _, c := range s.faults() {
		t.Run(c.name, func(t *testing.T) {
			s.t = t
			defer s.write()
			c.fault()
			lines, code := findings()
			if len(lines) == 0 || !strings.Contains(strings.Join(lines, "\n"), c.says) || (code != 0) != c.fatal {
				t.Fatalf("exit code %d, %q; want %q", code, lines, c.says)
			}
			if c.mend != nil {
				c.mend()
			} else {
				for _, line := range lines {
					s.follow(line)
				}
			}
			if lines, code := findings(); len(lines) > 0 || code != 0 {
				t.Errorf("after its remedy: %d, %q", code, lines)
			}
			if c.after != nil {
				c.after()
			}
		})
	}
}

// follow runs the command that a finding ends with.
func (s *sick) follow(line string) {
	s.t.Helper()
	i := max(strings.LastIndex(line, "chmod "), strings.LastIndex(line, "chown "))
	if j := strings.LastIndex(line, "chown "); j >= 0 && strings.Contains(line[j:], " && ") {
		i = j
	}
	if i < 0 {
		s.t.Fatalf("no command in %q", line)
	}
	command, _, _ := strings.Cut(line[i:], ", or ")
	command, _, _ = strings.Cut(command, " (")
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		s.t.Fatalf("%q: %v: %s", command, err, out)
	}
}
