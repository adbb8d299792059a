package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRootTmpfsContainer: the steps of a job share a private /tmp and
// /dev/shm, other jobs and the node see nothing of it, and it goes with the
// job's last step.
func TestRootTmpfsContainer(t *testing.T) {
	waits(t)
	base := containerBase(t)
	n := startNode(t, site{
		Slurm:     "JobContainerType=job_container/tmpfs\nPrologFlags=Contain\n",
		Container: "AutoBasePath=true\nBasePath=" + base + "\n",
	})
	name := filepath.Base(n.dir)
	// A private directory of the job that this test made itself, to go with it.
	n.userFile(t, "wait.sh", fmt.Sprintf(`
echo first > /tmp/%[1]s; echo shm > /dev/shm/%[1]s
touch ready
while ! test -e go; do sleep 0.05; done
cat /tmp/%[1]s.second
`, name), 0o755)
	p := n.start(t, call{args: []string{"run", "sh", "wait.sh"}})
	step := n.running(t)
	eventually(t, callTimeout, "the first step's file", func() error {
		_, err := os.Stat(filepath.Join(n.wd, "ready"))
		return err
	})
	for _, path := range []string{"/tmp/" + name, "/dev/shm/" + name} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is seen outside of the job", path)
		}
	}
	job := fmt.Sprint(step.JobID)
	t.Run("a second step of the job shares it", func(t *testing.T) {
		r := n.ctl(t, "run", "--jobid", job, "--overcommit", "sh", "-c", fmt.Sprintf("cat /tmp/%[1]s /dev/shm/%[1]s; echo second > /tmp/%[1]s.second", name))
		if r.code != 0 || r.out != "first\nshm\n" {
			t.Errorf("got %v", r)
		}
		if steps := n.ps(t, "--all"); len(steps) != 2 || n.last(t).id() != job+".1" {
			t.Errorf("want step %s.1, got %+v", job, steps)
		}
	})
	t.Run("SLURM_JOB_ID means that job too", func(t *testing.T) {
		r := n.do(t, call{args: []string{"run", "--overcommit", "cat", "/tmp/" + name}, env: []string{"SLURM_JOB_ID=" + job}})
		if r.code != 0 || r.out != "first\n" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("another job has its own", func(t *testing.T) {
		r := n.ctl(t, "run", "sh", "-c", "ls -A /tmp; touch /tmp/mine && stat -c %U /tmp/mine")
		if r.code != 0 || r.out != alice.name+"\n" {
			t.Errorf("want an empty /tmp that the user can write, got %v", r)
		}
	})
	t.Run("a program that it hides is told as hidden", func(t *testing.T) {
		hidden := "/tmp/" + name + "-hidden"
		must(t, os.WriteFile(hidden, []byte("#!/bin/sh\n"), 0o755))
		defer os.Remove(hidden)
		r := n.ctl(t, "run", hidden)
		if r.code != 2 || !strings.Contains(r.err, "does not exist in the job's container; outside of it, it does") {
			t.Errorf("got %v", r)
		}
	})
	t.Run("a setuid file gains nothing there", func(t *testing.T) {
		r := n.ctl(t, "run", "sh", "-c", "grep ' /tmp ' /proc/self/mountinfo")
		if r.code != 0 || !strings.Contains(r.out, " /tmp ") {
			t.Errorf("want /tmp to be a mount of its own, got %v", r)
		}
	})
	n.letGo(t)
	if r := p.wait(t); r.code != 0 || r.out != "second\n" {
		t.Errorf("the first step: %v", r)
	}
	n.checkClean(t)
	emptyBase(t, base)
}

// containerBase is a BasePath outside of the node's directory: the leak check
// of that directory then does not hide what stays in here.
func containerBase(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp(workRoot, "stepd-it-base-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Errorf("cannot remove %q: %v", base, err)
		}
	})
	must(t, os.Chmod(base, 0o755))
	return base
}

// emptyBase checks that no job's directory and no mount is left in base.
func emptyBase(t *testing.T, base string) {
	t.Helper()
	eventually(t, goneWithin, "an empty BasePath", func() error {
		left, err := filepath.Glob(filepath.Join(base, "*", "*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %q", left)
		}
		if strings.Contains(readFile(t, "/proc/self/mountinfo"), base) {
			err = fmt.Errorf("a mount is left: %w", err)
		}
		return err
	})
}

// TestRootContainerOptions: Dirs, InitScript and a step killed hard.
func TestRootContainerOptions(t *testing.T) {
	waits(t)
	base := containerBase(t)
	script := filepath.Join(base, "init.sh")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\n"+
		"echo from the script > \"$SLURM_JOB_MOUNTPOINT_SRC/0-var-tmp/script.out\"\nchmod 0644 \"$SLURM_JOB_MOUNTPOINT_SRC/0-var-tmp/script.out\"\n"+
		"mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 none /dev/pts\n"), 0o755))
	// /var/tmp is private here: the node's directory is below it, so that the
	// tasks run elsewhere.
	n := startNode(t, site{
		Slurm:     "JobContainerType=job_container/tmpfs\n",
		Container: "AutoBasePath=true\nBasePath=" + base + "\nDirs=/var/tmp,/dev/shm\nInitScript=" + script + "\n",
	})
	r := n.do(t, call{args: []string{"run", "-D", "/", "cat", "/var/tmp/script.out"}, dir: "/"})
	if r.code != 0 || r.out != "from the script\n" {
		t.Errorf("InitScript prepares the job's directories: %v", r)
	}
	if _, err := os.Stat("/var/tmp/script.out"); err == nil {
		t.Error("the script has written outside of the job's namespace")
		must(t, os.Remove("/var/tmp/script.out"))
	}
	t.Run("a terminal whose name is another one's here", func(t *testing.T) {
		others, s := openTerminal(t, 24, 80), openTerminal(t, 24, 80)
		s.ctl(n, call{args: []string{"run", "--pty", "-D", "/", "sh", "-c", "stty size && tty && echo $(ls /dev/pts)"}, dir: "/"})
		s.sees("24 80\r\n/dev/pts/0\r\n0 ptmx\r\n")
		s.ends(0)
		if text := others.shown(); text != "" {
			t.Errorf("another terminal shows %q", text)
		}
	})
	n.idle(t)
	n.checkClean(t) // or its stepd may be found in place of the next one's
	t.Run("nothing is left after SIGKILL of stepd", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "-D", "/", "sh", "-c", "touch /var/tmp/x /dev/shm/x; exec sleep 86400"}, dir: "/"})
		n.running(t)
		must(t, killNow(n.findProcess(t, "stepd").pid))
		if r := p.wait(t); r.code != 1 {
			t.Errorf("got %v", r)
		}
		n.checkClean(t)
		emptyBase(t, base)
	})
	t.Run("nothing is left after SIGKILL of noded and stepd", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "-D", "/", "sleep", "86400"}, dir: "/"})
		n.running(t)
		stepd := n.findProcess(t, "stepd").pid
		n.kill9(t)
		must(t, killNow(stepd))
		n.boot(t)
		p.wait(t)
		n.checkClean(t)
		emptyBase(t, base)
	})
}

// TestRootContainerFault: a BasePath in which no container can be made drains the node, with
// the reason and what mends it: when noded starts, and with the job that finds it. A reload
// with such a configuration is refused. When the cause has gone the node takes jobs again by itself.
// Without containers a job has the node's own view.
func TestRootContainerFault(t *testing.T) {
	waits(t)
	base := filepath.Join(containerBase(t), "base")
	n := startNode(t, site{Slurm: "JobContainerType=job_container/tmpfs\n", Container: "BasePath=" + base + "\n"})
	drained := func(words ...string) {
		t.Helper()
		doc := n.idle(t)
		if doc.State != "DRAINED" {
			t.Errorf("node %s: %q", doc.State, doc.Reason)
		}
		contains(t, "reason", doc.Reason, append(words, base, "BasePath= in job_container.conf")...)
		if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, "node is drained: ") {
			t.Errorf("a job on the drained node: %v", r)
		}
	}
	runs := func() {
		t.Helper()
		n.resumes(t)
		if r := n.ctl(t, "run", "true"); r.code != 0 {
			t.Errorf("a job on the mended node: %v", r)
		}
		n.idle(t)
	}
	drained("no such file or directory", "make it or set AutoBasePath=true")
	t.Run("mended", func(t *testing.T) {
		must(t, os.Mkdir(base, 0o755))
		runs()
	})
	t.Run("found by a job", func(t *testing.T) {
		must(t, os.Chmod(base, 0o777))
		before := len(n.ps(t, "--all"))
		r := n.ctl(t, "run", "true")
		if r.code != 1 {
			t.Errorf("got %v", r)
		}
		if all := n.ps(t, "--all"); len(all) != before {
			t.Errorf("a step was refused, and is kept: %+v", all)
		}
		contains(t, "stderr", r.err, "others than root may write there")
		drained("others than root may write there", "chmod go-w "+base)
	})
	t.Run("a reload is refused", func(t *testing.T) {
		n.hup(t, "cannot reload: cannot use job container directory")
		n.logs(t, "others than root may write there", "goes on with the configuration that it has")
		must(t, os.Chmod(base, 0o755))
		n.hup(t, "noded: ready")
		runs()
	})
	t.Run("a script that others may write", func(t *testing.T) {
		script := filepath.Join(filepath.Dir(base), "init.sh")
		must(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755))
		n.write(t, "job_container.conf", "BasePath="+base+"\nInitScript="+script+"\n")
		n.hup(t, "noded: ready")
		must(t, os.Chmod(script, 0o777))
		if r := n.ctl(t, "run", "true"); r.code != 1 {
			t.Errorf("got %v", r)
		}
		if doc := n.idle(t); doc.State != "DRAINED" || !strings.Contains(doc.Reason, script) {
			t.Errorf("node %s: %q", doc.State, doc.Reason)
		}
		must(t, os.Chmod(script, 0o755))
		runs()
	})
	t.Run("without room", func(t *testing.T) {
		must(t, unix.Mount("base", base, "tmpfs", 0, "size=1m,nr_inodes=20,mode=0755"))
		defer func() { must(t, unix.Unmount(base, 0)) }()
		ok(t, "a step", n.ctl(t, "run", "true"))
		n.idle(t)
		before := len(n.ps(t, "--all"))
		mend := fill(t, base)
		if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, "no space left on device") {
			t.Errorf("a job without room for its container: %v", r)
		}
		if doc := n.idle(t); doc.Reason != "" {
			t.Errorf("node %s: %q", doc.State, doc.Reason)
		}
		if all := n.ps(t, "--all"); len(all) != before {
			t.Errorf("a step was refused, and is kept: %+v", all)
		}
		mend()
		runs()
	})
	t.Run("none", func(t *testing.T) {
		n.restartWith(t, "JobContainerType=job_container/none\n")
		own, err := os.Readlink("/proc/self/ns/mnt")
		must(t, err)
		if r := n.ctl(t, "run", "readlink", "/proc/self/ns/mnt"); r.out != own+"\n" {
			t.Errorf("want the node's own mount namespace, %s: %v", own, r)
		}
	})
	n.checkClean(t)
}
