package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// cleanInit is process 1 of a container with the root $1: namespaces of mounts, processes, names and
// IPC, the machine's cgroups and devices. It reports on stdout that the container is complete,
// and reaps until stdin ends; with it ends all that runs in the container.
const cleanInit = `set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
for d in tmp run; do mount -t tmpfs -o mode=1777 tmpfs "$1/$d"; done
hostname vm
cd "$1"
pivot_root . mnt
exec chroot . /bin/sh -ec '
umount -l /mnt
echo ready
cat <&3 >/dev/null 2>&1 &
exec 3<&- </dev/null >/dev/null 2>&1
wait' 3<&0
`

// cleanContainer is a Debian without anything of ours or of the machine's programs.
type cleanContainer struct {
	root string
	init int // the pid of its process 1, outside
}

// debian returns an archive of Debian's smallest root, which is made once.
func debian(t *testing.T) string {
	t.Helper()
	archive := "/var/cache/stepd-debian/bookworm.tar"
	if _, err := os.Stat(archive); err == nil {
		return archive
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("no mmdebstrap, which makes a clean Debian")
	}
	must(t, os.MkdirAll(filepath.Dir(archive), 0o755))
	made := fmt.Sprintf("%s-%d", archive, os.Getpid())
	defer os.Remove(made)
	out, err := exec.Command("mmdebstrap", "--mode=root", "--variant=minbase", "--quiet", "--format=tar", "--aptopt=Acquire::Languages \"none\"",
		"--dpkgopt=path-exclude=/usr/share/locale/*", "bookworm", made).CombinedOutput()
	if err != nil {
		t.Fatalf("cannot make a Debian: mmdebstrap: %v\n%s", err, tail(string(out), 5))
	}
	must(t, os.Rename(made, archive))
	return archive
}

// newCleanContainer starts one, with an ordinary user "reader", whose home has the Debian packages.
func newCleanContainer(t *testing.T) *cleanContainer {
	t.Helper()
	testkit.RequireRoot(t)
	archive := debian(t)
	root, err := os.MkdirTemp(workRoot, "stepd-it-debian-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	must(t, os.Chmod(root, 0o755))
	c := &cleanContainer{root: root}
	for _, command := range [][]string{
		{"tar", "-C", root, "-xpf", archive},
		{"chroot", root, "useradd", "-m", "-s", "/bin/sh", "reader"},
		{"make", "-s", "-C", "..", "deb-files", "BIN=" + filepath.Dir(binary(t, "noded")), "DEB_OUT=" + filepath.Join(root, "home/reader")},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", command, err, out)
		}
	}
	c.start(t)
	return c
}

func (c *cleanContainer) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", cleanInit, "sh", c.root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	var said bytes.Buffer
	cmd.Stderr = &said
	must(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait() // it was killed
	})
	if line, _ := io.ReadAll(io.LimitReader(stdout, 6)); string(line) != "ready\n" {
		t.Fatalf("the container did not start: %q %s", line, said.String())
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	must(t, err)
	c.init, err = strconv.Atoi(strings.TrimSpace(string(children)))
	must(t, err)
}

// do runs a command of the shell in reader's home, as root or as reader.
func (c *cleanContainer) do(t *testing.T, root bool, text string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*callTimeout) // apt fetches a compiler
	defer cancel()
	user := "reader"
	if root {
		user = "root"
	}
	cmd := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(c.init), "--mount", "--pid", "--uts", "--ipc", "--root",
		"runuser", "-u", user, "--", "/bin/sh", "-c", "exec 2>&1; cd /home/reader\n"+text)
	cmd.WaitDelay = 2 * time.Second
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/home/reader", "USER=" + user}
	b, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("%s: %v", text, err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// follow runs the commands of a document in order, and calls after with each one that has run.
func (c *cleanContainer) follow(t *testing.T, doc string, after func(command string)) {
	t.Helper()
	blocks, err := consoleBlocks(readFile(t, doc))
	must(t, err)
	dir := "."
	for _, b := range blocks {
		if b.norun != "" {
			continue
		}
		for _, command := range b.commands {
			if to, ok := strings.CutPrefix(command.text, "cd "); ok {
				dir = filepath.Join(dir, to)
				continue
			}
			out, code := c.do(t, command.root, "cd "+dir+"\n"+command.text)
			if !command.matches(t, doc, out, code) {
				t.FailNow() // the rest depends on it
			}
			after(command.text)
		}
	}
}

// TestRootFirstHour is a newcomer's hour: all commands of docs/tutorial.md in order, from the packages'
// installation on, and then the first plugin's, docs/plugin.md, in a Debian that has nothing else, as
// root and as an ordinary user where the page says so.
func TestRootFirstHour(t *testing.T) {
	c := newCleanContainer(t)
	installed := false
	c.follow(t, "../docs/tutorial.md", func(command string) {
		if !installed && strings.HasPrefix(command, "apt install ") {
			installed = true
			// The page's node, whatever the machine has.
			conf := filepath.Join(c.root, "etc/stepd/slurm.conf")
			must(t, os.WriteFile(conf, []byte(readFile(t, conf)+"NodeName=vm CPUs=4\n"), 0o644))
		}
	})
	if !installed {
		t.Error("docs/tutorial.md does not install the packages")
	}
	must(t, os.WriteFile(filepath.Join(c.root, "etc/resolv.conf"), []byte(readFile(t, "/etc/resolv.conf")), 0o644))
	if out, code := c.do(t, true, "apt-get update"); code != 0 {
		missing(t, "no lists of Debian's packages, of which docs/plugin.md installs some: "+tail(out, 3))
	}
	c.follow(t, "../docs/plugin.md", func(string) {})
	// noded removes its cgroups when it ends, and nothing runs any more.
	if out, code := c.do(t, true, "kill $(cat /proc/[0-9]*/stat | sed -n 's/^\\([0-9]*\\) (noded) .*/\\1/p') && for i in $(seq 100); do grep -qs '(noded)' /proc/[0-9]*/stat || exit 0; sleep 0.1; done; exit 1"); code != 0 {
		t.Errorf("noded did not end: %s", out)
	}
	left, err := filepath.Glob("/sys/fs/cgroup/*/stepd-" + nodeHash("/var/spool/stepd"))
	if err != nil || len(left) > 0 {
		t.Errorf("cgroups are left: %q, %v", left, err)
	}
}
