package integration

import (
	"fmt"
	"strings"
	"testing"
)

// TestRootPluginEarly: what a plugin does when it is loaded, or when an option is
// called back, is reported as for a hook.
func TestRootPluginEarly(t *testing.T) {
	t.Parallel()
	// On a busy machine a short timeout may hit a plugin which does no such thing.
	ever, soon := startNode(t, site{}), startNode(t, site{Stepd: "HookTimeout=2\n"})
	for _, c := range []struct{ do, cause string }{
		{"segv", "killed by SIGSEGV"},
		{"exit", "called exit(3)"},
		{"hang", "did not return within 2s (HookTimeout in stepd.conf)"},
		{"closefds", "closed descriptors of the process that called it"},
		{"seteuid", ""}, // and goes on
	} {
		n := ever
		if c.do == "hang" {
			n = soon
		}
		for when, where := range map[string]string{"LOADED": "dlopen", "OPTION": "option callback"} {
			so := buildKind(t, n, "early.c", fmt.Sprintf("-D%s=%q", when, c.do))
			for _, flag := range []string{"required", "optional"} {
				t.Run(fmt.Sprintf("%s in %s %s", c.do, where, flag), func(t *testing.T) {
					n.stack(t, flag+" "+so)
					r := n.ctl(t, "run", "--early", "echo", "ran")
					n.checkClean(t)
					if c.cause == "" {
						if r.code != 0 || r.out != "ran\n" {
							t.Errorf("got %v", r)
						}
						n.logs(t, `early.so\": `+where+": changed its user or group: taken back")
						return
					}
					want := fmt.Sprintf("plugin %q: %s: %s", "early.so", where, c.cause)
					if r.code != 1 || r.out != "" || !strings.Contains(r.err, want) {
						t.Errorf("want 1 and %q, got %v", want, r)
					}
				})
			}
		}
	}
	for _, n := range []*node{ever, soon} {
		n.stack(t)
		n.serves(t)
	}
}
