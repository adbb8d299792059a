package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fdTask reports in a file the descriptors that a task has inherited, each with what it
// is, and the numbers that plugins and MPI have announced.
const fdTask = `for f in /proc/$$/fd/*; do test -L $f && s="$s ${f##*/}"; done
env | grep -e ^ENDS_ -e ^PMI_FD= >env.$SLURM_PROCID
echo $s >fds.$SLURM_PROCID
`

// inherited reads what fdTask has written of a task: the descriptors, and the
// announced numbers by their names.
func inherited(t testing.TB, n *node, rank int) (fds []string, announced map[string]string) {
	t.Helper()
	file := func(name string) string { return filepath.Join(n.wd, fmt.Sprintf("%s.%d", name, rank)) }
	fds = strings.Fields(readFile(t, file("fds")))
	announced = make(map[string]string)
	for line := range strings.Lines(readFile(t, file("env"))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		announced[name] = value
	}
	must(t, os.Remove(file("fds")))
	return fds, announced
}

// TestRootTaskDescriptors: a task has 0, 1, 2, the descriptors of its MPI, and those that
// plugins have opened without close-on-exec until task_init; none of the host's, of the
// daemons', of what started noded, or of the client's caller. In every mode of a step.
func TestRootTaskDescriptors(t *testing.T) {
	waits(t)
	base := containerBase(t)
	leaky := []string{"sh", "-c", `exec 5</etc/passwd 6</ 7>/dev/null; exec "$@"`, "sh"}
	nodes := map[string]*node{
		"":          startNode(t, site{Before: leaky}),
		"tmpfs":     startNode(t, site{Before: leaky, Slurm: "JobContainerType=job_container/tmpfs\n", Container: "AutoBasePath=true\nBasePath=" + base + "\n"}),
		"linux":     startNode(t, site{Before: leaky, Slurm: "JobContainerType=job_container/linux\n", Container: "AutoBasePath=true\nBasePath=" + base + "\nCloneNSFlags=CLONE_NEWPID,CLONE_NEWUSER\n"}),
		"linuxproc": startNode(t, site{Before: leaky, Slurm: "ProctrackType=proctrack/linuxproc\n"}),
	}
	kept := []string{"init", "init_post_opt", "user_init", "task_init_privileged", "task_init"}
	stacks := map[string]string{"none": "", "open": "task_post_fork:open", "open-close": ""}
	for _, hook := range kept {
		stacks["open"] += " " + hook + ":open"
		stacks["open-close"] += " " + hook + ":open-close"
	}
	run := []string{"run", "-n", "2"}
	for _, c := range []struct {
		name, node string
		args       []string
		mpi        bool
	}{
		{name: "plain", args: run}, {name: "label", args: append(run, "-l")}, {name: "unbuffered", args: append(run, "-u")},
		{name: "files", args: append(run, "-o", "out.%t", "-i", "/dev/null")}, {name: "one file", args: append(run, "-o", "out")},
		{name: "pty", args: append(run, "--pty")}, {name: "pmi2", args: append(run, "--mpi=pmi2"), mpi: true},
		{name: "pmix", args: append(run, "--mpi=pmix")}, {name: "task prolog", args: append(run, "--task-prolog=/bin/true", "--task-epilog=/bin/true")},
		{name: "bound", args: append(run, "--cpu-bind=none", "--mem-bind=none")},
		{name: "batch", args: []string{"batch", "-W", "-o", "out"}}, {name: "alloc", args: []string{"alloc", "-Q", "-n", "2", "STEPCTL", "run"}},
		{name: "tmpfs", node: "tmpfs", args: run}, {name: "linux", node: "linux", args: run},
		{name: "batch in tmpfs", node: "tmpfs", args: []string{"batch", "-W", "-o", "out"}}, {name: "linuxproc", node: "linuxproc", args: run},
	} {
		n := nodes[c.node]
		so := buildKind(t, n, "ends.c")
		script := n.userFile(t, "fds.sh", "#!/bin/sh\nexec sh -c '"+fdTask+"'\n", 0o755) // a shell holds its script open
		for _, flag := range []string{"required", "optional"} {
			for stack, args := range stacks {
				t.Run(strings.Join([]string{c.name, flag, stack}, " "), func(t *testing.T) {
					n.stack(t, flag+" "+so+" "+args)
					args := append(slices.Clone(c.args), script)
					if i := slices.Index(args, "STEPCTL"); i >= 0 {
						args[i] = n.bin
					}
					if c.name == "pty" {
						s := openTerminal(t, 24, 80)
						s.ctl(n, call{args: args})
						s.ends(0)
					} else {
						// The caller leaves some open, too.
						if r := n.do(t, call{program: "/bin/sh", args: append([]string{"-c", `exec 5</etc/passwd 6</ 7>/dev/null; exec "$@"`, "sh", n.bin}, args...)}); r.code != 0 {
							t.Fatal(r)
						}
					}
					tasks := 2
					if args[0] == "batch" {
						tasks = 1
					}
					for rank := range tasks {
						fds, announced := inherited(t, n, rank)
						want := []string{"0", "1", "2"}
						for _, hook := range kept {
							switch number := announced["ENDS_"+hook]; {
							case stack == "none" && number == "", stack == "open-close" && number != "":
							case stack == "open" && number != "":
								want = append(want, number)
							default:
								t.Errorf("rank %d: %s has announced %q", rank, hook, number)
							}
						}
						if c.mpi {
							want = append(want, announced["PMI_FD"])
						}
						slices.Sort(fds)
						slices.Sort(want)
						if !slices.Equal(fds, want) {
							t.Errorf("rank %d has %q, want %q: %v", rank, fds, want, announced)
						}
					}
				})
			}
		}
		n.stack(t)
	}
}
