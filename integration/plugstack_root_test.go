package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestRootPluginFiles: what plugstack.conf may name, required and optional.
func TestRootPluginFiles(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	bad := func(name string, flags ...string) string {
		so := n.path(name + ".so")
		compile(t, append(append([]string{"-fPIC", "-shared", "-I", ownHeaders}, flags...), "testdata/plugins/bad.c", "-o", so)...)
		return so
	}
	notELF := n.write(t, "notelf.so", strings.Repeat("this is no plugin\n", 10))
	for _, c := range []struct {
		name, path string
		accepted   bool
		says       string // of a refusal, beside the path
	}{
		{"missing", n.path("missing.so"), false, "No such file or directory"},
		{"relative and missing", "nosuch.so", false, "nosuch.so"},
		{"not a plugin", notELF, false, "invalid ELF header"},
		{"a directory", n.dir, false, ""},
		{"no version", bad("nover", "-DNO_VERSION"), false, "version"},
		{"no name", bad("noname", "-DNO_NAME"), false, "name"},
		{"20.11: the author's number", bad("r2011", "-DVERSION=1"), false, "20.11"},
		{"a newer release", bad("newer", "-DVERSION=0x630b00"), false, "99.11"},
		{"no hooks", bad("nohooks", "-DNO_HOOKS"), false, "hook"},
		{"undefined data", bad("undefdata", "-DUNDEFINED_DATA"), false, "no_such_data_xyz"},
		{"undefined function", bad("undeffunc", "-DUNDEFINED_FUNCTION"), true, ""},
		{"another type", bad("othertype", "-DTYPE=\"select/bad\""), false, `its plugin_type is "select/bad"`},
		{"no spank_plugin_version", bad("nospv", "-DNO_SPANK_VERSION"), true, ""},
		{"21.08", bad("r2108", "-DVERSION=0x150808"), true, ""},
		{"23.02.7", bad("r2302", "-DVERSION=0x170207"), true, ""},
		{"25.11", bad("r2511", "-DVERSION=0x190b00"), true, ""},
		{"26.05", bad("r2605", "-DVERSION=0x1a0501"), true, ""},
	} {
		for _, flag := range []string{"required", "optional"} {
			t.Run(c.name+" "+flag, func(t *testing.T) {
				n.idle(t) // the epilog before would read the next one's stack
				n.stack(t, flag+" "+c.path)
				r := n.ctl(t, "run", "echo", "ran")
				if c.accepted || flag == "optional" {
					if r.code != 0 || r.out != "ran\n" {
						t.Errorf("want the task to run, got %v", r)
					}
				} else if r.code != 1 || r.out != "" {
					t.Errorf("want exit code 1 and no task, got %v", r)
				}
				if c.accepted {
					contains(t, "stderr", r.err, "bad plugin ran for ")
					return
				}
				if flag == "optional" {
					n.says(t, r, 0, c.path, c.says) // the log is Slurm's place for it
				} else {
					contains(t, "the report", r.err, c.path, c.says)
				}
			})
		}
	}
	t.Run("each plugin sees its own release", func(t *testing.T) {
		n.stack(t, "required "+n.path("r2108.so"), "required "+n.path("r2605.so"))
		r := n.ctl(t, "run", "true")
		contains(t, "stderr", r.err, "bad plugin ran for 21.08.8\n", "bad plugin ran for 26.05.1\n")
	})
}

// TestRootPlugstackLines: lines that are no good are told and passed over,
// and includes are found as in Slurm (spank-behaviour §5).
func TestRootPlugstackLines(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildRude(t, n)
	marks := n.markFile(t)
	good := fmt.Sprintf("required %s mark=%s", so, marks)
	must(t, os.Mkdir(n.path("inc.d"), 0o755))
	for _, name := range []string{"2", "9", "10"} {
		n.write(t, "inc.d/"+name+".conf", good+" tag=I"+name+"\n")
	}
	n.write(t, "loop.conf", good+" tag=L\ninclude loop.conf\n")
	for _, c := range []struct {
		name  string
		lines []string
		tags  string // of the plugins' init, in order
		says  string // in the log or on stderr
	}{
		{"nothing", nil, "", ""},
		{"comments and blanks", []string{"# a comment", "", "   ", good + " tag=A # more"}, "A", ""},
		{"an unknown word", []string{"mandatory " + so, good + " tag=A"}, "A", "mandatory"},
		{"upper case", []string{"REQUIRED " + so}, "", "REQUIRED"},
		{"an equals sign", []string{"required=" + so}, "", "required="},
		{"no path", []string{"required", good + " tag=A"}, "A", "plugstack.conf:1"},
		{"include without a path", []string{"include"}, "", "plugstack.conf:1"},
		{"include glob, sorted", []string{good + " tag=A", "include " + n.path("inc.d") + "/*.conf", good + " tag=Z"}, "A I10 I2 I9 Z", ""},
		{"include, relative", []string{"include inc.d/9*"}, "I9", ""},
		{"include, nothing there", []string{"include " + n.path("no.d") + "/*", "include /no/such/file", good + " tag=A"}, "A", ""},
		{"two flags of one plugin", []string{good + " tag=A", good + " tag=B"}, "A B", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.idle(t)
			must(t, os.Truncate(marks, 0))
			before := len(n.log.String())
			n.stack(t, c.lines...)
			r := n.ctl(t, "run", "echo", "ran")
			if r.code != 0 || r.out != "ran\n" {
				t.Errorf("want the task to run, got %v", r)
			}
			var tags []string
			for _, line := range strings.Split(readFile(t, marks), "\n") {
				if tag, ok := strings.CutSuffix(line, " init -"); ok {
					tags = append(tags, tag)
				}
			}
			if got := strings.Join(tags, " "); got != c.tags {
				t.Errorf("plugins %q, want %q", got, c.tags)
			}
			n.says(t, r, before, c.says)
		})
	}
	t.Run("an include loop", func(t *testing.T) {
		n.stack(t, "include loop.conf")
		r := n.ctl(t, "run", "echo", "ran")
		if r.code != 1 || r.out != "" {
			t.Errorf("want exit code 1, got %v", r)
		}
		contains(t, "stderr", r.err, "loop.conf", "include")
	})
	t.Run("no plugstack.conf", func(t *testing.T) {
		must(t, os.Remove(n.path("plugstack.conf")))
		if r := n.ctl(t, "run", "echo", "ran"); r.code != 0 || r.out != "ran\n" || r.err != "" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("PlugStackConfig and PluginDir", func(t *testing.T) {
		must(t, os.Truncate(marks, 0))
		n.write(t, "elsewhere.conf", "required rude.so tag=D mark="+marks+"\n")
		other := startNode(t, site{Slurm: "PlugStackConfig=" + n.path("elsewhere.conf") + "\nPluginDir=/usr/lib/none:" + n.dir + "\n"})
		if r := other.ctl(t, "run", "true"); r.code != 0 || !strings.Contains(readFile(t, marks), "D init -") {
			t.Errorf("got %v, marks %q", r, readFile(t, marks))
		}
	})
}
