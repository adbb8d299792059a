package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// userLoads is what a user sets to have programs load things, preload aside.
var userLoads = []string{"LD_LIBRARY_PATH=/user/lib", "LD_AUDIT=/user/audit.so", "GCONV_PATH=/user/gconv", "MINE=user", "PATH=/user/bin:/usr/bin:/bin"}

// TestRootHostEnvironment: what a plugin's process has in its environment, in each hook of each
// context, for a required and an optional plugin. On the node it is noded's own, PATH and what
// ld.so reads with it, and nothing of the user's; on the user's side the user's, of which ld.so
// does not know. Nothing of noded's is in a task, a record or the spool.
func TestRootHostEnvironment(t *testing.T) {
	waits(t)
	lib, err := os.MkdirTemp(workRoot, "stepd-it-lib-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(lib) })
	must(t, os.Chmod(lib, 0o755))
	const secret = "MuZ3-not-for-users"
	n := startNode(t, site{Before: []string{
		"env", "PATH=" + lib + ":/usr/bin:/bin", "LD_LIBRARY_PATH=" + lib, "SITE_TOKEN=" + secret, "NOTIFY_SOCKET=/nonexistent", "GOMAXPROCS=2", "SLURM_JOB_ID=4711", "MINE=noded",
	}})
	compile(t, "-fPIC", "-shared", "testdata/preload.c", "-o", filepath.Join(lib, "libnodes.so"))
	must(t, os.WriteFile(filepath.Join(lib, "nodestool"), []byte("#!/bin/sh\necho found\n"), 0o755))
	so := n.path("environ.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/environ.c", "-ldl", "-o", so)
	lines := []string{}
	for _, kind := range []string{"required", "optional"} {
		must(t, os.Mkdir(n.path(kind), 0o777))
		must(t, os.Chmod(n.path(kind), 0o777))
		lines = append(lines, kind+" "+so+" "+n.path(kind))
	}
	n.stack(t, lines...)
	n.shutdown(t) // the slurmd context loads the stack when noded starts
	n.boot(t)
	r := n.do(t, call{args: []string{"run", "env"}, env: userLoads})
	if r.code != 0 {
		t.Fatal(r)
	}
	n.idle(t)
	task := environment(r.out)
	for _, e := range userLoads {
		if name, value, _ := strings.Cut(e, "="); task[name] != value {
			t.Errorf("the task has %s=%q, want the user's %q", name, task[name], value)
		}
	}
	if strings.Contains(r.out, secret) {
		t.Errorf("noded's SITE_TOKEN is in the task's environment: %s", r.out)
	}
	n.shutdown(t)
	contexts := map[string][]string{
		"1": {"init", "init_post_opt", "local_user_init", "exit"},
		"2": {"init", "init_post_opt", "user_init", "task_init_privileged", "task_post_fork", "task_init", "task_exit", "exit"},
		"4": {"init", "slurmd_exit"},
		"5": {"job_prolog", "job_epilog"},
	}
	for _, kind := range []string{"required", "optional"} {
		for context, hooks := range contexts {
			for _, hook := range hooks {
				got := environment(readFile(t, n.path(kind, hook+"."+context)))
				want := map[string]string{
					"PATH": lib + ":/usr/bin:/bin", "LD_LIBRARY_PATH": lib, "SITE_TOKEN": secret, "MINE": "noded", "dlopen": "found", "tool": "found",
					"NOTIFY_SOCKET": "", "LD_AUDIT": "", "GCONV_PATH": "", "SLURM_CONF": n.path("slurm.conf"), "GOMAXPROCS": "",
				}
				switch context {
				case "1":
					want = map[string]string{"SITE_TOKEN": "", "dlopen": "missing", "tool": ""}
					for _, e := range userLoads {
						name, value, _ := strings.Cut(e, "=")
						want[name] = value
					}
				case "2":
					want["SLURMD_NODENAME"], want["SLURM_MPI_TYPE"], want["SLURM_JOB_ID"] = "vm", "none", "4711"
				case "4":
					want["GOMAXPROCS"] = "2" // noded's
				case "5":
					want["SLURMD_NODENAME"], want["SLURM_JOB_ID"], want["SLURM_SCRIPT_CONTEXT"] = "vm", "1", strings.TrimPrefix(hook, "job_")+"_slurmd"
				}
				for name, value := range want {
					if got[name] != value {
						t.Errorf("%s, %s in context %s: %s=%q, want %q", kind, hook, context, name, got[name], value)
					}
				}
			}
		}
	}
	must(t, filepath.WalkDir(n.path("spool"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(readFile(t, path), secret) {
			t.Errorf("%s has noded's SITE_TOKEN", path)
		}
		return err
	}))
	if strings.Contains(n.log.String(), secret) {
		t.Error("noded's log has its SITE_TOKEN")
	}
}

// TestRootUserPreload: a library that writes to stdout, preloaded by the user, is in the user's
// tasks, and between no words of ours: the name service is asked by a helper that reads none of
// the user's environment, as is a private noded started.
func TestRootUserPreload(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := n.path("preload.so")
	compile(t, "-fPIC", "-shared", "testdata/preload.c", "-o", so)
	user := testUser(t)
	plugin := n.path("environ.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/environ.c", "-ldl", "-o", plugin)
	must(t, os.Mkdir(n.path("seen"), 0o777))
	must(t, os.Chmod(n.path("seen"), 0o777))
	n.stack(t, "required "+plugin+" "+n.path("seen"))
	env := []string{"LD_PRELOAD=" + so}
	for _, c := range []call{
		{args: []string{"run", "printenv", "LD_PRELOAD"}},
		{args: []string{"run", "--uid", user.name, "--gid", fmt.Sprint(user.gid), "printenv", "LD_PRELOAD"}, root: true},
		{args: []string{"run", "--standalone", "--uid", user.name, "-D", "/", "printenv", "LD_PRELOAD"}, root: true},
		{args: []string{"alloc", "printenv", "LD_PRELOAD"}},
	} {
		c.env = env
		if r := n.do(t, c); r.code != 0 || r.out != "preloaded "+so+"\n" || strings.Contains(r.err, "error") {
			t.Errorf("stepctl %q: %v", c.args, r)
		}
	}
	for _, hook := range []string{"init.1", "init_post_opt.1", "local_user_init.1", "exit.1", "init.3", "exit.3"} {
		if got := environment(readFile(t, n.path("seen", hook)))["LD_PRELOAD"]; got != so {
			t.Errorf("getenv in %s: LD_PRELOAD=%q, want the user's %q", hook, got, so)
		}
	}
	for _, hook := range []string{"init.2", "task_init.2", "exit.2"} {
		if got := environment(readFile(t, n.path("seen", hook)))["LD_PRELOAD"]; got != "" {
			t.Errorf("getenv in %s: LD_PRELOAD=%q, and nothing of the user's belongs there", hook, got)
		}
	}
}
