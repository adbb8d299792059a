package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var errNoCase = errors.New("no such case")

// parseCase makes a case of its name: "user_init=-1, required, srun".
func parseCase(name string) (failure, error) {
	cells := strings.Split(name, ", ")
	if len(cells) < 3 {
		return failure{}, fmt.Errorf("%w: %q", errNoCase, name)
	}
	command, flag := cells[len(cells)-1], cells[len(cells)-2]
	what := strings.Join(cells[:len(cells)-2], ", ")
	c := failure{command: command, tasks: 1}
	cb, rest, ok := strings.Cut(what, "=-1")
	switch {
	case ok && rest == "":
		c.inner = true
		c.stack = flag + " PLUGINS/probe.so tag=A lite fail=" + cb + "=-1\n"
		return c, nil
	case ok && rest == " remote only":
		if c.stack = flag + " PLUGINS/probe.so tag=A lite fail=" + cb + "=-1@2\n"; command == "srun" {
			c.tasks = 2
		}
		return c, nil
	case strings.HasPrefix(what, "option cb"):
		return c.option(flag, what), nil
	}
	if cb, rc, ok := strings.Cut(what, " returns "); ok {
		rc, second, _ := strings.Cut(rc, " ")
		n, err := strconv.Atoi(rc)
		if c.stack = fmt.Sprintf("%s PLUGINS/probe.so tag=A lite fail=%s=%d\n", flag, cb, n); second != "" {
			c.stack += flag + " PLUGINS/probeB.so tag=B lite\n"
		}
		return c, err
	}
	return c.loading(flag, what)
}

// option is a case of an option's callback that fails.
func (c failure) option(flag, what string) failure {
	c.stack = flag + " PLUGINS/probe.so tag=A lite\n"
	switch i := strings.Index(what, "--"); {
	case i < 0:
		c.env = []string{"_SLURM_SPANK_OPTION_PNAME_ptab=FAIL"}
	default:
		c.args = []string{strings.TrimSuffix(what[i:], ")")}
	}
	return c
}

// good is a line of the plugstack that loads.
const good = "required PLUGINS/probe.so tag=A lite"

// loadCases are the cases of the plugstack and of its plugins' loading; FLAG is
// the flag of the case.
var loadCases = map[string]failure{
	"dlopen missing file":                                 {stack: "FLAG PLUGINS/missing.so\n"},
	"relative missing":                                    {stack: "FLAG nosuch.so\n"},
	"not an ELF":                                          {stack: "FLAG PLUGINS/notelf.so\n"},
	"same plugin twice":                                   {stack: "FLAG PLUGINS/probe.so tag=A lite\nFLAG PLUGINS/probe.so tag=A lite\n"},
	"line without flag word":                              {stack: "PLUGINS/probe.so tag=A lite\n"},
	"unknown flag word":                                   {stack: "mandatory PLUGINS/probe.so tag=A lite\n"},
	"upper-case REQUIRED":                                 {stack: "REQUIRED PLUGINS/probe.so tag=A lite\n"},
	"required w/o path":                                   {stack: "required\n"},
	"include w/o path":                                    {stack: "include\n"},
	"whitespace/quotes/trailing comment":                  {stack: "  required \t PLUGINS/probe.so   tag=A  lite \"quoted arg\" # a comment\n"},
	"backslash continuation":                              {stack: "required PLUGINS/probe.so tag=A \\\nlite\n"},
	"required=path":                                       {stack: "required=PLUGINS/probe.so tag=A lite\n"},
	"include glob 2.conf 9.conf 10.conf":                  {stack: "include ETC/inc.d/*.conf\n", prepare: includes("2", "9", "10")},
	"include relative glob":                               {stack: "include inc.d/*.conf\n", prepare: includes("2", "9", "10")},
	"include missing file":                                {stack: "include ETC/inc.d/missing.conf\n"},
	"include glob no match":                               {stack: "include ETC/inc.d/*.none\n"},
	"include unreadable by user":                          {stack: "include ETC/inc.d/*.conf\n", prepare: mode("inc.d/9.conf", 0o600)},
	"include world-writable":                              {stack: "include ETC/inc.d/*.conf\n", prepare: mode("inc.d/9.conf", 0o666)},
	"plugin world-writable":                               {stack: good + "\n", prepare: mode("plug/probe.so", 0o777)},
	"plugstack.conf absent":                               {prepare: removed("plugstack.conf")},
	"relative .so (PluginDir default)":                    {stack: "FLAG probe.so\n"},
	"duplicate option name in 2 plugins (probe then bad)": {stack: "FLAG PLUGINS/probe.so tag=A lite\nFLAG PLUGINS/bad_DUPOPT.so\n"},
}

// loading is a case of the plugstack or of a plugin that does not load.
func (c failure) loading(flag, what string) (failure, error) {
	known, ok := loadCases[what]
	if fault, bad := strings.CutPrefix(what, "bad_"); bad {
		known, ok = failure{stack: "FLAG PLUGINS/bad_" + fault + ".so\n"}, true
	}
	if !ok {
		return failure{}, fmt.Errorf("%w: %q", errNoCase, what)
	}
	c.stack, c.prepare = strings.ReplaceAll(known.stack, "FLAG", flag), known.prepare
	return c, nil
}

// includes writes files that are included.
func includes(names ...string) func(testing.TB, *node) func() {
	return func(t testing.TB, n *node) func() {
		t.Helper()
		var undo []string
		for i, name := range names {
			copied := []string{"probe.so", "probeB.so", "probeC.so"}[i]
			path := n.write(t, filepath.Join("inc.d", name+".conf"), "required "+n.path("plug", copied)+" tag=A lite\n")
			undo = append(undo, path)
		}
		return func() {
			for _, path := range undo {
				must(t, os.Remove(path))
			}
		}
	}
}

// mode gives a file other permissions, and makes it where it is an include.
func mode(name string, bits os.FileMode) func(testing.TB, *node) func() {
	return func(t testing.TB, n *node) func() {
		t.Helper()
		undo := func() { must(t, os.Chmod(n.path(name), 0o755)) }
		if filepath.Dir(name) == "inc.d" {
			undo = includes(strings.TrimSuffix(filepath.Base(name), ".conf"))(t, n)
		}
		must(t, os.Chmod(n.path(name), bits))
		return undo
	}
}

// removed takes a file away.
func removed(name string) func(testing.TB, *node) func() {
	return func(t testing.TB, n *node) func() {
		t.Helper()
		must(t, os.Remove(n.path(name)))
		return func() {}
	}
}
