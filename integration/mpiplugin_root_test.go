package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"stepd/internal/testkit"
)

// buildWithPlugin builds the programs with one MPI plugin more, which is a
// package and a line in mpi.Types: the tree stays as it is, an overlay adds both.
func buildWithPlugin(t *testing.T) (bin string) {
	t.Helper()
	testkit.RequireRoot(t)
	root, err := filepath.Abs("..")
	must(t, err)
	dir := t.TempDir()
	wired := readFile(t, filepath.Join(root, "mpi", "mpi.go"))
	for _, c := range [][2]string{
		{"\t\"stepd/mpi/pmi2\"\n", "\t\"stepd/mpi/pmi2\"\n\t\"stepd/mpi/trace\"\n"},
		{"\t\t{Name: None},\n", "\t\t{Name: None},\n\t\t{Name: \"trace\", Stepd: func(*step.Site, Deps) Plugin { return trace.New() }, Client: func() Client { return trace.NewClient() }},\n"},
	} {
		if strings.Count(wired, c[0]) != 1 {
			t.Fatalf("mpi.go has no line %q", c[0])
		}
		wired = strings.Replace(wired, c[0], c[1], 1)
	}
	must(t, os.WriteFile(filepath.Join(dir, "mpi.go"), []byte(wired), 0o644))
	source, err := filepath.Abs("testdata/mpiplugin/trace.go")
	must(t, err)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(root, "mpi", "mpi.go"):            filepath.Join(dir, "mpi.go"),
		filepath.Join(root, "mpi", "trace", "trace.go"): source,
	}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
	bin = filepath.Join(dir, "bin")
	must(t, os.Mkdir(bin, 0o755))
	for d := bin; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755)) // the test user runs stepctl
	}
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-trimpath", "-ldflags", "-s -w", "-o", bin+"/", "./cmd/...")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	host, err := os.ReadFile(binary(t, "spankhost"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(bin, "spankhost"), host, 0o755))
	return bin
}

// TestRootMPIPlugin: the hooks of the MPI plugin interface are called, each where
// and when the specification says, for steps of run alone.
func TestRootMPIPlugin(t *testing.T) {
	t.Setenv("STEPD_BIN", buildWithPlugin(t))
	n := startNode(t, site{Slurm: "MpiDefault=trace\n"})
	file := n.path("trace")
	env := func(more ...string) []string {
		return append([]string{"TRACE_FILE=" + file, "TRACE_GONE=not unset"}, more...)
	}
	clear := func() {
		must(t, os.WriteFile(file, nil, 0o666))
		must(t, os.Chmod(file, 0o666))
	}
	clear()
	if r := n.ctl(t, "run", "--mpi=list"); !strings.HasSuffix(r.out, "\tnone\n\ttrace\n\tpmi2\n") && !slices.Contains(strings.Fields(r.out), "trace") {
		t.Errorf("--mpi=list: %v", r)
	}
	const script = `echo $SLURM_MPI_TYPE$TRACE_GONE $TRACE_CLIENT $TRACE_JOB $TRACE_TASK $(cat <&$TRACE_FD)`
	for _, c := range []struct {
		name, fail string
		args       []string
		code       int
		out, err   string
		trace      []string
	}{
		{
			"run", "", []string{"-n2", "-l", "bash", "-c", script}, 0, "0: trace 1.0 1.0 0 for rank 0\n1: trace 1.0 1.0 1 for rank 1\n", "",
			[]string{"prelaunch 1.0, 2 tasks on vm", "prefork 1.0 for 1.0", "exited 0: Exited with exit code 0", "exited 1: Exited with exit code 0", "close", "fini"},
		},
		{
			"tasks that fail", "fini", []string{"false"}, 1, "", "stepctl: error: MPI: the trace wants to fail\n",
			[]string{"prelaunch 2.0, 1 tasks on vm", "prefork 2.0 for 2.0", "exited 0: Exited with exit code 1", "close", "fini"},
		},
		{
			"prelaunch fails", "prelaunch", []string{"true"}, 1, "", "stepctl: error: --mpi=trace: the trace wants to fail\n",
			[]string{"prelaunch 3.0, 1 tasks on vm"},
		},
		{
			"prefork fails", "prefork", []string{"true"}, 1, "", "mpi_prefork: the trace wants to fail\n",
			[]string{"prelaunch 4.0, 1 tasks on vm", "prefork 4.0 for 4.0", "close", "fini"},
		},
		{"another type", "", []string{"--mpi=none", "sh", "-c", `echo "<$SLURM_MPI_TYPE$TRACE_JOB>"`}, 0, "<>\n", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			clear()
			r := n.do(t, call{args: append([]string{"run"}, c.args...), env: env("TRACE_FAIL=" + c.fail)})
			lines := strings.SplitAfter(r.out, "\n")
			slices.Sort(lines)
			if r.code != c.code || strings.Join(lines, "") != c.out || !strings.Contains(r.err, c.err) {
				t.Errorf("got %v", r)
			}
			trace := strings.Fields(strings.ReplaceAll(strings.TrimSpace(readFile(t, file)), " ", "_"))
			if len(trace) == 6 {
				slices.Sort(trace[2:4]) // two tasks that end as they like
			}
			for i := range trace {
				trace[i] = strings.ReplaceAll(trace[i], "_", " ")
			}
			if !slices.Equal(trace, c.trace) {
				t.Errorf("calls %q, want %q", trace, c.trace)
			}
		})
	}
	t.Run("SLURM_MPI_TYPE asks as --mpi does", func(t *testing.T) {
		if r := n.do(t, call{args: []string{"run", "true"}, env: []string{"SLURM_MPI_TYPE=nonesuch"}}); r.code != 1 || !strings.Contains(r.err, `no type "nonesuch" here: there are none, trace, pmi2`) {
			t.Errorf("got %v", r)
		}
	})
	t.Run("batch, extern and alloc", func(t *testing.T) {
		clear()
		n.userFile(t, "job.sh", "#!/bin/sh\necho \"<$SLURM_MPI_TYPE$TRACE_JOB>\"\n", 0o755)
		if r := n.do(t, call{args: []string{"batch", "-W", "-o", "out", "job.sh"}, env: env()}); r.code != 0 {
			t.Fatal(r)
		}
		if r := n.do(t, call{args: []string{"alloc", "true"}, env: env()}); r.code != 0 {
			t.Fatal(r)
		}
		eventually(t, callTimeout, "the script's output", func() error {
			_, err := os.Stat(filepath.Join(n.wd, "out"))
			return err
		})
		p := n.start(t, call{args: []string{"run", "--mpi=none", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"}, env: env()})
		n.running(t)
		if r := n.ctlRoot(t, "adopt", fmt.Sprint(stranger(t, alice.uid, "sleep", "86400").Process.Pid)); r.code != 0 {
			t.Fatal(r)
		}
		n.letGo(t)
		p.wait(t)
		n.idle(t)
		if out, trace := readFile(t, filepath.Join(n.wd, "out")), readFile(t, file); out != "<>\n" || trace != "" {
			t.Errorf("the script wrote %q, the plugin %q", out, trace)
		}
	})
}
