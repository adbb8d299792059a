package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRootAttach: others see a step's output, hold up no other client, and find what was
// kept.
func TestRootAttach(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "ReplayBytes=65536\n", Slurm: "KillWait=1\n"})
	// Each rank writes a line, waits for the file, and writes another.
	go2 := filepath.Join(n.wd, "go")
	talk := n.userFile(t, "talk", `#!/bin/sh
echo begin $SLURM_PROCID; echo oops >&2
while [ ! -e "$1" ]; do sleep 0.05; done
echo end $SLURM_PROCID; exit $SLURM_PROCID`, 0o755)

	t.Run("labelled", func(t *testing.T) {
		run := n.start(t, call{args: []string{"run", "-l", "-n", "2", "-O", talk, go2}})
		id := n.running(t).id()
		watch := n.start(t, call{args: []string{"attach", "-l", id}})
		stopped := n.start(t, call{args: []string{"attach", id}})
		connected(t, watch, stopped)
		must(t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
		refused(t, "another user's attach", n.do(t, call{args: []string{"attach", id}, uid: bob.uid}), "permission denied")
		must(t, os.WriteFile(go2, nil, 0o644))
		want := []string{"0: begin 0", "0: end 0", "1: begin 1", "1: end 1"}
		for name, r := range map[string]result{"run": run.wait(t), "attach": watch.wait(t)} {
			if got := sortedLines(r.out); fmt.Sprint(got) != fmt.Sprint(want) || r.code != 1 || strings.Count(r.err, ": oops\n") != 2 {
				t.Errorf("%s: %v, want %q", name, r, want)
			}
		}
		// The client that is stopped has held up neither.
		must(t, stopped.cmd.Process.Signal(syscall.SIGCONT))
		stopped.wait(t)
		if r := n.ctl(t, "output", "-l", id); fmt.Sprint(sortedLines(r.out)) != fmt.Sprint(want) || r.code != 0 {
			t.Errorf("output after the end: %v", r)
		}
		refused(t, "another user's output", n.do(t, call{args: []string{"output", id}, uid: bob.uid}), "permission denied")
		must(t, os.Remove(go2))
	})
	t.Run("a launcher that is killed", func(t *testing.T) {
		run := n.start(t, call{args: []string{"run", "-l", "-n", "1", talk, go2}})
		id := n.running(t).id()
		eventually(t, callTimeout, "the task's words", func() error {
			if r := n.ctl(t, "output", id); r.out != "begin 0\n" || r.err != "oops\n" {
				return errors.New(r.String())
			}
			return nil
		})
		watch := n.start(t, call{args: []string{"attach", "--replay", "none", id}})
		connected(t, watch)
		must(t, run.cmd.Process.Kill())
		run.wait(t)
		must(t, os.WriteFile(go2, nil, 0o644))
		// Watching clients change nothing for the task: its pipe has no reader any more,
		// of which it hears with the next write after this one.
		if r := watch.wait(t); r.out != "" {
			t.Errorf("who watches has %v", r)
		}
		if r := n.ctl(t, "output", id); r.out != "begin 0\n" {
			t.Errorf("kept is %v", r)
		}
		must(t, os.Remove(go2))
	})
	t.Run("more than is kept", func(t *testing.T) {
		r := n.ctl(t, "run", "-l", "-n", "1", "sh", "-c", "seq 100000")
		id := n.last(t).id()
		kept := n.ctl(t, "output", id)
		if r.code != 0 || !strings.HasSuffix(kept.out, "\n99999\n100000\n") || len(kept.out) > 65536 || !strings.Contains(kept.err, "bytes are not kept") {
			t.Errorf("%d bytes, %q, code %d", len(kept.out), kept.err, kept.code)
		}
	})
	t.Run("a reader that leaves", func(t *testing.T) {
		run := n.start(t, call{args: []string{"run", "-l", "-n", "1", "sh", "-c", "while [ ! -e go ]; do echo more || exit; sleep 0.02; done"}})
		id := n.running(t).id()
		r := n.do(t, call{program: "/bin/bash", args: []string{"-c", n.bin + " attach " + id + " | head -1; exit ${PIPESTATUS[0]}"}})
		if r.out != "more\n" || r.code != 141 || r.err != "" {
			t.Errorf("attach | head -1: %v", r)
		}
		must(t, os.WriteFile(go2, nil, 0o644))
		if r := run.wait(t); r.code != 0 {
			t.Errorf("run: %v", r)
		}
		must(t, os.Remove(go2))
	})
	t.Run("a reader that is slow", func(t *testing.T) {
		never, hold, err := os.Pipe()
		must(t, err)
		defer never.Close()
		said, err := os.CreateTemp(t.TempDir(), "said")
		must(t, err)
		defer said.Close()
		run := n.start(t, call{args: []string{"run", "-l", "-n", "1", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; seq 200000"}})
		id := n.running(t).id()
		watch := n.start(t, call{args: []string{"attach", id}, files: []*os.File{said, hold, said}})
		hold.Close()
		connected(t, watch)
		must(t, os.WriteFile(go2, nil, 0o644))
		run.wait(t)
		b, err := io.ReadAll(never)
		must(t, err)
		watch.wait(t)
		words, err := os.ReadFile(said.Name())
		must(t, err)
		// Gaps in the middle may be there as well, in few lines, or alone: what follows a long
		// one may find room in the pipe. What the last write had under way when stepctl gave
		// up may have come after its words.
		told := strings.Contains(string(words), "the rest of the output is missing") || strings.Contains(string(words), "bytes of output were skipped here")
		if strings.Count(string(b), "\n") == 200000 || !told || strings.Count(string(words), "\n") > 8 {
			t.Errorf("%d bytes came, up to %q, and it says %q", len(b), tail(string(b), 1), words)
		}
		must(t, os.Remove(go2))
	})
	t.Run("files", func(t *testing.T) {
		file := filepath.Join(n.wd, "f.%t")
		n.ctl(t, "run", "-n", "2", "-O", "-o", file, "sh", "-c", "echo in a file")
		id := n.last(t).id()
		if r := n.ctl(t, "output", "-l", id); r.out != "0: in a file\n1: in a file\n" || r.code != 0 {
			t.Errorf("output of files: %v", r)
		}
		refused(t, "files of another user's", n.do(t, call{args: []string{"output", id}, uid: bob.uid}), "permission denied")
		must(t, os.Remove(filepath.Join(n.wd, "f.1")))
		must(t, syscall.Mkfifo(filepath.Join(n.wd, "f.1"), 0o666))
		refused(t, "a FIFO in its place", n.ctl(t, "output", id), "no regular file")
	})
	t.Run("files that root reads", func(t *testing.T) {
		file, secret := filepath.Join(n.wd, "g.%t"), filepath.Join(t.TempDir(), "secret")
		must(t, os.WriteFile(secret, []byte("SECRET"), 0o600))
		n.ctl(t, "run", "-n", "2", "-O", "-o", file, "sh", "-c", `umask 77; printf 'own %s\033[6n\n' $SLURM_PROCID`)
		id := n.last(t).id()
		if r := n.ctlRoot(t, "output", id); r.out != "own 0\x1b[6n\nown 1\x1b[6n\n" || r.code != 0 {
			t.Errorf("output of files, by root: %v", r)
		}
		must(t, os.Remove(filepath.Join(n.wd, "g.1")))
		for path, why := range map[string]string{secret: "permission denied", "/dev/ptmx": "no regular file"} {
			must(t, os.Symlink(path, filepath.Join(n.wd, "g.1")))
			r := n.ctlRoot(t, "output", id)
			if r.code != 1 || strings.Contains(r.out, "SECRET") || !strings.Contains(r.out, "own 0") || !strings.Contains(r.err, why) {
				t.Errorf("root's output with a link to %s: %v, want %q", path, r, why)
			}
			must(t, os.Remove(filepath.Join(n.wd, "g.1")))
		}
	})
	t.Run("a terminal of another", func(t *testing.T) {
		n.ctl(t, "run", "-l", "-n", "1", "printf", `asked \033[6n\302\2331m\n`)
		id := n.last(t).id()
		for _, c := range []struct {
			root bool
			args []string
			want string
		}{
			{true, []string{"output", id}, "asked ^[[6n<U+009B>1m\r\n"},
			{true, []string{"output", "--raw", id}, "asked \x1b[6n\u009b1m\r\n"},
			{false, []string{"output", id}, "asked \x1b[6n\u009b1m\r\n"},
		} {
			s := openTerminal(t, 24, 80)
			s.ctl(n, call{args: c.args, root: c.root})
			s.sees(c.want)
			s.ends(0)
		}
		s := openTerminal(t, 24, 80)
		id = s.inTerminal(n, "sh", "-c", `stty -echo; printf 'ask\033[31med\n'; read x; read x`)
		s.sees("ask\x1b[31med\r\n")
		root := openTerminal(t, 24, 80)
		root.ctl(n, call{args: []string{"attach", id}, root: true})
		root.sees("another user's")
		root.sees("ask^[[31med\r\n")
		root.types("\n")
		s.types("\n")
		root.ends(0)
		s.ends(0)
	})
	t.Run("what goes elsewhere", func(t *testing.T) {
		run := n.start(t, call{args: []string{"run", "-o", filepath.Join(n.wd, "own"), talk, go2}})
		id := n.running(t).id()
		refused(t, "attach", n.ctl(t, "attach", id), "RUNNING", filepath.Join(n.wd, "own"))
		must(t, os.WriteFile(go2, nil, 0o644))
		run.wait(t)
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		must(t, err)
		defer null.Close()
		n.do(t, call{args: []string{"run", "true"}, files: []*os.File{null, null, null}})
		refused(t, "output", n.ctl(t, "output", n.last(t).id()), "nothing is kept", "/dev/null")
	})
}

// connected waits until clients of attach have their end of the output: an eighth
// descriptor, and a socket that is no stream.
func connected(t *testing.T, clients ...*process) {
	t.Helper()
	for _, p := range clients {
		eventually(t, callTimeout, "a connection", func() error {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", p.cmd.Process.Pid))
			must(t, err)
			pairs := 0
			fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
			must(t, err)
			for _, fd := range fds {
				link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.cmd.Process.Pid, fd.Name()))
				inode, ok := strings.CutPrefix(link, "socket:[")
				if err != nil || !ok {
					continue
				}
				for line := range strings.Lines(string(b)) {
					// Type 5 is SOCK_SEQPACKET: the step's socket, and the output's.
					if f := strings.Fields(line); len(f) >= 7 && f[6] == strings.TrimSuffix(inode, "]") && f[4] == "0005" {
						pairs++
					}
				}
			}
			if pairs < 2 {
				return fmt.Errorf("%d sockets to the step", pairs)
			}
			return nil
		})
	}
}
