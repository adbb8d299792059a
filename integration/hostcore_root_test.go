package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRootHostCore: as docs/plugin.md says, the host of a step leaves a core file where its plugin asks
// for one, and none else; gdb opens it with spankhost.
func TestRootHostCore(t *testing.T) {
	if pattern := strings.TrimSpace(readFile(t, "/proc/sys/kernel/core_pattern")); pattern != "core" {
		t.Skipf("core_pattern is %q: the machine's own program gets core files", pattern)
	}
	n := startNode(t, site{Before: []string{"sh", "-c", `ulimit -c "$(ulimit -H -c)"; exec "$@"`, "sh"}})
	source := n.path("core.c")
	must(t, os.WriteFile(source, []byte(`#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <slurm/spank.h>
SPANK_PLUGIN(core, 1)
int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	volatile int *volatile nowhere = NULL;
	(void)sp;
	if (ac > 0 && av[0][0] == 'y')
		prctl(PR_SET_DUMPABLE, 1);
	*nowhere = 1;
	return 0;
}
`), 0o644))
	so := n.path("core.so")
	compile(t, "-g", "-fPIC", "-shared", "-I", ownHeaders, source, "-o", so)
	for _, asks := range []bool{false, true} {
		word := "no"
		if asks {
			word = "yes"
		}
		n.stack(t, "required "+so+" "+word)
		if r := n.ctl(t, "run", "true"); r.code == 0 || !strings.Contains(r.err, "killed by SIGSEGV at core.so+0x") {
			t.Errorf("%s: %v", word, r)
		}
		cores, err := filepath.Glob(filepath.Join(n.wd, "core*"))
		must(t, err)
		if asks != (len(cores) == 1) {
			t.Fatalf("asked for: %t; core files in the job's directory: %q", asks, cores)
		}
		if !asks {
			continue
		}
		if _, err := exec.LookPath("gdb"); err != nil {
			missing(t, "no gdb")
		}
		out, err := exec.Command("gdb", "-batch", "-ex", "bt", binary(t, "spankhost"), cores[0]).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "slurm_spank_user_init (sp=") {
			t.Errorf("gdb: %v\n%s", err, out)
		}
	}
}
