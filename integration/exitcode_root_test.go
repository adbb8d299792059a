package integration

import (
	"bytes"
	"debug/elf"
	little "encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestRootExitCodes holds stepctl run's exit code and its messages against
// those recorded of srun.
func TestRootExitCodes(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	sh := func(script string, flags ...string) []string {
		return append(append([]string{"run"}, flags...), "--", "sh", "-c", script)
	}
	signals := []struct {
		number int
		text   string
	}{
		{1, "Hangup"}, {2, "Interrupt"}, {3, "Quit"}, {4, "Illegal instruction"}, {6, "Aborted"}, {8, "Floating point exception"},
		{9, "Killed"}, {10, "User defined signal 1"}, {11, "Segmentation fault"}, {13, "Broken pipe"}, {14, "Alarm clock"}, {15, "Terminated"},
	}
	type row struct {
		name  string
		args  []string
		code  int
		tasks []string // what is said of tasks, one by one
	}
	rows := []row{
		{"success", sh("exit 0"), 0, nil},
		{"highest code wins", sh("exit $SLURM_PROCID", "-n", "3"), 2, []string{"1: Exited with exit code 1", "2: Exited with exit code 2"}},
		{"a signal is above a code", sh("test $SLURM_PROCID = 1 && kill -9 $$; exit 3", "-n", "3"), 137,
			[]string{"0: Exited with exit code 3", "1: Killed", "2: Exited with exit code 3"}},
		{"others succeed", sh("test $SLURM_PROCID = 1 && kill -9 $$; exit 0", "-n", "3"), 137, []string{"1: Killed"}},
		{"no kill without -K", sh("test $SLURM_PROCID = 1 && exit 4; sleep 0.3", "-n", "3"), 4, []string{"1: Exited with exit code 4"}},
		{"kill on bad exit", sh("test $SLURM_PROCID = 1 && exit 4; exec sleep 20", "-n", "3", "-K"), 143,
			[]string{"0: Terminated", "1: Exited with exit code 4", "2: Terminated"}},
		{"kill on bad exit off", sh("test $SLURM_PROCID = 1 && exit 4; sleep 0.3", "-n", "3", "--kill-on-bad-exit=0"), 4,
			[]string{"1: Exited with exit code 4"}},
		{"a code beyond 255", sh("exit 300"), 44, []string{"0: Exited with exit code 44"}},
		{"253 stays 253", sh("exit 253"), 253, []string{"0: Exited with exit code 253"}},
	}
	for _, s := range signals {
		rows = append(rows, row{"signal " + s.text, sh(fmt.Sprintf("ulimit -c 0; kill -%d $$", s.number)), 128 + s.number, []string{"0: " + s.text}})
	}
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			r := n.ctl(t, c.args...)
			if r.code != c.code || r.out != "" {
				t.Errorf("want exit code %d and no output, got %v", c.code, r)
			}
			if got := taskLines(r.err); !slices.Equal(got, c.tasks) {
				t.Errorf("task messages: got %q, want %q (stderr %q)", got, c.tasks, r.err)
			}
			onlyOurLines(t, r)
		})
	}
}

// taskLines takes "stepctl: error: vm: tasks 0,2: Killed" apart, one line a
// task, sorted: which tasks share a line depends on when they end.
func taskLines(stderr string) []string {
	var lines []string
	for _, line := range strings.Split(stderr, "\n") {
		rest, ok := strings.CutPrefix(line, "stepctl: error: vm: task")
		if !ok {
			continue
		}
		ranks, text, ok := strings.Cut(strings.TrimLeft(strings.TrimPrefix(rest, "s"), " "), ": ")
		if !ok {
			continue
		}
		for _, part := range strings.Split(ranks, ",") {
			var from, to int
			if k, _ := fmt.Sscanf(part, "%d-%d", &from, &to); k == 1 {
				to = from
			}
			for rank := from; rank <= to; rank++ {
				lines = append(lines, fmt.Sprintf("%d: %s", rank, text))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// onlyOurLines checks that every line on stderr says where it comes from.
func onlyOurLines(t *testing.T, r result) {
	t.Helper()
	for _, line := range strings.Split(strings.TrimSuffix(r.err, "\n"), "\n") {
		if line != "" && !strings.HasPrefix(line, "stepctl: ") && !strings.HasPrefix(line, "stepd-vm: ") {
			t.Errorf("stderr line %q begins neither with \"stepctl: \" nor with \"stepd-vm: \"", line)
		}
	}
}

// TestRootExecFailures: what cannot be executed ends its task with the errno
// as exit code, and the node says why.
func TestRootExecFailures(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	noexec := n.userFile(t, "noexec", "#!/bin/sh\n", 0o644)
	badfmt := n.userFile(t, "badfmt", "this is no program\n", 0o755)
	badinterp := n.userFile(t, "badinterp", "#!/no/such/interp\n", 0o755)
	empty := n.userFile(t, "empty", "", 0o755)
	noloader := n.userFile(t, "noloader", "", 0o755)
	must(t, os.WriteFile(noloader, elfWithoutLoader(t), 0o755))
	closed, mounted := badPlaces(t, n)
	dos := n.userFile(t, "dos", "#!/bin/sh\r\n", 0o755)
	foreign := n.userFile(t, "foreign", "", 0o755)
	must(t, os.WriteFile(foreign, elfOfMachine(t, elf.EM_S390), 0o755))
	dangling := n.path("wd", "dangling")
	must(t, os.Symlink("/no/such/target", dangling))
	for _, c := range []struct {
		name    string
		argv    []string
		ntasks  string
		code    int
		message string
		why     string // what explain says of it; in the message, too, but for what that says already
	}{
		{"no such path", []string{"/no/such/program"}, "1", 2, "execve(): /no/such/program: No such file or directory", "the directory \"/no\" does not exist"},
		{"not in PATH", []string{"nosuchprogram"}, "2", 2, "execve(): nosuchprogram: No such file or directory", "no directory of PATH has it: /"},
		{"not executable", []string{noexec}, "1", 13, "execve(): " + noexec + ": Permission denied", "has mode 0644: no user may execute it"},
		{"no format", []string{badfmt}, "1", 8, "execve(): " + badfmt + ": Exec format error", "its first line does not begin with #!"},
		{"empty file", []string{empty}, "1", 8, "execve(): " + empty + ": Exec format error", "is empty"},
		{"bad interpreter", []string{badinterp}, "1", 2, "bad interpreter(/no/such/interp): No such file or directory", "the interpreter (#!) of \"" + badinterp + "\": the directory \"/no\" does not exist"},
		{"missing loader", []string{noloader}, "1", 2, noloader, "the loader (PT_INTERP) of"},
		{"a directory", []string{n.wd}, "1", 13, "execve(): " + n.wd + ": Permission denied", "is a directory"},
		{"a relative path", []string{"./nosuch"}, "1", 2, "nosuch: No such file or directory", ""},
		{"a file as directory", []string{noexec + "/x"}, "1", 20, "Not a directory", noexec + "\" is no directory"},
		{"a closed directory", []string{closed + "/x"}, "1", 13, "Permission denied", "the directory \"" + closed + "\" has mode 0700 and belongs to 0:0: user 7001 may not enter it"},
		{"a noexec mount", []string{mounted + "/x"}, "1", 13, "Permission denied", "is on a file system that is mounted noexec, at \"" + mounted + "\""},
		{"a link to nowhere", []string{dangling}, "1", 2, "No such file or directory", "is a link to \"/no/such/target\", which does not exist"},
		{"the line ends of DOS", []string{dos}, "1", 2, "No such file or directory", "ends with a carriage return"},
		{"another machine", []string{foreign}, "1", 8, "Exec format error", "is a program"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.ctl(t, append([]string{"run", "-n", c.ntasks, "--"}, c.argv...)...)
			if r.code != c.code || r.out != "" {
				t.Errorf("want exit code %d, got %v", c.code, r)
			}
			contains(t, "stderr", r.err, "stepd-vm: error: ", c.message, fmt.Sprintf("Exited with exit code %d", c.code))
			onlyOurLines(t, r)
			step := n.lastEnded(t)
			if step.State != "FAILED" || len(step.Tasks) == 0 || step.Tasks[0].State != "FAILED" || step.Tasks[0].Errno != c.code {
				t.Errorf("want state FAILED and a task FAILED with errno %d, got %+v", c.code, step)
			}
			if c.why != "" {
				contains(t, "stderr", r.err, c.why)
				if r := n.ctl(t, "explain", step.id()); r.code != 0 || !strings.Contains(r.out, c.why) {
					t.Errorf("explain: want %q in %v", c.why, r)
				}
			}
		})
	}
}

// elfWithoutLoader is /bin/true with an interpreter that does not exist.
func elfWithoutLoader(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("/bin/true")
	must(t, err)
	const loader = "/lib64/ld-linux-x86-64.so.2"
	i := strings.Index(string(b), loader)
	if i < 0 {
		missing(t, "no /lib64/ld-linux-x86-64.so.2 in /bin/true")
	}
	copy(b[i:], "/nolib")
	return b
}

// TestRootWorkingDirectory: a directory that the task cannot enter does not
// stop it; it runs in /tmp and is told so.
func TestRootWorkingDirectory(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	closed := n.path("closed")
	must(t, os.Mkdir(closed, 0o700))
	gone := n.path("wd", "gone")
	must(t, os.Mkdir(gone, 0o755))
	for _, c := range []struct {
		name, dir, says string
	}{
		{"no such directory", "/no/such/dir", "couldn't chdir to `/no/such/dir': No such file or directory: going to /tmp instead"},
		{"not allowed", closed, "couldn't chdir to `" + closed + "': Permission denied: going to /tmp instead"},
		{"a file", "/etc/passwd", "couldn't chdir to `/etc/passwd': Not a directory: going to /tmp instead"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.ctl(t, "run", "-D", c.dir, "pwd")
			if r.code != 0 || r.out != "/tmp\n" {
				t.Errorf("want 0 and /tmp, got %v", r)
			}
			contains(t, "stderr", r.err, "stepd-vm: error: "+c.says)
		})
	}
	t.Run("the caller's own is gone", func(t *testing.T) {
		// The shell removes the directory it stands in, then runs stepctl there.
		user := n.userFile(t, "gone.sh", "rmdir \"$PWD\" && exec "+n.bin+" run pwd\n", 0o755)
		p := n.shell(t, gone, user)
		if p.code != 0 || p.out != "/tmp\n" {
			if p.code != 1 || !strings.Contains(p.err, "stepctl: ") {
				t.Errorf("want /tmp, or a refusal that begins with \"stepctl: \", got %v", p)
			}
		}
	})
	t.Run("the caller's is the default", func(t *testing.T) {
		if r := n.do(t, call{args: []string{"run", "pwd"}, dir: "/usr/lib"}); r.out != "/usr/lib\n" {
			t.Errorf("want /usr/lib, got %v", r)
		}
	})
	t.Run("-D is used", func(t *testing.T) {
		if r := n.ctl(t, "run", "--chdir=/usr", "pwd"); r.out != "/usr\n" || r.err != "" {
			t.Errorf("want /usr, got %v", r)
		}
	})
}

// badPlaces are a directory that only root may enter, and one that is mounted
// noexec, with a program in it.
func badPlaces(t *testing.T, n *node) (closed, noexec string) {
	closed, noexec = n.path("closed"), n.path("noexecmount")
	must(t, os.Mkdir(closed, 0o700))
	must(t, os.Mkdir(noexec, 0o755))
	must(t, syscall.Mount("none", noexec, "tmpfs", syscall.MS_NOEXEC, "mode=755"))
	t.Cleanup(func() { must(t, syscall.Unmount(noexec, 0)) })
	must(t, os.WriteFile(filepath.Join(noexec, "x"), []byte("#!/bin/sh\n"), 0o755))
	must(t, os.Chmod(filepath.Join(noexec, "x"), 0o755)) // whatever our umask is
	return closed, noexec
}

// elfOfMachine is the head of a program for another machine.
func elfOfMachine(t *testing.T, machine elf.Machine) []byte {
	head := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 64}
	copy(head.Ident[:], elf.ELFMAG)
	head.Ident[elf.EI_CLASS], head.Ident[elf.EI_DATA], head.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	var b bytes.Buffer
	must(t, little.Write(&b, little.LittleEndian, head))
	return b.Bytes()
}

// TestRootTaskStates: while a step runs, ps and show say which tasks have exec'd, and which
// could not be.
func TestRootTaskStates(t *testing.T) {
	t.Parallel()
	n := startNode(t, site{})
	must(t, os.WriteFile(filepath.Join(n.wd, "apps"), []byte("0-1,3 sleep 1000\n2 /nonexistent\n"), 0o644))
	p := n.start(t, call{args: []string{"run", "-n4", "--overcommit", "-J", "states", "--multi-prog", "apps"}})
	id := n.runs(t, "states").id()
	want := []string{"RUNNING", "RUNNING", "FAILED", "RUNNING"}
	for what, doc := range map[string]func() stepDoc{
		"ps":   func() stepDoc { return n.ps(t)[0] },
		"show": func() stepDoc { return n.show(t, id) },
	} {
		eventually(t, callTimeout, what+" to have the tasks' states", func() error {
			for rank, task := range doc().Tasks {
				if task.State != want[rank] || rank == 2 && (task.Stage != "exec" || task.Errno != int(syscall.ENOENT)) {
					return fmt.Errorf("task %d is %+v, want %s", rank, task, want[rank])
				}
			}
			return nil
		})
	}
	ok(t, "cancel", n.ctl(t, "cancel", id))
	p.wait(t)
	n.checkClean(t)
}
