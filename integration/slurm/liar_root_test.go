package slurm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
)

// TestRootLyingSrun: an srun that closes its connections, answers nonsense, does not read or has
// no token for its answers. The tasks run to their end, the step ends with them, or with srun, and
// leaves nothing. slurmd's log has few lines of it, and the next step runs.
func TestRootLyingSrun(t *testing.T) {
	t.Parallel()
	c := startSite(t, cluster.Site{})
	compile := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "testdata/liar.c", "-o", c.Path("liar.so"))
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	l := &liars{Cluster: c, space: space(t, c)}
	var wg sync.WaitGroup
	for _, how := range []string{"close", "garbage", "silent", "token"} {
		wg.Go(func() { t.Run(how, func(t *testing.T) { l.run(t, how) }) })
	}
	wg.Wait()
	if out, err := c.Command(t.Context(), "alice", "timeout", "20", "srun", "echo", "next").CombinedOutput(); err != nil || string(out) != "next\n" {
		t.Errorf("the next step: %v\n%s", err, out)
	}
}

// liars is the cluster.
type liars struct {
	*cluster.Cluster
	space string
}

func (l *liars) run(t *testing.T, how string) {
	wd := l.Path("work/alice")
	file := func(name string) error {
		_, err := os.Stat(filepath.Join(wd, name+"."+how))
		return err
	}
	// Only files count: the tasks' streams go through the liar's hands.
	script := fmt.Sprintf("unset LD_PRELOAD; until [ -e go.%[1]s ]; do sleep .05; done; >done$SLURM_PROCID.%[1]s", how)
	srun := l.Command(t.Context(), "alice", "timeout", "-k", "1", "60", "srun", "-J", how, "-n2", "sh", "-c", script)
	srun.Env = append(srun.Env, "LIE="+how, "LD_PRELOAD="+l.Path("liar.so"))
	must(t, srun.Start())
	job := 0
	eventually(t, faultWait, func() error {
		out, err := l.Command(t.Context(), "root", "squeue", "-h", "-n", how, "-t", "R", "-o", "%i").Output()
		if err == nil {
			job, err = strconv.Atoi(strings.TrimSpace(string(out)))
		}
		return err
	})
	must(t, os.WriteFile(filepath.Join(wd, "go."+how), nil, 0o644))
	eventually(t, faultWait, func() error { return errors.Join(file("done0"), file("done1")) })
	ended := func() error { return left(l.Cluster, l.space, job) }
	if how != "silent" { // that one is waited for as long as it lives, within limits
		eventually(t, faultWait, ended)
	}
	for _, p := range search(l.space, func(title string, _ []byte) bool { return strings.HasPrefix(title, "srun -J "+how+" ") }) {
		kill(t, p, unix.SIGKILL)
	}
	_ = srun.Wait() // what a liar ends with is its own affair
	eventually(t, faultWait, ended)
	text, err := os.ReadFile(l.Path("slurmd.log"))
	must(t, err)
	if n := strings.Count(string(text), fmt.Sprintf("[%d.0]", job)); n == 0 || n > 10 {
		t.Errorf("slurmd's log has %d lines of the step", n)
	}
}
