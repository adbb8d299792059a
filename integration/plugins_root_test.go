package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildOption builds a plugin with options.
func buildOption(t testing.TB, n *node, name string, flags ...string) string {
	t.Helper()
	so := n.path(name + ".so")
	compile(t, append(append([]string{"-fPIC", "-shared", "-I", ownHeaders}, flags...), "testdata/plugins/option.c", "-o", so)...)
	return so
}

// pluginsDoc is the document of `stepctl plugins --json`.
type pluginsDoc struct {
	Schema    int    `json:"schema"`
	Plugstack string `json:"plugstack"`
	Plugins   []struct {
		Path     string   `json:"path"`
		File     string   `json:"file"`
		Line     int      `json:"line"`
		Required bool     `json:"required"`
		Args     []string `json:"args"`
		State    string   `json:"state"`
		Problem  string   `json:"problem"`
		Release  string   `json:"release"`
		Hooks    []string `json:"hooks"`
		Options  []struct {
			Name   string `json:"name"`
			HasArg int    `json:"has_arg"`
		} `json:"options"`
		Missing []struct {
			Symbol string `json:"symbol"`
			Fatal  bool   `json:"fatal"`
		} `json:"missing"`
	} `json:"plugins"`
	Findings []struct {
		Severity string `json:"severity"`
		File     string `json:"file"`
		Line     int    `json:"line"`
		Text     string `json:"text"`
		Remedy   string `json:"remedy"`
	} `json:"findings"`
}

func parsePlugins(t testing.TB, r result) pluginsDoc {
	t.Helper()
	var doc pluginsDoc
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || doc.Schema != 1 {
		t.Fatalf("schema %d, %v, %v", doc.Schema, err, r)
	}
	return doc
}

// TestRootPluginsList: the stack as a step would load it, for a user.
func TestRootPluginsList(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	opt := buildOption(t, n, "opt", `-DOPTION="table"`, `-DREGISTERED="registered"`)
	fn := n.path("fn.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "-DUNDEFINED_FUNCTION", "-DVERSION=0x170207", "testdata/plugins/bad.c", "-o", fn)
	must(t, os.Mkdir(n.path("inc.d"), 0o755))
	n.write(t, "inc.d/1.conf", "\noptional "+fn+" one two # three\n")
	n.stack(t, "required "+opt, "include inc.d/*")

	r := n.ctl(t, "plugins")
	if r.code != 0 || r.err != "" {
		t.Errorf("got %v", r)
	}
	contains(t, "the list", r.out,
		n.path("plugstack.conf")+":1  required  "+opt+"\n", "options    --table=WHAT, --registered\n", "hooks      slurm_spank_init\n",
		n.path("inc.d/1.conf")+":2  optional  "+fn+"\n", "arguments  one two\n", "release    23.02.7\n", "missing    no_such_function_xyz\n")

	doc := parsePlugins(t, n.ctl(t, "plugins", "--json"))
	if doc.Plugstack != n.path("plugstack.conf") || len(doc.Plugins) != 2 {
		t.Fatalf("got %+v", doc)
	}
	a, b := doc.Plugins[0], doc.Plugins[1]
	if a.Path != opt || a.Line != 1 || !a.Required || a.State != "found" || len(a.Options) != 2 || a.Options[0].HasArg != 1 || a.Problem != "" {
		t.Errorf("got %+v", a)
	}
	if b.File != n.path("inc.d/1.conf") || b.Line != 2 || b.Required || fmt.Sprint(b.Args) != "[one two]" || b.Release != "23.02.7" ||
		fmt.Sprint(b.Hooks) != "[slurm_spank_task_init]" || len(b.Missing) != 1 || b.Missing[0].Fatal {
		t.Errorf("got %+v", b)
	}

	t.Run("another file", func(t *testing.T) {
		other := n.write(t, "other.conf", "optional "+opt+"\n")
		if doc := parsePlugins(t, n.ctl(t, "plugins", "--json", other)); doc.Plugstack != other || len(doc.Plugins) != 1 {
			t.Errorf("got %+v", doc)
		}
		must(t, os.WriteFile(filepath.Join(n.wd, "mine.conf"), []byte("optional "+opt+"\n"), 0o644))
		if doc := parsePlugins(t, n.ctl(t, "plugins", "--json", "mine.conf")); doc.Plugstack != filepath.Join(n.wd, "mine.conf") || len(doc.Plugins) != 1 {
			t.Errorf("relative: %+v", doc)
		}
		if r := n.ctl(t, "plugins", "none.conf"); r.code != 1 || !strings.Contains(r.err, "none.conf") {
			t.Errorf("one that is not there: %v", r)
		}
	})
	t.Run("without noded", func(t *testing.T) {
		gone := "NODED_SOCKET=" + n.path("none.sock")
		r := n.do(t, call{args: []string{"plugins", "--json", n.path("plugstack.conf")}, env: []string{gone}})
		if doc := parsePlugins(t, r); r.code != 0 || len(doc.Plugins) != 2 || len(doc.Plugins[0].Options) != 2 {
			t.Errorf("got %v", r)
		}
		if r := n.do(t, call{args: []string{"plugins"}, env: []string{gone}}); r.code != 1 || !strings.Contains(r.err, "none.sock") {
			t.Errorf("no file either: %v", r)
		}
	})
	t.Run("no stack", func(t *testing.T) {
		must(t, os.Remove(n.path("plugstack.conf")))
		if r := n.ctl(t, "plugins"); r.code != 0 || r.out+r.err != "" {
			t.Errorf("got %v", r)
		}
		if doc := parsePlugins(t, n.ctl(t, "plugins", "--json")); doc.Plugins == nil || doc.Findings == nil {
			t.Error("want empty lists, not null")
		}
	})
}

// TestRootPluginsCheck has each kind of finding, the exit code, and what noded
// --check and a required plugin make of it.
func TestRootPluginsCheck(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "HookTimeout=1\n"})
	conf := n.path("plugstack.conf")
	bad := func(name string, flags ...string) string {
		so := n.path(name + ".so")
		compile(t, append(append([]string{"-fPIC", "-shared", "-I", ownHeaders}, flags...), "testdata/plugins/bad.c", "-o", so)...)
		return so
	}
	good := bad("good")
	theirs := bad("theirs")
	must(t, os.Chown(theirs, int(testUser(t).uid), 0))
	open := bad("open")
	must(t, os.Chmod(open, 0o757))
	group := bad("group")
	must(t, os.Chown(group, 0, int(testUser(t).gid)))
	must(t, os.Chmod(group, 0o775))
	secret := bad("secret")
	must(t, os.Chmod(secret, 0o750))
	x, y := buildOption(t, n, "x", `-DOPTION="same"`), buildOption(t, n, "y", `-DREGISTERED="same"`)
	clash := buildOption(t, n, "clash", `-DOPTION="ntasks"`)
	must(t, os.Mkdir(n.path("inc.d"), 0o755))
	n.write(t, "inc.d/a.conf", "optional "+good+"\n")
	n.write(t, "inc.d/a.conf.rpmsave", "required /nonexistent.so\n")
	must(t, syscall.Mkfifo(n.path("fifo"), 0o600))
	must(t, os.Mkdir(n.path("drop.d"), 0o777))
	must(t, os.Chmod(n.path("drop.d"), 0o777))
	n.write(t, "drop.d/a.conf", "")
	for _, c := range []struct {
		name  string
		lines []string
		code  int
		says  []string // at the first line, if they begin with a colon
	}{
		{"nothing wrong", []string{"required " + good, "# required"}, 0, nil},
		{"a slip of the pen", []string{"required " + bad("slip", "-DSLIP")}, 0, []string{":1: warning: ", "slurm_spank_user_int", "did you mean slurm_spank_user_init?"}},
		{"a constructor that does not return", []string{"required " + bad("constructor", "-DCONSTRUCTOR")}, 1, []string{":1: error: ", "dlopen: did not return within 1s"}},
		{"an option of run alone", []string{"required " + x}, 0, []string{":1: warning: ", "--same", "for run alone", "spank_option_register()"}},
		{"an unknown word", []string{"mandatory " + good}, 1, []string{":1: error: ", "mandatory", "required, optional or include"}},
		{"an unreadable include", []string{"optional " + good, "include fifo"}, 1, []string{": error: ", "include in " + conf + ":2", "fifo"}},
		{"a loop", []string{"include plugstack.conf"}, 1, []string{": error: ", "include loop"}},
		{"required and missing", []string{"required /nonexistent.so"}, 1, []string{":1: error: ", "/nonexistent.so", "No such file"}},
		{"optional and missing", []string{"optional /nonexistent.so"}, 0, []string{":1: warning: ", "/nonexistent.so"}},
		{"required and incompatible", []string{"required " + bad("newer", "-DVERSION=0x630b00")}, 1, []string{":1: error: ", "99.11", "SpankAllowReleases=99.11"}},
		{"optional and incompatible", []string{"optional " + bad("r2011", "-DVERSION=1")}, 0, []string{":1: warning: ", "20.11"}},
		{"a missing variable", []string{"required " + bad("data", "-DUNDEFINED_DATA")}, 1, []string{":1: error: ", "no_such_data_xyz"}},
		{"a missing variable, optional", []string{"optional " + bad("data", "-DUNDEFINED_DATA")}, 0, []string{":1: warning: ", "no_such_data_xyz"}},
		{"a missing function", []string{"required " + bad("fn", "-DUNDEFINED_FUNCTION")}, 0, []string{":1: warning: ", "no_such_function_xyz"}},
		{"a missing function, bound at once", []string{"required " + bad("now", "-DUNDEFINED_FUNCTION", "-Wl,-z,now")}, 1, []string{":1: error: ", "no_such_function_xyz"}},
		{"no plugin", []string{"required " + n.path("slurm.conf")}, 1, []string{":1: error: ", "invalid ELF header"}},
		{"not root's", []string{"required " + theirs}, 0, []string{":1: warning: ", "belongs to uid 7001", "chown root " + theirs}},
		{"everybody's", []string{"required " + open}, 0, []string{":1: warning: ", "may be written by everybody", "chmod o-w " + open}},
		{"a group's", []string{"required " + group}, 0, []string{":1: warning: ", "may be written by group 7001", "chmod g-w " + group}},
		{"a directory of everybody's", []string{"include drop.d/a.conf"}, 0, []string{"warning: ", `drop.d" may be written by everybody`}},
		{"not for users", []string{"optional " + secret}, 0, []string{":1: warning: ", "may not be read by all users"}},
		{"leftovers", []string{"include inc.d/*"}, 0, []string{":1: warning: ", "a.conf.rpmsave", "left over"}},
		{"a shadowed option", []string{"optional " + x, "optional " + y}, 0, []string{":2: warning: ", "--same", conf + ":1"}},
		{"stepctl's own option", []string{"optional " + clash}, 0, []string{":1: warning: ", "--ntasks", "stepctl"}},
		{"a crash in init", []string{"required " + x + " crash"}, 1, []string{":1: error: ", "slurm_spank_init", "SIGSEGV"}},
		{"a hang in init", []string{"optional " + x + " hang"}, 0, []string{":1: warning: ", "slurm_spank_init", "HookTimeout"}},
		{"a failure of init", []string{"required " + x + " fail"}, 1, []string{":1: error: ", "slurm_spank_init"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.stack(t, c.lines...)
			r := n.ctlRoot(t, "plugins", "--check")
			if r.code != c.code || r.err != "" {
				t.Errorf("want exit code %d, got %v", c.code, r)
			}
			if c.says == nil {
				if r.out != "1 plugin, no problem\n" {
					t.Errorf("told %q", r.out)
				}
				return
			}
			contains(t, "the finding", r.out, c.says...)
			for line := range strings.Lines(r.out) {
				if !strings.HasPrefix(line, n.dir) || !strings.Contains(line, ": error: ") && !strings.Contains(line, ": warning: ") {
					t.Errorf("no line of the form FILE:LINE: SEVERITY: %q", line)
				}
			}
			list := n.ctlRoot(t, "plugins")
			if list.code != 0 {
				t.Errorf("a list is no check: %v", list)
			}
			contains(t, "the list", list.out, c.says[1:]...)
			doc := n.ctlRoot(t, "plugins", "--check", "--json")
			if found := parsePlugins(t, doc).Findings; doc.code != c.code || len(found) == 0 || (found[0].Severity == "error") != (c.code == 1) {
				t.Errorf("as a document: %v", doc)
			}
		})
	}
	t.Run("batch and an option of run", func(t *testing.T) {
		n.stack(t, "required "+x)
		if r := n.ctl(t, "batch", "--same=1", "--wrap", "true"); r.code != 1 || r.err != `stepctl: error: unknown option --same: plugin "option" registers it for run alone`+"\n" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("RequireSafePlugins", func(t *testing.T) {
		other := startNode(t, site{Stepd: "RequireSafePlugins=yes\n"})
		other.stack(t, "optional "+open)
		if r := other.ctlRoot(t, "plugins", "--check"); r.code != 1 || !strings.Contains(r.out, "plugstack.conf:1: error: ") || !strings.Contains(r.out, "may be written by everybody") {
			t.Errorf("got %v", r)
		}
		if r := other.ctl(t, "run", "echo", "ran"); r.code != 1 || r.out != "" || !strings.Contains(r.err, "plugstack.conf:1: ") ||
			!strings.Contains(r.err, "may be written by everybody") || !strings.Contains(r.err, "chmod o-w "+open) {
			t.Errorf("a step: %v", r)
		}
		must(t, os.Chmod(open, 0o755))
		if r := other.ctl(t, "run", "echo", "ran"); r.code != 0 || r.out != "ran\n" {
			t.Errorf("once it is safe: %v", r)
		}
		// The client's look is not the prolog's, which comes before stepd's.
		other.stack(t, "optional "+x+" open="+open, "optional "+open)
		r := other.ctlRoot(t, "run", "--uid", "7001", "echo", "ran")
		if r.code != 182 || r.out != "" || !strings.Contains(r.err, "plugstack.conf:2: ") || !strings.Contains(r.err, "chmod o-w "+open) {
			t.Errorf("opened after the client has looked: %v", r)
		}
		if doc := other.lastEnded(t); doc.State != "FAILED" || !strings.Contains(doc.Reason, "may be written by everybody") {
			t.Errorf("the step: %+v", doc)
		}
	})
}

// nodePlugins are plugins[] of node status.
func (n *node) nodePlugins(t testing.TB) []nodePlugin {
	t.Helper()
	r := n.ctl(t, "node", "status", "--json")
	var doc struct {
		Node struct {
			Plugins []nodePlugin `json:"plugins"`
		} `json:"node"`
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 || doc.Node.Plugins == nil {
		t.Fatalf("%v, %v", err, r)
	}
	return doc.Node.Plugins
}

type nodePlugin struct {
	Path     string   `json:"path"`
	File     string   `json:"file"`
	Line     int      `json:"line"`
	Required bool     `json:"required"`
	State    string   `json:"state"`
	Problem  string   `json:"problem"`
	Release  string   `json:"release"`
	Hooks    []string `json:"hooks"`
}

// TestRootPlugstackWatch: noded reports a change in its log, once, and in its
// status, at once.
func TestRootPlugstackWatch(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := n.path("good.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/bad.c", "-o", so)
	must(t, os.Mkdir(n.path("inc.d"), 0o755))
	logged := func(what string, count int) {
		t.Helper()
		eventually(t, callTimeout, "noded's log", func() error {
			if got := strings.Count(n.log.String(), what); got != count {
				return fmt.Errorf("%q is there %d times, want %d", what, got, count)
			}
			return nil
		})
	}
	n.stack(t, "required "+so, "include inc.d/*")
	if p := n.nodePlugins(t); len(p) != 1 || p[0].State != "found" || p[0].Problem != "" || p[0].Line != 1 || !p[0].Required ||
		p[0].Release != "26.05.0" || fmt.Sprint(p[0].Hooks) != "[slurm_spank_task_init]" {
		t.Errorf("got %+v", p)
	}

	// In a file of an include, by rename.
	n.write(t, "new", "mandatory x.so\n")
	must(t, os.Rename(n.path("new"), n.path("inc.d/1.conf")))
	logged(`level=error msg="plugstack: `+n.path("inc.d/1.conf")+`:1: Invalid line. Ignoring. The word \"mandatory\"`, 1)
	if p := n.nodePlugins(t); len(p) != 2 || p[1].State != "error" || p[1].Path != n.path("inc.d/1.conf") || !strings.Contains(p[1].Problem, "mandatory") {
		t.Errorf("got %+v", p)
	}
	contains(t, "node status", n.ctl(t, "node", "status").out,
		"plugin     required  "+so+"  found  26.05.0\n", "plugstack  "+n.path("inc.d/1.conf")+":1 error: Invalid line")
	if err := os.Remove(n.path("inc.d/1.conf")); err != nil {
		t.Fatal(err)
	}
	logged("plugstack is clean again", 1)

	// The plugin itself: its mode, then its absence.
	must(t, os.Chmod(so, 0o757))
	logged("level=warning msg=\"plugstack: "+n.path("plugstack.conf")+":1: ", 1)
	if p := n.nodePlugins(t); len(p) != 1 || p[0].State != "found" || !strings.Contains(p[0].Problem, "may be written by everybody") {
		t.Errorf("got %+v", p)
	}
	must(t, os.Rename(so, n.path("away.so")))
	logged("level=error msg=\"plugstack: "+n.path("plugstack.conf")+":1: there is no plugin", 1)
	if p := n.nodePlugins(t); len(p) != 1 || p[0].State != "missing" || p[0].Problem == "" {
		t.Errorf("got %+v", p)
	}
	// Something else beside it, and asking often, tells nothing twice.
	n.write(t, "unrelated", "x")
	for range 5 {
		n.nodePlugins(t)
	}
	must(t, os.Chmod(n.path("away.so"), 0o755))
	must(t, os.Rename(n.path("away.so"), so))
	logged("plugstack is clean again", 2)
	logged("there is no plugin", 1)

	// In place, from a shell; and a state that was found at the start.
	n.shell(t, n.wd, "true")
	f, err := os.OpenFile(n.path("plugstack.conf"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.WriteString("optional /nonexistent.so\n")
	must(t, err)
	must(t, f.Close())
	logged("plugstack.conf:3: there is no plugin", 1)
	n.kill9(t)
	n.boot(t)
	logged("plugstack.conf:3: there is no plugin", 1)
	r := n.do(t, call{program: binary(t, "noded"), args: []string{"-f", n.path("slurm.conf"), "--check"}, root: true})
	if r.code != 0 || !strings.Contains(r.out, "warning: "+n.path("plugstack.conf")+":3: there is no plugin") {
		t.Errorf("noded --check: %v", r)
	}
	n.stack(t)
	logged("plugstack is clean again", 1)
}

// TestRootPlugstackHalf: a step that begins while plugstack.conf is being
// written sees the whole of it, or gets an error; so do a user's and root's.
func TestRootPlugstackHalf(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildRude(t, n)
	marks := n.markFile(t)
	whole := fmt.Sprintf("required %s mark=%s tag=A\nrequired %s mark=%s tag=B\n", so, marks, so, marks)
	for _, root := range []bool{false, true} {
		t.Run(fmt.Sprintf("root=%v", root), func(t *testing.T) {
			must(t, os.Truncate(marks, 0))
			f, err := os.OpenFile(n.path("plugstack.conf"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
			must(t, err)
			// A line, and half of the other: as good as a stack without plugin B.
			_, err = f.WriteString(whole[:len(whole)/2+len("required ")])
			must(t, err)
			p := n.start(t, call{args: []string{"run", "echo", "ran"}, root: root})
			time.Sleep(100 * time.Millisecond) // long enough for a whole step; one that waits gives up after a second
			if b := readFile(t, marks); b != "" {
				t.Errorf("a plugin was called: %q", b)
			}
			_, err = f.WriteString(whole[len(whole)/2+len("required "):])
			must(t, err)
			must(t, f.Close())
			r := p.wait(t)
			if r.code != 0 || r.out != "ran\n" || r.err != "" {
				t.Errorf("got %v", r)
			}
			contains(t, "the plugins", readFile(t, marks), "A init -", "B init -")
		})
	}
	t.Run("a writer that does not rest", func(t *testing.T) {
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				f, err := os.OpenFile(n.path("plugstack.conf"), os.O_WRONLY|os.O_TRUNC, 0)
				if err != nil {
					t.Error(err)
					return
				}
				for line := range strings.Lines(fmt.Sprintf("# version %d\n", i) + whole) {
					if _, err := f.WriteString(line); err != nil {
						t.Error(err)
					}
				}
				f.Close()
				time.Sleep(time.Millisecond)
			}
		}()
		ran := 0
		for range 20 {
			must(t, os.Truncate(marks, 0))
			r := n.ctl(t, "run", "echo", "ran")
			called := readFile(t, marks)
			switch {
			case r.code == 0:
				ran++
				contains(t, "the plugins", called, "A init -", "B init -", "A exit -", "B exit -")
			case r.out != "" || !strings.Contains(r.err, "plugin stack"):
				t.Errorf("got %v", r)
			}
		}
		close(stop)
		<-done
		t.Logf("%d of 20 steps ran", ran)
	})
	t.Run("a writer that stays", func(t *testing.T) {
		must(t, os.Truncate(marks, 0))
		f, err := os.OpenFile(n.path("plugstack.conf"), os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		defer f.Close()
		_, err = f.WriteString("# more follows\n") // or noded knows the stack already, and only the prolog fails
		must(t, err)
		r := n.ctl(t, "run", "echo", "ran")
		if r.code != 1 || r.out != "" {
			t.Errorf("got %v", r)
		}
		contains(t, "stderr", r.err, n.path("plugstack.conf"), "open for writing", "rename")
		if b := readFile(t, marks); b != "" {
			t.Errorf("a plugin was called: %q", b)
		}
	})
}

// TestRootSIGIO: the signal by which the kernel reports that a process wants
// to write a file that is being read hurts none of the programs.
func TestRootSIGIO(t *testing.T) {
	n := startNode(t, site{})
	p := n.start(t, call{args: []string{"run", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo ran"}})
	defer p.cancel()
	step := n.running(t)
	for _, pid := range []int{n.cmd.Process.Pid, step.StepdPID, p.cmd.Process.Pid} {
		for range 3 {
			must(t, syscall.Kill(pid, syscall.SIGIO))
		}
	}
	n.userFile(t, "go", "", 0o644)
	if r := p.wait(t); r.out != "ran\n" || r.err != "" {
		t.Errorf("got %v", r)
	}
	if r := n.ctl(t, "run", "echo", "ran"); r.code != 0 || r.out != "ran\n" {
		t.Errorf("after it: %v", r)
	}
}
