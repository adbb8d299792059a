// Command run starts a private Slurm, runs a shell command in it and ends it: to look at
// what srun and sbatch do.
//
//	go run ./integration/slurm/run -release 24.11 'srun -n2 hostname'          our step daemon
//	go run ./integration/slurm/run -real 'srun -n2 hostname'                   Slurm's own
//	go run ./integration/slurm/run -conf FILE -root 'scontrol show config'     lines of slurm.conf, as root
//	go run ./integration/slurm/run -site affinity 'srun --cpu-bind=v true'     configured as the checks of that site
//
// The command runs as a user alice in a folder of its own; $DIR has the daemons' logs, which
// -log prints afterwards. At a site of several nodes it runs on none
// of them; with -root, `$DIR/on NODE COMMAND...` is a command there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"stepd/integration/slurm/cluster"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintf(os.Stderr, "run: %v\n", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run() (int, error) {
	release := flag.String("release", "22.05", "the release of Slurm: "+strings.Join(cluster.Releases(), ", "))
	cache := flag.String("cache", "/var/cache/stepd-slurm", "where the releases lie")
	bin := flag.String("bin", "bin", "the folder of the built programs")
	real := flag.Bool("real", false, "with Slurm's own step daemon")
	name := flag.String("site", "", "the configuration: one of cluster.Sites")
	conf := flag.String("conf", "", "a file with lines of slurm.conf")
	asRoot := flag.Bool("root", false, "run the command as root")
	logs := flag.Bool("log", false, "print slurmd's log afterwards")
	flag.Parse()
	site, ok := cluster.Sites[*name]
	if !ok {
		return 0, fmt.Errorf("no such site %q: cluster/sites.go has all", *name)
	}
	site.Release, site.Cache, site.Users = *release, *cache, []string{"alice"}
	if !*real {
		dir, err := filepath.Abs(*bin)
		if err != nil {
			return 0, err
		}
		site.Programs, site.StepDaemon = dir, cluster.Programs+"/slurmstepd"
	}
	if *conf != "" {
		text, err := os.ReadFile(*conf)
		if err != nil {
			return 0, err
		}
		site.Conf += string(text)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c, err := cluster.Start(ctx, site)
	if err != nil {
		return 0, err
	}
	user := "alice"
	if *asRoot {
		user = "root"
	}
	cmd := c.Command(ctx, user, "sh", "-c", strings.Join(flag.Args(), " "))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	_ = cmd.Run() // its exit code is ours
	var errs error
	for _, name := range c.SlurmdLogs() {
		if !*logs {
			break
		}
		text, err := os.ReadFile(c.Path(name))
		fmt.Fprintf(os.Stderr, "%s", text)
		errs = errors.Join(errs, err)
	}
	return cmd.ProcessState.ExitCode(), errors.Join(errs, c.Stop())
}
