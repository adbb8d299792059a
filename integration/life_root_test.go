package integration

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// life builds a plugin with init() and fini() that writes to marks.
func life(t testing.TB, n *node, name, marks string, flags ...string) string {
	t.Helper()
	so := n.path(name + ".so")
	compile(t, slices.Concat([]string{
		"-fPIC", "-shared", "-Wno-unused", "-I", ownHeaders, "-DNAME=\"" + name + "\"", "-DMARKS=\"" + marks + "\"",
		"testdata/plugins/life.c", "-o", so,
	}, flags)...)
	return so
}

// lives are the marks of a plugin in a context, without the contexts; marks of constructors and
// of init(), which know no context, come with every one.
func lives(t testing.TB, marks, context, name string) string {
	t.Helper()
	var out []string
	for _, l := range marksOf(t, marks, context) {
		if f := strings.Fields(l); f[0] == context && f[1] == name {
			out = append(out, strings.Join(f[2:], " "))
		}
	}
	return strings.Join(out, ", ")
}

// TestRootPluginLife: init() behind dlopen, and fini() before dlclose with destructors and atexit
// handlers, in every context and for each flag, in the order that was measured on Slurm 22.05.8.
// What init() knows no context in is measured, too. A thread that init() makes and fini() ends
// works in between.
func TestRootPluginLife(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	a, b := life(t, n, "a", marks), life(t, n, "b", marks, "-DTHREAD")
	n.kill9(t)
	n.write(t, "plugstack.conf", fmt.Sprintf("required %s\noptional %s\n", a, b))
	n.boot(t)
	const end = "fini(), destructor, atexit"
	check := func(processes int, contexts map[string]string) {
		t.Helper()
		all := readFile(t, marks)
		for context, hooks := range contexts {
			for hooks := range strings.SplitSeq(hooks, "; ") { // a process each
				if got := lives(t, marks, context, "a"); !strings.Contains(got, hooks+", "+end) {
					t.Errorf("context %s, a: %s, want %s", context, got, hooks)
				}
				// A thread's end may be later than its join: then dlclose waits for the process's.
				got := lives(t, marks, context, "b")
				if calls := strings.Count(hooks, ",") + 1; !strings.Contains(got, fmt.Sprintf("%s, fini(), joined %d, ", hooks, calls)) {
					t.Errorf("context %s, b: %s, want %s", context, got, hooks)
				}
			}
		}
		for what, of := range map[string][]string{"0": {"constructor", "init()"}, "": {"fini()", "destructor", "atexit"}} {
			for _, name := range []string{"a", "b"} {
				for _, mark := range of {
					if got := strings.Count(all, fmt.Sprintf("%s %s %s\n", what, name, mark)); got != processes {
						t.Errorf("%s %s: %d times of %d in:\n%s", name, mark, got, processes, all)
					}
				}
			}
		}
		if strings.Index(all, "0 a constructor\n") > strings.Index(all, "0 a init()\n") {
			t.Errorf("init() came before the constructor:\n%s", all)
		}
		must(t, os.Truncate(marks, 0))
	}
	must(t, os.Truncate(marks, 0))
	if r := n.ctl(t, "run", "true"); r.code != 0 || r.err != "" {
		t.Errorf("run: %v", r)
	}
	n.idle(t)
	const remote, scripts = "init, init_post_opt, user_init, task_post_fork, task_exit, exit", "job_prolog; job_epilog"
	check(4, map[string]string{"1": "init, init_post_opt, local_user_init, exit", "2": remote, "5": scripts})
	if r := n.ctl(t, "alloc", "-Q", "-n1", "true"); r.code != 0 || r.err != "" {
		t.Errorf("alloc: %v", r)
	}
	n.idle(t)
	check(2, map[string]string{"3": "init, init_post_opt, exit", "5": "job_epilog"})
	if r := n.ctl(t, "batch", "-W", "--wrap=true"); r.code != 0 {
		t.Errorf("batch: %v", r)
	}
	n.idle(t)
	check(4, map[string]string{"2": remote, "3": "init, init_post_opt, exit", "5": scripts})
	told := 0 // at -v also by hosts that fork nothing
	for l := range strings.Lines(n.wholeLog(t)) {
		if strings.Contains(l, "level=info") && strings.Contains(l, `b.so\": init(): left 1 thread running`) {
			told++
		}
	}
	if told != 2 {
		t.Errorf("the threads were told %d times in two steps", told)
	}
	must(t, n.cmd.Process.Signal(syscall.SIGTERM))
	<-n.done
	if got := lives(t, marks, "4", "a"); got != "slurmd_exit, "+end {
		t.Errorf("slurmd, a: %s", got)
	}
	contains(t, "slurmd, b", lives(t, marks, "4", "b"), "slurmd_exit, fini(), joined 2")
	n.boot(t)
	n.stack(t)
}

// TestRootPluginLifeOfFailures: as measured on Slurm 22.05.8, a hook that fails has fini() where it has
// exit, and else the destructors and atexit handlers alone.
func TestRootPluginLifeOfFailures(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	so := life(t, n, "a", marks)
	for _, c := range []struct{ verb, hook, context, want string }{
		{"run", "init", "1", "init, "},
		{"run", "init_post_opt", "1", "init, init_post_opt, "},
		{"run", "local_user_init", "1", "init, init_post_opt, local_user_init, exit, fini(), "},
		{"run", "user_init", "2", "init, init_post_opt, user_init, exit, fini(), "},
		{"run", "exit", "2", "init, init_post_opt, user_init, task_post_fork, task_exit, exit, fini(), "},
		{"run", "exit", "1", "init, init_post_opt, local_user_init, exit, fini(), "},
		{"run", "job_epilog", "5", "job_epilog, fini(), "},
		{"alloc", "init", "3", "init, "},
		{"alloc", "init_post_opt", "3", "init, init_post_opt, exit, fini(), "},
	} {
		n.stack(t, fmt.Sprintf("required %s %s", so, c.hook))
		must(t, os.Truncate(marks, 0))
		n.ctl(t, c.verb, "true")
		n.idle(t)
		got := lives(t, marks, c.context, "a")
		if !strings.Contains(got, c.want+"destructor, atexit") && !strings.Contains(got, c.want+"atexit, destructor") {
			t.Errorf("%s, %s fails: %s", c.verb, c.hook, got)
		}
		if c.hook == "job_epilog" {
			n.ctlRoot(t, "node", "resume")
		}
	}
}

// hosts are the titles of the processes that load plugins.
var hosts = map[string]string{"local": "[local]", "remote": ".0]", "job_script": "[job_script]", "allocator": "[allocator]"}

// TestRootInitRefuses: a plugin whose own init() returns anything but 0 does not load, as required
// or optional, and is closed without fini(); the plugins before it have theirs.
func TestRootInitRefuses(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	before := life(t, n, "before", marks)
	for _, rc := range []string{"1", "-1", "3000", "INT_MIN"} {
		for context, title := range hosts {
			so := life(t, n, "refuse", marks, "-include", "limits.h", "-DIN=\""+title+"\"", "-DBEGIN=return "+rc)
			if rc != "1" && context != "remote" {
				continue
			}
			for _, flag := range []string{"optional", "required"} {
				n.stack(t, "required "+before, flag+" "+so)
				must(t, os.Truncate(marks, 0))
				verb := "run"
				if context == "allocator" {
					verb = "alloc"
				}
				r := n.ctl(t, verb, "echo", "ran")
				n.idle(t)
				got := readFile(t, marks)
				refused := "0 refuse init()\n0 refuse destructor\n0 refuse atexit\n"
				contains(t, context+", "+flag, got, refused)
				if (r.code == 0 && strings.Contains(r.out, "ran")) != (flag == "optional") {
					t.Errorf("%s: %s, init() returns %s: %v", context, flag, rc, r)
				}
				if flag == "required" {
					contains(t, context, got, "0 before fini()\n0 before destructor\n0 before atexit\n")
				}
				const words = "Plugin init() callback failed with rc="
				switch {
				case flag == "required" && (context == "local" || context == "allocator"):
					contains(t, context, r.err, "stepctl: error: spank: "+so+": "+words)
				case flag == "required":
					n.logs(t, "spank: "+so+": "+words)
				case context == "local" || context == "allocator":
					contains(t, context, r.err, "Failed to load optional plugin "+so+". Ignored: its init() returned ")
				default:
					n.logs(t, "Failed to load optional plugin "+so+". Ignored: its init() returned ")
				}
				if context == "remote" && flag == "required" {
					n.explained(t, n.lastEnded(t).id(), `"refuse.so": init()`)
				}
				n.ctlRoot(t, "node", "resume") // of a prolog's failure
			}
		}
	}
}

// TestRootInitEnds: an init() that crashes, exits or hangs ends no daemon: the step or the command fails
// by name, a required plugin drains what its prolog would.
func TestRootInitEnds(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "HookTimeout=1\n"})
	marks := n.markFile(t)
	for do, why := range map[string]string{
		"abort()":          "init(): killed by SIGABRT",
		"exit(7)":          "init(): called exit(7)",
		"for (;;) pause()": "init(): did not return within 1s (HookTimeout in stepd.conf)",
	} {
		for context, title := range hosts {
			so := life(t, n, "ends", marks, "-DIN=\""+title+"\"", "-DBEGIN="+do)
			for _, flag := range []string{"optional", "required"} {
				n.stack(t, flag+" "+so)
				verb := "run"
				if context == "allocator" {
					verb = "alloc"
				}
				r := n.ctl(t, verb, "echo", "ran")
				n.idle(t)
				// A prolog goes on without an optional plugin, in a new host.
				if fails := context != "job_script" || flag == "required"; (r.code != 0) != fails {
					t.Errorf("%s: %s %s: %v", context, flag, do, r)
				}
				if context == "job_script" {
					n.logs(t, `plugin \"ends.so\": `+why)
				} else {
					contains(t, context, r.err, `plugin "ends.so": `+why)
				}
				n.ctlRoot(t, "node", "resume")
			}
		}
	}
}

// TestRootFiniEnds: what goes wrong in fini() is told and changes no step's result. On the local side
// exit(n) ends the command with n, as it ends srun.
func TestRootFiniEnds(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "HookTimeout=1\n"})
	marks := n.markFile(t)
	for do, why := range map[string]string{
		"abort()":          "fini(): killed by SIGABRT",
		"exit(7)":          "fini(): called exit(7)",
		"exit(0)":          "fini(): called exit(0)",
		"for (;;) pause()": "fini(): did not return within 1s (HookTimeout in stepd.conf)",
	} {
		for context, title := range hosts {
			so := life(t, n, "ends", marks, "-DIN=\""+title+"\"", "-DFINI="+do)
			for _, flag := range []string{"optional", "required"} {
				n.stack(t, flag+" "+so)
				verb := "run"
				if context == "allocator" {
					verb = "alloc"
				}
				r := n.ctl(t, verb, "sh", "-c", "echo ran; exit 3")
				n.idle(t)
				code := 3
				if ctx := context == "local" || context == "allocator"; ctx && strings.HasPrefix(do, "exit") {
					fmt.Sscanf(do, "exit(%d)", &code) // as srun's
				}
				if r.code != code || !strings.Contains(r.out, "ran\n") {
					t.Errorf("%s: %s %s: %v", context, flag, do, r)
				}
				if context == "job_script" {
					n.logs(t, `plugin \"ends.so\": `+why)
				} else {
					contains(t, context, r.err, `plugin "ends.so": `+why)
				}
				if context == "remote" {
					if doc := n.last(t); doc.State != "FAILED" || doc.ExitCode == nil || *doc.ExitCode != 3 {
						t.Errorf("%s %s: record %+v", flag, do, doc)
					}
				}
			}
		}
	}
	so := life(t, n, "ends", marks, "-DIN=\".0]\"", "-DFINI=abort()")
	n.stack(t, "required "+so)
	if r := n.ctl(t, "run", "true"); r.code != 0 {
		t.Errorf("all tasks have ended well: %v", r)
	}
	if doc := n.last(t); doc.State != "COMPLETED" || doc.Reason != "" {
		t.Errorf("all tasks have ended well: %+v", doc)
	}
	n.explained(t, n.last(t).id(), "ends.so", "fini()")
}

// TestRootInitOfItsOwn: init() and fini() of a library that the plugin needs are not the plugin's, nor are variables
// of these names. plugin_type names the interface, and another one's plugin is refused.
func TestRootInitOfItsOwn(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	compile(t, "-fPIC", "-shared", "testdata/plugins/lifelib.c", "-o", n.path("liblife.so"))
	lib := []string{"-Wl,--no-as-needed", "-L" + n.path(), "-llife", "-Wl,-rpath," + n.path()}
	for _, so := range []string{life(t, n, "library", marks, append(lib, "-DNEITHER")...), life(t, n, "variables", marks, "-DVARIABLES"), life(t, n, "minor", marks, `-DTYPE="spank/minor"`)} {
		n.stack(t, "required "+so)
		if r := n.ctl(t, "run", "echo", "ran"); r.out != "ran\n" || r.code != 0 {
			t.Errorf("%s: %v", so, r)
		}
	}
	for _, typ := range []string{"auth/munge", "spankx", "/spank"} {
		so := life(t, n, "type", marks, fmt.Sprintf("-DTYPE=%q", typ))
		why := fmt.Sprintf("%q is no SPANK plugin: its plugin_type is %q", so, typ)
		n.stack(t, "required "+so)
		must(t, os.Truncate(marks, 0))
		r := n.ctl(t, "run", "echo", "ran")
		if r.code != 1 || r.out != "" {
			t.Errorf("required, %s: %v", typ, r)
		}
		contains(t, typ, r.err, why)
		if strings.Contains(readFile(t, marks), "init()") {
			t.Errorf("%s: its init() was called", typ)
		}
		if r := n.ctlRoot(t, "plugins", "--check"); r.code != 1 {
			t.Errorf("%s: plugins --check: %v", typ, r)
		} else {
			contains(t, "plugins --check", r.out, why)
		}
		n.stack(t, "optional "+so)
		if r = n.ctl(t, "run", "echo", "ran"); r.code != 0 || r.out != "ran\n" {
			t.Errorf("optional, %s: %v", typ, r)
		}
		contains(t, typ, r.err, why)
	}
}

// TestRootCrashPlace: a crash is told with the object, its offset and the function, of the plugin itself and where it
// has called a library; it is explain's first finding, once, and an error in noded's log.
func TestRootCrashPlace(t *testing.T) {
	n := startNode(t, site{})
	marks := n.markFile(t)
	for _, c := range []struct{ hook, do, sig string }{
		{"init", "*(volatile int *)0 = 0", "SIGSEGV"},
		{"user_init", "__builtin_trap()", "SIGILL"},
		{"task_init_privileged", "*(volatile int *)0 = 0", "SIGSEGV"},
		{"task_init", "*(volatile int *)0 = 0", "SIGSEGV"},
		{"task_post_fork", "((void (*)(void))0)()", "SIGSEGV"},
		{"task_exit", "abort()", "SIGABRT"},
		{"exit", "strcpy(*argv - (uintptr_t)*argv, \"x\")", "SIGSEGV"},
	} {
		so := life(t, n, "crash", marks, "-fno-builtin", "-DTASK_HOOKS", `-DIN=".0]"`, "-DFAILS="+c.do)
		n.stack(t, "required "+so+" "+c.hook)
		r := n.ctl(t, "run", "sleep", "0.1")
		if r.code == 0 {
			t.Errorf("%s: %v", c.hook, r)
		}
		n.idle(t)
		first := regexp.MustCompile(`^killed by ` + c.sig + ` at ([^(]+, called at )?crash\.so\+0x[0-9a-f]+ in slurm_spank_` + c.hook + `(, rank 0)?` +
			`\nthere: (.*, called at )?slurm_spank_` + c.hook + `\+0x[0-9a-f]+$`)
		x := n.explained(t, n.last(t).id())
		told := ""
		if len(x.Findings) > 0 {
			told = x.Findings[0].Text + "\n" + x.Findings[0].Detail
		}
		if !first.MatchString(told) {
			t.Errorf("%s: the first finding is %q", c.hook, told)
		}
		for _, f := range x.Findings[1:] {
			if regexp.MustCompile(`slurm_spank_`+c.hook+`[^_,]`).MatchString(f.Text) && f.Kind == "plugin" {
				t.Errorf("%s: %q is followed by %q", c.hook, told, f.Text)
			}
		}
		reason := n.last(t).Reason
		contains(t, "stderr", r.err, ": error: "+reason+"\n")
		n.logs(t, "level=error msg=\""+strings.ReplaceAll(reason, `"`, `\"`)+"\"")
		must(t, os.Truncate(marks, 0))
	}
	form := regexp.MustCompile(`^time="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)" level=\w+ msg=`)
	for line := range strings.Lines(n.wholeLog(t)) {
		if strings.HasPrefix(line, "time=") && !form.MatchString(line) {
			t.Errorf("the log has a time of another form: %s", line)
		}
	}
}

// TestRootSlurmdLife: init() and fini() in slurmd context: what goes wrong in init() keeps noded from starting with a
// required plugin alone, and nothing in fini() keeps it from its stop.
func TestRootSlurmdLife(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "HookTimeout=1\n"})
	marks := n.markFile(t)
	n.kill9(t)
	const slurmd = `-DIN="[slurmd]"`
	for do, why := range map[string]string{
		"return 1":         "init() returned 1",
		"abort()":          "init(): killed by SIGABRT",
		"exit(7)":          "init(): called exit(7)",
		"for (;;) pause()": "init(): did not return within 1s (HookTimeout in stepd.conf)",
	} {
		so := life(t, n, "ends", marks, slurmd, "-DBEGIN="+do)
		n.write(t, "plugstack.conf", "optional "+so+"\n")
		n.boot(t)
		contains(t, do, n.wholeLog(t), why)
		must(t, n.cmd.Process.Signal(syscall.SIGTERM))
		<-n.done
		n.write(t, "plugstack.conf", "required "+so+"\n")
		code, out := runNoded(t, nil, "-f", n.path("slurm.conf"), "--run-dir", n.run, "--spool-dir", n.path("spool"))
		if code != 1 || !strings.Contains(out, "cannot start with the plugin stack") || !strings.Contains(out, "init()") {
			t.Errorf("required, %s: exit code %d: %s", do, code, out)
		}
	}
	for do, why := range map[string]string{
		"abort()":          "fini(): killed by SIGABRT",
		"exit(7)":          "fini(): called exit(7)",
		"for (;;) pause()": "fini(): did not return within 1s (HookTimeout in stepd.conf)",
	} {
		for _, flag := range []string{"optional", "required"} {
			so := life(t, n, "ends", marks, slurmd, "-DFINI="+do)
			n.write(t, "plugstack.conf", flag+" "+so+"\n")
			n.boot(t)
			must(t, n.cmd.Process.Signal(syscall.SIGTERM))
			<-n.done
			if code := n.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("%s %s: exit code %d", flag, do, code)
			}
			n.logs(t, why)
		}
	}
	n.write(t, "plugstack.conf", "")
	n.boot(t)
}
