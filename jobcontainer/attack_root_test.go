package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A user makes everything in /tmp that could lead a removal by root astray.
func TestRootDeleteStaysInside(t *testing.T) {
	f := newFixture(t)
	precious := f.top + "/precious"
	if err := os.MkdirAll(precious+"/dir", 0o777); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{precious + "/file", precious + "/dir/file"} {
		if err := os.WriteFile(p, []byte("keep"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	c := f.plugin()
	f.create(c, 1)
	f.user(c, 1, `cd /tmp
ln -s `+precious+` link; ln -s `+precious+`/file filelink; ln -s / root; ln -s ../../.. up; ln -s loop loop
mkdir -p d/e; ln -s `+precious+`/dir d/e/link
mkdir closed; touch closed/f; chmod 000 closed
mkfifo fifo; : > "$(printf 'line\nbreak')"; mkdir "$(printf '\377\001')" '...' ' '; : > -rf
perl -e 'use Socket; socket(S,PF_UNIX,SOCK_STREAM,0); bind(S,sockaddr_un("sock"))' || exit 1
mkdir .trash; touch .trash/x
`)
	f.root(c, 1, "mkdir /tmp/mnt && mount --bind "+precious+" /tmp/mnt && mkdir /tmp/mnt2 && mount -t tmpfs none /tmp/mnt2 && touch /tmp/mnt2/x")
	f.remove(c, 1)
	f.wantNothing()
	for _, p := range []string{precious + "/file", precious + "/dir/file"} {
		if b, err := os.ReadFile(p); err != nil || string(b) != "keep" {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
}

// The private directory itself is replaced by a link, as far as a user could
// ever get: not at all, but then removal must not follow it either.
func TestRootDeleteOfALinkInPlaceOfADirectory(t *testing.T) {
	f := newFixture(t)
	precious := f.top + "/precious"
	if err := os.MkdirAll(precious+"/dir", 0o777); err != nil {
		t.Fatal(err)
	}
	c := f.plugin()
	f.create(c, 1)
	if err := os.Remove(f.private(1)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, f.private(1)); err != nil {
		t.Fatal(err)
	}
	f.remove(c, 1)
	f.wantNothing()
	if !exists(precious + "/dir") {
		t.Error("the removal followed a link")
	}
}

// Directories that turn into links and back while they are removed.
func TestRootDeleteWhileAUserSwapsLinks(t *testing.T) {
	f := newFixture(t)
	precious := f.top + "/precious"
	for i := range 20 {
		if err := os.MkdirAll(fmt.Sprintf("%s/%d/x", precious, i), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(precious, 0o777); err != nil {
		t.Fatal(err)
	}
	c := f.plugin()
	for job := range uint32(5) {
		f.create(c, job+1)
		cmd := f.command(c, job+1, `cd /tmp; mkdir -p a/0/x b; ln -s `+precious+` s; echo go
while mv -T a keep && mv -T s a && mv -T a s && mv -T keep a; do mkdir -p a/1/x a/2/x a/3/x; done 2>/dev/null; true`, asUser(testUser.UID)...)
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		// The user may win the race for a file more; never for one outside.
		if err := c.Delete(context.Background(), job+1); err != nil {
			t.Logf("while the user goes on writing: %v", err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		f.remove(c, job+1)
	}
	f.wantNothing()
	for i := range 20 {
		if !exists(fmt.Sprintf("%s/%d/x", precious, i)) {
			t.Fatalf("%s/%d was removed through a link", precious, i)
		}
	}
}

func TestRootDeleteManyAndDeep(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.user(c, 1, `cd /tmp; mkdir many; cd many; seq 20000 | xargs touch
cd /tmp; exec perl -e 'for (1..3000) { mkdir "d" or die; open F, ">f"; chdir "d" or die }'`)
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	// Room for a bounded number of descriptors only.
	low := unix.Rlimit{Cur: uint64(len(before)) + 72, Max: lim.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	f.remove(c, 1)
	f.wantNothing()
}

func TestRootDeleteNamesWhatItCannotRemove(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.user(c, 1, "mkdir -p /tmp/a/b /tmp/z; touch /tmp/a/b/stuck /tmp/a/gone /tmp/z/gone")
	stuck := f.private(1) + "/a/b/stuck"
	chattr := func(flag string) {
		if out, err := exec.Command("chattr", flag, stuck).CombinedOutput(); err != nil {
			t.Skipf("the file system has no immutable files: %s", out)
		}
	}
	chattr("+i")
	err := c.Delete(t.Context(), 1)
	if err == nil || !strings.Contains(err.Error(), stuck) || !errors.Is(err, unix.EPERM) {
		t.Errorf("error %v, want one with the path %s", err, stuck)
	}
	if err != nil && strings.Contains(err.Error(), "\n") {
		t.Errorf("error of more than one line: %q", err)
	}
	if exists(f.private(1)+"/a/gone") || exists(f.private(1)+"/z") {
		t.Error("what could be removed was not")
	}
	f.wantNoMounts()
	chattr("-i")
	f.remove(c, 1)
	f.wantNothing()
}

func TestRootDeleteEntersNoMount(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	m := f.private(1) + "/m"
	if err := os.Mkdir(m, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", m, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	err := c.Delete(t.Context(), 1)
	if err == nil || !strings.Contains(err.Error(), m) || !strings.Contains(err.Error(), "mounted there") {
		t.Errorf("error %v, want one with the path %s", err, m)
	}
	if !exists(m + "/file") {
		t.Error("a file of another file system was removed")
	}
	if err := unix.Unmount(m, 0); err != nil {
		t.Fatal(err)
	}
	f.remove(c, 1)
	f.wantNothing()
}

func TestRootDeleteEndsWithItsContext(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.user(c, 1, "touch /tmp/x")
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("noded ends")
	cancel(cause)
	if err := c.Delete(ctx, 1); !errors.Is(err, cause) {
		t.Errorf("error %v, want %v", err, cause)
	}
	f.remove(c, 1)
	f.wantNothing()
}

func TestRootBasePathOfOthersIsRefused(t *testing.T) {
	tests := []struct {
		name  string
		setup func(f *fixture) error
		want  string
	}{
		{"missing", func(f *fixture) error { f.cfg.AutoBasePath = false; return nil }, "AutoBasePath=true"},
		{"a file", func(f *fixture) error { return os.WriteFile(f.cfg.BasePath, nil, 0o644) }, "not a directory"},
		{"a user's", func(f *fixture) error {
			return errors.Join(os.Mkdir(f.cfg.BasePath, 0o755), os.Chown(f.cfg.BasePath, 7001, 7001))
		}, "uid 7001"},
		{"writable by all", func(f *fixture) error {
			return errors.Join(os.Mkdir(f.cfg.BasePath, 0o755), os.Chmod(f.cfg.BasePath, 0o777))
		}, "others than root may write"},
		{"writable by all and sticky", func(f *fixture) error {
			return errors.Join(os.Mkdir(f.cfg.BasePath, 0o755), os.Chmod(f.cfg.BasePath, 0o777|os.ModeSticky))
		}, "others than root may write"},
		{"writable by a group", func(f *fixture) error {
			return errors.Join(os.Mkdir(f.cfg.BasePath, 0o755), os.Chown(f.cfg.BasePath, 0, 7001), os.Chmod(f.cfg.BasePath, 0o775))
		}, "others than root may write"},
		{"below a user's directory", func(f *fixture) error {
			err := errors.Join(os.MkdirAll(f.top+"/home/base", 0o755), os.Chown(f.top+"/home", 7001, 7001))
			f.cfg.BasePath = f.top + "/home/base"
			return err
		}, "uid 7001"},
		{"a user's link", func(f *fixture) error {
			return errors.Join(os.Mkdir(f.top+"/real", 0o755), os.Symlink("real", f.cfg.BasePath), os.Lchown(f.cfg.BasePath, 7001, 7001))
		}, "symbolic link"},
		{"links in a circle", func(f *fixture) error { return os.Symlink(f.cfg.BasePath, f.cfg.BasePath) }, "too many levels"},
		{"a user's directory in our place", func(f *fixture) error {
			tag := filepath.Join(f.cfg.BasePath, tagOfTests)
			return errors.Join(os.MkdirAll(tag, 0o755), os.Chown(tag, 7001, 7001))
		}, "uid 7001"},
		{"a link in our place", func(f *fixture) error {
			return errors.Join(os.Mkdir(f.cfg.BasePath, 0o755), os.Symlink("/etc", filepath.Join(f.cfg.BasePath, tagOfTests)))
		}, tagOfTests},
		{"another node's", func(f *fixture) error {
			tag := filepath.Join(f.cfg.BasePath, tagOfTests)
			return errors.Join(os.MkdirAll(tag, 0o700), os.WriteFile(tag+"/.node", []byte("node17\n"), 0o600))
		}, `belongs to node "node17"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			if err := tt.setup(f); err != nil {
				t.Fatal(err)
			}
			c, err := NewTmpfs(f.cfg)
			if err != nil {
				t.Fatal(err)
			}
			for what, err := range map[string]error{
				"Restore": c.Restore(t.Context(), nil),
				"Create":  c.Create(t.Context(), 1, testUser),
			} {
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "BasePath=") {
					t.Errorf("%s: error %v, want one with %q and the knob", what, err, tt.want)
				}
			}
			if tt.name == "another node's" && !exists(filepath.Join(f.cfg.BasePath, tagOfTests, ".node")) {
				t.Error("another node's directory was removed")
			}
			f.wantNoMounts()
		})
	}
}

// A link that root made is the site's own business.
func TestRootBasePathThroughLinksOfRoot(t *testing.T) {
	f := newFixture(t)
	if err := errors.Join(os.MkdirAll(f.top+"/disk/a", 0o755), os.Symlink(f.top+"/disk", f.top+"/abs"),
		os.Symlink("../abs/./a/../a", f.top+"/disk/rel")); err != nil {
		t.Fatal(err)
	}
	f.cfg.BasePath = f.top + "/abs/rel/base"
	c := f.plugin()
	f.create(c, 1)
	if !exists(f.top + "/disk/a/base/" + tagOfTests + "/1/0-tmp") {
		t.Error("the directory is not where the links lead")
	}
	f.remove(c, 1)
	f.wantNothing()
}

func TestRootTwoNodesOnOneBasePath(t *testing.T) {
	f := newFixture(t)
	f.create(f.plugin(), 1)
	other := f.cfg
	other.NodeName, other.RunDir = "node2", f.top+"/run2/jobs"
	c, err := NewTmpfs(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Restore(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `"testnode"`) {
		t.Errorf("error %v, want one that names the other node", err)
	}
	if !exists(f.private(1)) {
		t.Error("a node removed another one's job")
	}
}
