package slurmstepd

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/nofile"
	"stepd/slurm/check"
	"stepd/slurm/keeper"
	"stepd/slurm/oci"
)

// mode runs what slurmd, Slurm's commands and the keeper ask of the program by its arguments. It returns
// the exit code.
func mode(args []string) int {
	switch {
	case args[0] == keeper.Orphan:
		return endOrphan()
	case len(args) == 2 && args[0] == "spank":
		return jobScript(args[1])
	case args[0] == oci.Mode:
		return oci.Main(args[1:])
	case len(args) == 1 && args[0] == "getenv":
		if err := printEnvironment(os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "slurmstepd: %v\n", err)
			return 1
		}
		return 0
	case len(args) == 1 && args[0] == "infinity":
		return infinity()
	case args[0] == "--check":
		return checkSite(args[1:])
	}
	fmt.Fprintf(os.Stderr, "slurmstepd: cannot do %q: slurmd starts this program for each step (slurmd -d), and with one of: spank prolog, spank epilog, getenv, infinity; an administrator runs slurmstepd --check [-f FILE]\n", args)
	return 1
}

// checkSite is `slurmstepd --check [-f FILE] [NODE]`, for an administrator: what slurm.conf
// configures and a step daemon would do, and this one does not. The exit code is 0 where that
// is nothing, and 1 where there is something, or the file cannot be read.
func checkSite(args []string) int {
	path := cmp.Or(os.Getenv("SLURM_CONF"), "/etc/slurm/slurm.conf")
	if len(args) >= 2 && args[0] == "-f" {
		path, args = args[1], args[2:]
	}
	host, err := os.Hostname()
	node, _, _ := strings.Cut(host, ".")
	switch {
	case len(args) == 1 && args[0] != "" && args[0][0] != '-':
		node = args[0]
	case len(args) > 0:
		fmt.Fprintln(os.Stderr, "usage: slurmstepd --check [-f FILE] [NODE]")
		return 1
	case err != nil:
		fmt.Fprintf(os.Stderr, "slurmstepd: cannot find the name of this host: %v\n", err)
		return 1
	}
	gaps, err := check.Site(path, node)
	if err != nil {
		fmt.Fprintf(os.Stderr, "slurmstepd: %v\n", err)
		return 1
	}
	fmt.Print(check.Text(gaps))
	return min(len(gaps), 1)
}

// printEnvironment prints what this process was started with as variables of a job: the
// limits that Slurm propagates, and the environment. A shell runs it as a user, whose
// environment a job is to have.
func printEnvironment(out io.Writer) error {
	var text []byte
	for _, l := range linux.ResourceLimits {
		var limit unix.Rlimit
		if err := unix.Getrlimit(l.Number, &limit); err != nil {
			return fmt.Errorf("cannot read the limit %s: %w", l.Name, err)
		}
		if soft, ok := nofile.AtStart(); ok && l.Number == unix.RLIMIT_NOFILE {
			limit.Cur = soft
		}
		text = fmt.Appendf(text, "SLURM_RLIMIT_%s=%d\n", l.Name, limit.Cur)
	}
	for _, e := range os.Environ() {
		text = append(append(text, e...), '\n')
	}
	if _, err := out.Write(text); err != nil {
		return fmt.Errorf("cannot print the environment: %w", err)
	}
	return nil
}

// infinity keeps the cgroup of slurmd's steps from being empty, in which systemd would
// remove it: the kernel is to kill it last. It ends by a signal alone.
func infinity() int {
	setTitle("slurmstepd", "slurmstepd: [infinity]")
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		fmt.Fprintf(os.Stderr, "slurmstepd: cannot keep the kernel from killing this process first: %v\n", err)
	}
	for {
		unix.Pause() // a handler of the runtime's has returned
	}
}
