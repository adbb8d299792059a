package jobcontainer

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestRootInitScript(t *testing.T) {
	f := newFixture(t)
	t.Setenv("LD_PRELOAD_FROM_NODED", "1")
	f.script(`env | sort > ` + f.top + `/env
id -u >> ` + f.top + `/env
mkdir -p ` + f.top + `/site && mount -t tmpfs site ` + f.top + `/site && touch ` + f.top + `/site/prepared
touch "$SLURM_JOB_MOUNTPOINT_SRC/0-tmp/welcome"
`)
	f.cfg.SlurmConf = "/etc/slurm/slurm.conf"
	c := f.plugin()
	f.create(c, 5)
	b, err := os.ReadFile(f.top + "/env")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PWD=/",
		"SLURMD_NODENAME=testnode", "SLURM_CONF=/etc/slurm/slurm.conf", "SLURM_JOB_ID=5",
		"SLURM_JOB_MOUNTPOINT_SRC=" + f.cfg.BasePath + "/" + tagOfTests + "/5", "SLURM_JOB_UID=7001", "0", "",
	}, "\n")
	if string(b) != want {
		t.Errorf("environment and uid:\n%swant:\n%s", b, want)
	}
	if exists(f.top + "/site/prepared") {
		t.Error("the host sees what the script mounted")
	}
	if got := f.user(c, 5, "ls "+f.top+"/site /tmp"); !strings.Contains(got, "prepared") || !strings.Contains(got, "welcome") {
		t.Errorf("the job does not see what the script prepared: %q", got)
	}
	f.remove(c, 5)
	f.wantNothing()
}

func TestRootInitScriptFails(t *testing.T) {
	f := newFixture(t)
	tests := []struct{ name, body, want string }{
		{"exit code", "echo first; echo no space on scratch >&2; exit 3\n", "exit status 3"},
		{"output", "echo first; echo no space on scratch >&2; exit 3\n", `no space on scratch`},
		{"signal", "kill -SEGV $$\n", "segmentation fault"},
		{"hang", "sleep 1000 & sleep 1000\n", "no end after 200ms"},
		{"endless output", "yes\n", "no end after 200ms"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.script(tt.body)
			f.cfg.InitTimeout = 0
			if strings.HasPrefix(tt.want, "no end") {
				f.cfg.InitTimeout = 200 * time.Millisecond
			}
			c := f.plugin()
			start := time.Now()
			err := c.Create(t.Context(), 1, testUser)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "InitScript=") {
				t.Errorf("error %v, want one with %q and the knob", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error of more than one line: %q", err)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
			f.wantNothing()
			if ns, err := c.Join(1); err != nil || ns.Mount != nil {
				t.Error("a job whose script failed has a namespace")
			}
		})
	}
}

func TestRootInitScriptEndsWithItsRequest(t *testing.T) {
	f := newFixture(t)
	f.script("sleep 1000\n")
	c := f.plugin()
	gone := errors.New("the job was cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	c.hook = func(point string) error {
		if point == "unshared" {
			time.AfterFunc(50*time.Millisecond, func() { cancel(gone) })
		}
		return nil
	}
	if err := c.Create(ctx, 1, testUser); !errors.Is(err, gone) {
		t.Errorf("error %v, want one that says %q", err, gone)
	}
	f.wantNothing()
}

// A script that leaves a daemon behind does not hold the job up.
func TestRootInitScriptLeavesADaemon(t *testing.T) {
	f := newFixture(t)
	f.script("sleep 3 &\nexit 0\n")
	c := f.plugin()
	if err := c.Create(t.Context(), 1, testUser); err != nil {
		t.Fatal(err)
	}
	f.remove(c, 1)
}

func TestRootInitScriptOfOthersIsRefused(t *testing.T) {
	f := newFixture(t)
	marker := f.top + "/ran"
	tests := []struct {
		name  string
		spoil func() error
		want  string
	}{
		{"owned by a user", func() error { return os.Chown(f.top+"/init.sh", 7001, 7001) }, "uid 7001"},
		{"writable by all", func() error { return os.Chmod(f.top+"/init.sh", 0o777) }, "0777"},
		{"directory writable by all", func() error { return os.Chmod(f.top, 0o777) }, "others than root may write"},
		{"missing", func() error { return os.Remove(f.top + "/init.sh") }, "no such file"},
		{"directory", func() error {
			return errors.Join(os.Remove(f.top+"/init.sh"), os.Mkdir(f.top+"/init.sh", 0o755))
		}, "not a regular file"},
		{"not executable", func() error { return os.Chmod(f.top+"/init.sh", 0o644) }, "permission denied"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			os.Remove(f.top + "/init.sh")
			f.script("touch " + marker + "\n")
			// BasePath is made before the directory above it is spoilt.
			f.cfg.BasePath = "/var/tmp/" + f.top[len("/var/tmp/"):] + "-base"
			defer os.RemoveAll(f.cfg.BasePath)
			if err := os.Chmod(f.top, 0o755); err != nil {
				t.Fatal(err)
			}
			c := f.plugin()
			if err := tt.spoil(); err != nil {
				t.Fatal(err)
			}
			err := c.Create(t.Context(), 1, testUser)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "InitScript=") {
				t.Errorf("error %v, want one with %q and the knob", err, tt.want)
			}
			if exists(marker) {
				t.Error("it ran")
			}
			f.wantNothing()
		})
	}
}

// CloneNSScript and CloneNSEpilog run outside of the namespaces, which they can enter.
func TestRootCloneNSScripts(t *testing.T) {
	f := newFixture(t)
	log := f.top + "/log"
	write := func(name, body string) string {
		p := f.top + "/" + name
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	tell := func(who string) string {
		return `echo ` + who + ` $SLURM_JOB_ID $SLURM_JOB_UID $SLURM_NS $SLURM_JOB_MOUNTPOINT_SRC $(id -u) >> ` + log + `
nsenter --mount=$SLURM_NS sh -c 'ls /tmp' >> ` + log + "\n"
	}
	f.cfg.CloneNSScript = write("clone.sh", tell("script")+"nsenter --mount=$SLURM_NS touch /tmp/made\n")
	f.cfg.CloneNSEpilog = write("epilog.sh", tell("epilog")+"exit 1\n")
	c := f.plugin()
	f.create(c, 5)
	if got := f.user(c, 5, "ls /tmp"); got != "made" {
		t.Errorf("the job sees %q", got)
	}
	// The next noded knows whose job it was.
	if err := c.Fini(); err != nil {
		t.Fatal(err)
	}
	c, err := NewTmpfs(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	// That it fails is told, and holds up nothing.
	if err := c.Restore(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "cannot clean up after job 5: ") || !strings.Contains(err.Error(), "CloneNSEpilog=") {
		t.Errorf("Restore says %v", err)
	}
	f.wantNothing()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	words := " 5 7001 " + f.cfg.RunDir + "/5/ns " + f.cfg.BasePath + "/" + tagOfTests + "/5 0\n"
	if want := "script" + words + "epilog" + words + "made\n"; string(b) != want {
		t.Errorf("got:\n%swant:\n%s", b, want)
	}
	// An epilog that fails for what an earlier container has left keeps the job from nothing.
	var warned []error
	f.cfg.Warn = func(err error) { warned = append(warned, err) }
	c = f.plugin()
	f.create(c, 8)
	if err := c.Fini(); err != nil {
		t.Fatal(err)
	}
	if c, err = NewTmpfs(f.cfg); err != nil {
		t.Fatal(err)
	}
	f.create(c, 8)
	if len(warned) != 1 || !strings.Contains(warned[0].Error(), "cannot clean up after job 8: ") {
		t.Errorf("warned of %v", warned)
	}
	c.Delete(t.Context(), 8) // it says so again
	f.wantNothing()
	f.cfg.CloneNSScript = write("clone.sh", "echo no; exit 7\n")
	c = f.plugin()
	if err := c.Create(t.Context(), 6, testUser); err == nil || !strings.Contains(err.Error(), `exit status 7, it said "no" (CloneNSScript=`) {
		t.Errorf("got %v", err)
	}
	f.cfg.CloneNSScript = write("clone.sh", "exec sleep 86400\n")
	f.cfg.CloneNSScriptWait = 50 * time.Millisecond
	c = f.plugin()
	if err := c.Create(t.Context(), 7, testUser); err == nil || !strings.Contains(err.Error(), "no end after 50ms (CloneNSScript=") {
		t.Errorf("got %v", err)
	}
	f.wantNothing()
}
