package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// buildKind compiles one of the plugins of testdata/plugins.
func buildKind(t testing.TB, n *node, file string, flags ...string) string {
	t.Helper()
	so := n.path(strings.TrimSuffix(file, filepath.Ext(file)) + ".so")
	args := append([]string{"-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/" + file, "-o", so}, flags...)
	if filepath.Ext(file) == ".c" {
		compile(t, args...)
		return so
	}
	if _, err := exec.LookPath("g++"); err != nil {
		missing(t, "no C++ compiler: apt-get install g++")
	}
	out, err := exec.Command("g++", append([]string{"-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("g++ %v: %v\n%s", args, err, out)
	}
	return so
}

// TestRootKindNamespace: what a plugin mounts in init_post_opt is the tasks',
// and no other process's.
func TestRootKindNamespace(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	dir := n.path("private")
	must(t, os.Mkdir(dir, 0o755))
	n.stack(t, "required "+buildKind(t, n, "nsmount.c")+" "+dir)
	r := n.ctl(t, "run", "-n", "2", "sh", "-c", "ls "+dir+"; touch "+dir+"/by.$SLURM_PROCID; stat -f -c %T "+dir)
	if r.code != 0 || r.err != "" || strings.Count(r.out, "made-by-plugin\n") != 2 || strings.Count(r.out, "tmpfs\n") != 2 {
		t.Errorf("got %v", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the node sees %v, %v", left, err)
	}
	n.checkClean(t)
}

// TestRootKindUserNamespace: tasks join a helper's user namespace in task_init,
// as pyxis does: they are single-threaded, and the helper ends with the step.
func TestRootKindUserNamespace(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	dir := n.path("inside")
	must(t, os.Mkdir(dir, 0o755))
	n.stack(t, "required "+buildKind(t, n, "userns.c")+" "+dir)
	r := n.ctl(t, "run", "-n", "2", "sh", "-c", "echo $(id -u) $(stat -f -c %T "+dir+") $(cat /proc/self/uid_map)")
	want := fmt.Sprintf("0 tmpfs 0 %d 1\n", testUser(t).uid)
	if r.code != 0 || r.out != want+want || r.err != "" {
		t.Errorf("want %q twice, got %v", want, r)
	}
	n.checkClean(t)
}

// TestRootKindRobustMutex: the tasks are forked by glibc's fork, which keeps
// robust mutexes whole: the next one learns that the owner has died.
func TestRootKindRobustMutex(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	n.stack(t, "required "+buildKind(t, n, "mutex.c")+" 2")
	r := n.ctl(t, "run", "-n", "8", "true")
	if r.code != 9 {
		t.Errorf("want 9, rank 2's own: %v", r)
	}
	contains(t, "stderr", r.err, `plugin "mutex.so": slurm_spank_task_init (rank 2): called exit(9)`)
	step := n.lastEnded(t)
	for _, task := range step.Tasks {
		if (task.State == "FAILED") != (task.Rank == 2) {
			t.Errorf("rank %d: state %s", task.Rank, task.State)
		}
	}
	n.logs(t, "mutex: count=8 died=1 told=1")
	n.checkClean(t)
}

// TestRootKindExec: a plugin executes a program itself in task_init; the task
// is that program.
func TestRootKindExec(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	n.stack(t, "required "+buildKind(t, n, "execself.c"))
	r := n.ctl(t, "run", "-n", "2", "echo", "never")
	if r.code != 5 || r.out != "from the plugin\nfrom the plugin\n" {
		t.Errorf("got %v", r)
	}
	if doc := n.lastEnded(t); doc.State != "FAILED" || doc.Tasks[1].ExitCode == nil || *doc.Tasks[1].ExitCode != 5 {
		t.Errorf("record %+v", doc)
	}
	events := n.ctl(t, "events", n.last(t).id())
	if strings.Count(events.out, `"task_exec"`) != 2 {
		t.Errorf("want a task_exec of each rank, got %v", events)
	}
	n.checkClean(t)
}

// TestRootKindCxx: a plugin in C++ with a global constructor, exceptions and a
// thread; an exception that leaves a hook ends the host alone, by name.
func TestRootKindCxx(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildKind(t, n, "cxx.cc")
	n.stack(t, "required "+so)
	if r := n.ctl(t, "run", "sh", "-c", "echo $FROM_CXX"); r.code != 0 || r.out != "made before init, caught inside, 42\n" || r.err != "" {
		t.Errorf("got %v", r)
	}
	n.stack(t, "required "+so+" throw=task_init")
	r := n.ctl(t, "run", "-n", "2", "true")
	if r.code != 1 || !strings.Contains(r.err, `plugin "cxx.so": slurm_spank_task_init (rank 1): killed by SIGABRT`) {
		t.Errorf("got %v", r)
	}
	n.stack(t, "required "+so+" throw=init")
	r = n.ctl(t, "run", "true")
	if r.code != 1 || !strings.Contains(r.err, `plugin "cxx.so": slurm_spank_init: killed by SIGABRT`) {
		t.Errorf("got %v", r)
	}
	n.checkClean(t)
}

const luaScript = `
local calls = {}
function slurm_spank_init()
  spank.option{name = "greet", arg = "name", usage = "greets"}
  greeting = "nobody"
  calls[#calls + 1] = "init"
end
function on_option(name, arg, remote) if remote then greeting = arg end end
function slurm_spank_init_post_opt() calls[#calls + 1] = "post_opt:" .. greeting end
function slurm_spank_user_init() spank.setenv("GREETING", "hello " .. greeting); calls[#calls + 1] = "user_init" end
function slurm_spank_task_init_privileged() calls[#calls + 1] = "privileged:" .. spank.rank end
function slurm_spank_task_post_fork() calls[#calls + 1] = "post_fork:" .. spank.rank end
function slurm_spank_task_init() spank.setenv("CALLS", table.concat(calls, " ") .. " for " .. spank.getenv("SLURM_PROCID")) end
function slurm_spank_task_exit() calls[#calls + 1] = "task_exit:" .. spank.rank .. "=" .. spank.status end
function slurm_spank_exit() if spank.context == 2 then spank.log("lua: " .. table.concat(calls, " ")) end end
`

// TestRootKindLua: a plugin that embeds an interpreter, with a script for all
// hooks, keeps its state through them and across the forks.
func TestRootKindLua(t *testing.T) {
	waits(t)
	if _, err := os.Stat("/usr/include/lua5.4/lua.h"); err != nil {
		missing(t, "no Lua: apt-get install liblua5.4-dev")
	}
	n := startNode(t, site{})
	so := buildKind(t, n, "luahost.c", "-I/usr/include/lua5.4", "-llua5.4")
	n.stack(t, "required "+so+" "+n.write(t, "all.lua", luaScript))
	r := n.ctl(t, "run", "--greet=world", "-n", "2", "sh", "-c", `echo "$GREETING; $CALLS"; exit $SLURM_PROCID`)
	want := func(rank int) string {
		return fmt.Sprintf("hello world; init post_opt:world user_init privileged:%d for %d\n", rank, rank)
	}
	if r.code != 1 || r.out != want(0)+want(1) && r.out != want(1)+want(0) {
		t.Errorf("want %q and %q, got %v", want(0), want(1), r)
	}
	n.logs(t, "lua: init post_opt:world user_init post_fork:0 post_fork:1 task_exit:", "task_exit:0=0", "task_exit:1=256")
	n.stack(t, "required "+so+" "+n.write(t, "bad.lua", "function slurm_spank_user_init() error('on purpose') end"))
	if r = n.ctl(t, "run", "true"); !strings.Contains(r.err, "stepd-vm: error: luahost: slurm_spank_user_init:") || !strings.Contains(r.err, "on purpose") {
		t.Errorf("an error in the script: %v", r)
	}
	n.checkClean(t)
}
