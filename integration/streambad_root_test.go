package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRootStreamsBadInput: what cannot be opened or written is told with its path and
// its cause, and the node goes on.
func TestRootStreamsBadInput(t *testing.T) {
	n := startNode(t, site{})
	fifo := filepath.Join(n.wd, "fifo")
	must(t, unix.Mkfifo(fifo, 0o666))
	must(t, os.Chmod(fifo, 0o666))
	bobs := n.write(t, "bobs", "bob's\n")
	must(t, os.Chown(bobs, int(bob.uid), int(bob.gid)))
	must(t, os.Chmod(bobs, 0o644))
	full := n.smallDisk(t)
	sticky := n.plantedLink(t)
	for _, c := range []struct {
		name string
		args []string
		says string // on stderr; %s is the path
	}{
		{"a FIFO without a reader", []string{"-o", fifo}, `Could not open stdout file "` + fifo + `": No such device or address`},
		{"a FIFO without a reader, labelled", []string{"-l", "-o", fifo}, `cannot open stdout file "` + fifo + `": no such device or address`},
		{"a directory", []string{"-o", n.wd}, `Could not open stdout file "` + n.wd + `": Is a directory`},
		{"a directory, labelled", []string{"-l", "-e", n.wd}, `cannot open stderr file "` + n.wd + `": is a directory`},
		{"another user's file", []string{"-o", bobs}, `Could not open stdout file "` + bobs + `": Permission denied`},
		{"another user's file, labelled", []string{"-l", "-o", bobs}, `cannot open stdout file "` + bobs + `": permission denied`},
		{"another user's link to a file of one's own", []string{"-o", sticky}, `Could not open stdout file "` + sticky + `": Permission denied`},
		{"a pattern that leaves what one may", []string{"-n", "2", "-o", "/root/x.%t"}, `Could not open stdout file "/root/x.1": Permission denied`},
		{"a name that is too long", []string{"-o", strings.Repeat("d", 300)}, `File name too long`},
		{"stdin of a directory", []string{"-i", n.wd}, `cat: -: Is a directory`},
		{"a full disk", []string{"-o", full}, `No space left on device`},
		{"a full disk, labelled", []string{"-l", "-o", full}, `cannot write stdout "` + full + `": no space left on device`},
		{"no such rank", []string{"-n", "2", "-i", "2"}, `--input=2: there is no task 2: the step has 2`},
		{"no such mode", []string{"--open-mode=over"}, `--open-mode=over: want append or truncate`},
		{"no name", []string{"-o", ""}, `--output=: it is empty`},
	} {
		t.Run(c.name, func(t *testing.T) {
			program := []string{"cat"}
			if strings.HasPrefix(c.name, "a full disk") {
				program = []string{"cat", "/bin/bash"}
			}
			r := n.ctl(t, append(append([]string{"run", "-e", "all"}, c.args...), program...)...)
			if r.code == 0 || r.out != "" {
				t.Errorf("want a failure, got %v", r)
			}
			contains(t, "stderr", r.err, c.says)
		})
	}
	if b, err := os.ReadFile(filepath.Join(n.wd, "target")); err != nil || string(b) != "alice's\n" {
		t.Errorf("a file was written by another user's link: %q, %v", b, err)
	}
	n.closedStreams(t)
	n.serves(t)
	must(t, unix.Unmount(filepath.Dir(full), 0)) // checkClean sees all mounts
	n.checkClean(t)
}

// smallDisk is a file on a file system that is full.
func (n *node) smallDisk(t *testing.T) string {
	t.Helper()
	dir := n.path("small")
	must(t, os.Mkdir(dir, 0o777))
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=1777"))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) }) // where the test ends before
	return filepath.Join(dir, "out")
}

// plantedLink is a link that bob has made in a folder for all, to a file of alice's.
// The kernel keeps alice from it (fs.protected_symlinks), if it is alice who opens it.
func (n *node) plantedLink(t *testing.T) string {
	t.Helper()
	if b, _ := os.ReadFile("/proc/sys/fs/protected_symlinks"); strings.TrimSpace(string(b)) != "1" {
		must(t, os.WriteFile("/proc/sys/fs/protected_symlinks", []byte("1"), 0))
		t.Cleanup(func() { os.WriteFile("/proc/sys/fs/protected_symlinks", b, 0) })
	}
	target := n.userFile(t, "target", "alice's\n", 0o644)
	dir := n.path("sticky")
	must(t, os.Mkdir(dir, 0o777))
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(target, link))
	must(t, os.Lchown(link, int(bob.uid), int(bob.gid)))
	return link
}

// closedStreams: a client without descriptors 0, 1 or 2 runs its step as any other.
func (n *node) closedStreams(t *testing.T) {
	for _, redirect := range []string{"<&-", ">&-", "2>&-", "<&- >&- 2>&-"} {
		t.Run(redirect, func(t *testing.T) {
			for _, args := range []string{"", "-n 2 -l"} {
				r := n.do(t, call{program: "/bin/sh", args: []string{"-c", fmt.Sprintf("%s run %s sh -c 'cat; echo out; echo err >&2' %s", n.bin, args, redirect)}})
				if r.code != 0 || !strings.Contains(redirect, "2>") && !strings.Contains(r.err, "err") || !strings.Contains(redirect, " >") && redirect[0] != '>' && !strings.Contains(r.out, "out") {
					t.Errorf("run %s: %v", args, r)
				}
			}
		})
	}
}

// TestRootOddLines: lines without measure, and characters that come in two parts.
func TestRootOddLines(t *testing.T) {
	n := startNode(t, site{})
	const size = 100 << 20
	file := filepath.Join(n.wd, "long")
	r := n.ctl(t, "run", "-l", "-o", file, "sh", "-c", fmt.Sprintf("head -c %d /dev/zero; echo; echo last", size))
	st, err := os.Stat(file)
	must(t, err)
	if want := int64(size + len("0: \n0: last\n")); r.code != 0 || st.Size() != want {
		t.Errorf("a line of 100 MiB: %d bytes, want %d; %v", st.Size(), want, r)
	}
	r = n.ctl(t, "run", "-n", "2", "-l", "sh", "-c", `printf 'caf\303'; sleep .05; printf '\251\n'`)
	if got := sortedLines(r.out); r.code != 0 || strings.Join(got, "|") != "0: café|1: café" {
		t.Errorf("a character in two parts: %v", r)
	}
	for _, args := range [][]string{{"-l"}, {"-l", "-u"}} {
		pattern := filepath.Join(n.wd, "lab."+fmt.Sprint(len(args))+".%2t")
		r = n.ctl(t, append(append([]string{"run", "-n", "11", "-o", pattern}, args...), "echo", "x")...)
		for rank := range 11 {
			b, err := os.ReadFile(strings.Replace(pattern, "%2t", fmt.Sprintf("%02d", rank), 1))
			if want := fmt.Sprintf("%2d: x\n", rank); err != nil || string(b) != want {
				t.Errorf("%v, rank %d: %q, want %q, %v", args, rank, b, want, err)
			}
		}
	}
	if r := n.ctl(t, "run", "-o", `\%t.%j`, "echo", "x"); r.code != 0 {
		t.Errorf("%v", r)
	}
	if b, err := os.ReadFile(filepath.Join(n.wd, "%t.%j")); string(b) != "x\n" {
		t.Errorf("an escaped pattern: %q, %v", b, err)
	}
	r = n.do(t, call{args: []string{"run", "-n", "2", "echo", "x"}, env: []string{"SLURM_LABELIO=1", "SLURM_STDOUTMODE=1"}})
	if r.out != "1: x\n" {
		t.Errorf("by the environment: %v", r)
	}
}
