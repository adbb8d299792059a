package jobcontainer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/step/launch"
)

func TestRootJobHasItsOwnDirectories(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	name := filepath.Base(f.top)
	f.user(c, 1, "echo private > /tmp/"+name+" && echo shm > /dev/shm/"+name)
	for _, p := range []string{"/tmp/" + name, "/dev/shm/" + name} {
		if exists(p) {
			t.Errorf("the host sees %s", p)
		}
	}
	if got := f.user(c, 1, "ls -A /tmp /dev/shm"); got != "/dev/shm:\n"+name+"\n\n/tmp:\n"+name {
		t.Errorf("the job does not see its own files alone:\n%s", got)
	}
	if got := f.root(c, 1, "stat -c '%a %u %g' /tmp; stat -c %a /dev/shm"); got != "700 7001 7001\n1777" {
		t.Errorf("modes and owners: %q", got)
	}
	// The host's /dev/shm may be a mount by itself, or several, below ours.
	got := f.root(c, 1, "grep -E ' (/tmp|/dev/shm) ' /proc/self/mountinfo")
	if top := topMounts(got); len(top) != 2 || strings.Count(strings.Join(top, "\n"), "nosuid,nodev") != 2 {
		t.Errorf("mounted without nosuid,nodev:\n%s", got)
	}
	b, err := os.ReadFile(filepath.Join(f.private(1), name))
	if err != nil || string(b) != "private\n" {
		t.Errorf("BasePath does not hold the job's file: %q, %v", b, err)
	}
	f.remove(c, 1)
	f.wantNothing()
}

func TestRootJobsAreApartStepsShare(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.create(c, 2)
	f.user(c, 1, "echo one > /tmp/x; echo one > /dev/shm/x") // a step of job 1
	if got := f.user(c, 1, "cat /tmp/x /dev/shm/x"); got != "one\none" {
		t.Errorf("the next step of the job sees %q", got)
	}
	if got := f.user(c, 2, "ls -A /tmp /dev/shm"); strings.Contains(got, "x") {
		t.Errorf("another job sees it: %q", got)
	}
	// Not even by the path below BasePath, as the same user.
	if got := f.user(c, 2, "ls "+f.private(1)+" 2>&1 || true"); !strings.Contains(got, "Permission denied") {
		t.Errorf("another job of the user gets in through BasePath: %q", got)
	}
	f.remove(c, 1)
	if got := f.user(c, 2, "touch /tmp/still && ls /tmp"); got != "still" {
		t.Errorf("job 2 lost its directory with job 1: %q", got)
	}
	if ns, err := c.Join(1); err != nil || ns.Mount != nil {
		t.Error("a deleted job has a namespace")
	}
	f.remove(c, 2)
	f.wantNothing()
}

func TestRootCreateAndDeleteRepeat(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.user(c, 1, "touch /tmp/kept")
	f.create(c, 1)
	if got := f.user(c, 1, "ls /tmp"); got != "kept" {
		t.Errorf("the second Create made a new container: %q", got)
	}
	f.remove(c, 1)
	f.remove(c, 1)
	f.remove(c, 99)
	f.wantNothing()
	if err := c.Fini(); err != nil {
		t.Fatal(err)
	}
}

func TestRootPinsAreNotCopiedIntoJobs(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.create(c, 2)
	if got := f.root(c, 2, "grep -c "+f.top+" /proc/self/mountinfo || true"); got != "1" {
		t.Errorf("job 2 has %s mounts of noded's, want its /tmp alone:\n%s", got, f.root(c, 2, "grep "+f.top+" /proc/self/mountinfo"))
	}
}

func TestRootDirs(t *testing.T) {
	f := newFixture(t)
	f.cfg.Dirs = []string{f.top + "/scratch", f.top + "/link"}
	if err := os.Mkdir(f.top+"/scratch", 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.top+"/real", 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", f.top+"/link"); err != nil {
		t.Fatal(err)
	}
	c := f.plugin()
	f.create(c, 1)
	f.user(c, 1, "touch "+f.top+"/scratch/a "+f.top+"/real/b")
	if exists(f.top+"/scratch/a") || exists(f.top+"/real/b") {
		t.Error("the host sees files of a private directory")
	}
	f.remove(c, 1)

	f.cfg.Dirs = []string{f.top + "/missing"}
	c = f.plugin()
	err := c.Create(t.Context(), 2, testUser)
	if err == nil || !strings.Contains(err.Error(), f.top+"/missing") || !strings.Contains(err.Error(), "Dirs=") {
		t.Errorf("error %v, want one with the directory and the knob", err)
	}
	f.wantNothing()
}

// A mount that the job makes in its /tmp must not come out through BasePath,
// which on most hosts lies on a shared mount.
func TestRootMountsOfJobsStayInside(t *testing.T) {
	for _, shared := range []bool{false, true} {
		f := newFixture(t)
		mountShared(t, f.top+"/vol")
		f.cfg.BasePath, f.cfg.Shared = f.top+"/vol/base", shared
		c := f.plugin()
		f.create(c, 1)
		before := len(mountsWith(t, f.top))
		f.root(c, 1, "mkdir /tmp/m && mount -t tmpfs none /tmp/m && touch /tmp/m/x")
		if after := len(mountsWith(t, f.top)); after != before {
			t.Errorf("Shared=%v: %d mounts on the host became %d", shared, before, after)
		}
		f.remove(c, 1)
		if exists(f.private(1)) {
			t.Errorf("Shared=%v: the private directory is still there", shared)
		}
	}
}

// Shared=true is for autofs: what the host mounts later appears in the job.
func TestRootSharedLetsHostMountsIn(t *testing.T) {
	for _, shared := range []bool{false, true} {
		f := newFixture(t)
		mountShared(t, f.top+"/net")
		f.cfg.Shared = shared
		c := f.plugin()
		f.create(c, 1)
		home := f.top + "/net/home"
		if err := os.Mkdir(home, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", home, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(home, unix.MNT_DETACH)
		if err := os.WriteFile(home+"/file", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		got := f.root(c, 1, "test -e "+home+"/file && echo true || echo false")
		if (got == "true") != shared {
			t.Errorf("Shared=%v: the job sees a later mount of the host: %s", shared, got)
		}
		// And nothing goes the other way.
		f.root(c, 1, "mkdir -p "+f.top+"/net/job && mount -t tmpfs none "+f.top+"/net/job")
		if m := mountsWith(t, f.top+"/net/job"); len(m) > 0 {
			t.Errorf("Shared=%v: the host sees a mount of the job: %v", shared, m)
		}
		f.remove(c, 1)
	}
}

func mountShared(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
}

// A process that stays behind keeps its view until it ends; the host is clean.
func TestRootDeleteUnderALivingProcess(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	cmd := f.command(c, 1, "cd /tmp; echo in; read x; pwd", asUser(testUser.UID)...)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	f.remove(c, 1)
	f.wantNothing()
	in.Close()
	cmd.Wait()
}

func TestRootManyCyclesLeakNothing(t *testing.T) {
	f := newFixture(t)
	f.script("exit 0\n")
	c := f.plugin()
	count := func() (fds, threads, mounts int) {
		fd, err1 := os.ReadDir("/proc/self/fd")
		th, err2 := os.ReadDir("/proc/self/task")
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		return len(fd), len(th), len(mountsWith(t, f.top))
	}
	cycle := func(job uint32) {
		f.create(c, job)
		f.remove(c, job)
	}
	cycle(1)
	goroutines := runtime.NumGoroutine()
	fds, threads, mounts := count()
	for job := range uint32(50) {
		cycle(job + 2)
	}
	fds2, threads2, mounts2 := count()
	if fds2 > fds || mounts2 != mounts {
		t.Errorf("descriptors %d to %d, mounts %d to %d", fds, fds2, mounts, mounts2)
	}
	// Go starts and keeps threads as it likes, and the last goroutine may be on its way to
	// its end; a leak would be one per cycle.
	if now := runtime.NumGoroutine(); threads2 > threads+10 || now > goroutines+10 {
		t.Errorf("threads %d to %d, goroutines %d to %d in 50 cycles", threads, threads2, goroutines, now)
	}
	f.wantNothing()
}

func TestRootJobsSideBySide(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for i := range uint32(32) {
		wg.Go(func() {
			job := i/2 + 1 // two at a time on each job
			errs <- c.Create(t.Context(), job, testUser)
		})
	}
	wg.Wait()
	for job := range uint32(16) {
		f.user(c, job+1, "test -z \"$(ls -A /tmp)\" && touch /tmp/mine")
	}
	for i := range uint32(32) {
		wg.Go(func() { errs <- c.Delete(t.Context(), i/2+1) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	f.wantNothing()
}

// No goroutine may come to run in a job's namespace: whichever thread serves
// this one, it sees the host.
func TestRootNodedStaysInTheHostsNamespace(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	self, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if got, err := os.Readlink("/proc/thread-self/ns/mnt"); err != nil || got != self {
				t.Errorf("a thread is in %q (%v), noded in %q", got, err, self)
			}
		})
	}
	wg.Wait()
	cmd := exec.Command("readlink", "/proc/self/ns/mnt")
	if got := f.output(cmd); got != self {
		t.Errorf("a child of noded is in %s, noded in %s", got, self)
	}
}

// topMounts are those lines of mountinfo that no other line is mounted on.
func topMounts(mountinfo string) (top []string) {
	lines := strings.Split(strings.TrimSpace(mountinfo), "\n")
	parents := make(map[string]bool)
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 1 {
			parents[f[1]] = true
		}
	}
	for _, line := range lines {
		if id, _, _ := strings.Cut(line, " "); !parents[id] {
			top = append(top, line)
		}
	}
	return top
}

func TestRootAddPIDAndCont(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.create(c, 2)
	cmd := f.command(c, 1, "echo in; read x")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{cmd.Process.Pid, os.Getpid(), cmd.Process.Pid} {
		if err := c.AddPID(1, pid, 7001); err != nil {
			t.Error(err)
		}
	}
	if err := c.AddPID(7, cmd.Process.Pid, 0); err == nil {
		t.Error("a job without container accepted")
	}
	// A Delete that fails names the process that is inside, and only that.
	stuck := f.private(1) + "/m"
	if err := os.Mkdir(stuck, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", stuck, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	err := c.Delete(t.Context(), 1)
	if want := fmt.Sprintf("job 1 are still there: %d of uid 7001", cmd.Process.Pid); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %v, want one that ends with %q", err, want)
	}
	if err := unix.Unmount(stuck, 0); err != nil {
		t.Fatal(err)
	}
	f.remove(c, 1)
	f.create(c, 1)
	in.Close()
	cmd.Wait() // the shell's status at end of file does not matter
	if err := c.AddPID(1, cmd.Process.Pid, 0); err == nil {
		t.Error("a dead process accepted")
	}
	if err := c.AddCont(1, 4711); err != nil {
		t.Error(err)
	}
	if err := c.AddCont(1, 4711); err != nil {
		t.Errorf("the same again refused: %v", err)
	}
	if err := c.AddCont(2, 4711); err == nil {
		t.Error("one proctrack container accepted in two jobs")
	}
	if err := c.AddCont(7, 4712); err == nil {
		t.Error("a job without container accepted")
	}
	f.remove(c, 1)
	if err := c.AddCont(2, 4711); err != nil {
		t.Errorf("the container of an ended job is not free: %v", err)
	}
}

// TestRootFullBasePath: that a job has filled the file system of BasePath fails the next one. It is
// no fault of the node's, which must not be drained by a user.
func TestRootFullBasePath(t *testing.T) {
	f := newFixture(t)
	base := f.cfg.BasePath
	if err := os.Mkdir(base, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", base, "tmpfs", 0, "mode=755,nr_inodes=64"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(base, syscall.MNT_DETACH)
	c := f.plugin()
	f.create(c, 1)
	for i := 0; ; i++ {
		err := os.Mkdir(fmt.Sprintf("%s/%s/1/%d", base, tagOfTests, i), 0o755)
		if errors.Is(err, syscall.ENOSPC) {
			break
		}
		if err != nil || i > 64 {
			t.Fatalf("the file system is not full: %v", err)
		}
	}
	err := c.Create(t.Context(), 2, testUser)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Create on a full file system: %v", err)
	}
	if fault, ok := errors.AsType[*launch.FaultError](err); ok {
		t.Errorf("the node is to blame: %v", fault)
	}
	f.remove(c, 1)
	f.create(c, 2)
	f.remove(c, 2)
}

// TestRootTry: Try finds what keeps the next job from its container, also while another one has
// one, and leaves nothing.
func TestRootTry(t *testing.T) {
	f := newFixture(t)
	f.cfg.AutoBasePath = false
	base, script := f.cfg.BasePath, f.top+"/init.sh"
	f.cfg.InitScript = script
	c, err := NewTmpfs(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	is := func(when, want string) {
		t.Helper()
		switch err := c.Try(); {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", when, err, want)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	nothing := func() {
		t.Helper()
		if left, err := os.ReadDir(base); err != nil || len(left) > 0 {
			t.Errorf("BasePath has %v, %v", left, err)
		}
		if m := mountsWith(t, f.cfg.RunDir); len(m) > 0 {
			t.Errorf("still mounted: %q", m)
		}
	}
	is("without the script", "no such file or directory (InitScript= in job_container.conf)")
	do(os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755))
	is("without BasePath", "make it or set AutoBasePath=true")
	do(os.Mkdir(base, 0o777))
	do(os.Chmod(base, 0o777))
	is("in a directory of all users", "chmod go-w "+base)
	do(syscall.Mount("tmpfs", base, "tmpfs", 0, "mode=755"))
	defer syscall.Unmount(base, syscall.MNT_DETACH)
	is("mended", "")
	nothing()
	do(c.Restore(t.Context(), nil))
	f.create(c, 1)
	do(syscall.Mount("", base, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	is("on a read-only file system", syscall.EROFS.Error())
	do(syscall.Mount("", base, "", syscall.MS_REMOUNT, ""))
	is("writable again", "")
	f.remove(c, 1)
	nothing()
}
