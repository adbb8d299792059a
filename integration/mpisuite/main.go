// Command mpisuite runs MPICH's own test programs under mpiexec.hydra and under stepctl, or
// (-on srun) under hydra and under the real srun on three nodes of a private Slurm, test by test,
// and prints how many passed in each directory. It fails if one passes under hydra and not here.
// mpich.sh builds the programs.
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
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
)

func main() {
	var o options
	dirs := flag.String("dirs", "attr,coll,comm,datatype,errhan,group,info,init,pt2pt,spawn,topo,rma", "the directories of the suite")
	flag.StringVar(&o.bin, "bin", "bin", "the folder of the built programs")
	flag.StringVar(&o.suite, "suite", "/var/cache/stepd-mpich/current/suite", "the folder of the built suite")
	flag.StringVar(&o.only, "only", "", "only tests of this program")
	flag.StringVar(&o.on, "on", "stepctl", "what is compared with hydra: stepctl, or srun on three nodes")
	flag.StringVar(&o.release, "release", "22.05", "the release of Slurm: "+strings.Join(cluster.Releases(), ", "))
	flag.StringVar(&o.cache, "cache", "/var/cache/stepd-slurm", "where the releases lie")
	flag.StringVar(&o.log, "log", "build/mpi-suite.tsv", "where each test's outcome is written")
	flag.StringVar(&o.from, "from", "", "leave out what lies before this program, as coll/nonblocking3")
	flag.DurationVar(&o.limit, "limit", 3*time.Minute, "how long a test may take that names no limit of its own")
	flag.DurationVar(&o.most, "most", time.Hour, "how long a test may take, whatever it names: what hydra does not end in it does not pass")
	flag.Parse()
	o.dirs = strings.Split(*dirs, ",")
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "mpisuite:", err)
		os.Exit(1)
	}
}

type options struct {
	bin, suite, log    string
	only, from         string
	on, release, cache string
	dirs               []string
	limit, most        time.Duration
}

func run(o options) error {
	tests, err := o.tests()
	if err != nil {
		return err
	}
	launchers, end, err := o.launchers()
	if err != nil {
		return err
	}
	defer end()
	if err := os.MkdirAll(filepath.Dir(o.log), 0o755); err != nil {
		return err
	}
	log, err := os.Create(o.log)
	if err != nil {
		return err
	}
	defer log.Close()
	r := newReport(launchers)
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	for _, t := range tests {
		if interrupted.Err() != nil {
			return errors.New("interrupted")
		}
		fmt.Fprintln(log, r.do(o.suite, t))
	}
	r.print(os.Stdout, o.dirs)
	if n := len(r.worse()); n > 0 {
		return fmt.Errorf("%d tests pass under hydra and not under %s: see %q", n, o.on, o.log)
	}
	return nil
}

// launchers are hydra and what is compared with it. end ends what they need.
func (o options) launchers() (_ []launcher, end func(), err error) {
	switch o.on {
	case "stepctl":
		l, end, err := stepctl(o.bin)
		return []launcher{hydra(), l}, end, err
	case "srun":
		n, err := startNodes(context.Background(), o)
		if err != nil {
			return nil, nil, err
		}
		return []launcher{n.hydra(), n.srun()}, n.stop, nil
	}
	return nil, nil, fmt.Errorf("-on %q is neither stepctl nor srun", o.on)
}

// tests are the tests of all lists, in their order. What was not compiled is skipped.
func (o options) tests() ([]test, error) {
	var all []test
	for _, dir := range o.dirs {
		path := filepath.Join(o.suite, dir, "testlist")
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			// A list without variables stays where the sources are.
			found, _ := filepath.Glob(filepath.Join(o.suite, "../work/mpich-*/test/mpi", dir, "testlist"))
			if len(found) != 1 {
				return nil, fmt.Errorf("cannot find %q: make mpi-pmi2", path)
			}
			path = found[0]
		}
		list, err := readList(path, dir, o.limit)
		if err != nil {
			return nil, err
		}
		for _, t := range list {
			if o.only != "" && t.program != o.only {
				continue
			}
			t.limit = min(t.limit, o.most)
			if _, err := os.Stat(filepath.Join(o.suite, dir, t.program)); err != nil && t.skip == "" {
				t.skip = "not compiled"
			}
			all = append(all, t)
		}
	}
	if o.from == "" {
		return all, nil
	}
	for i, t := range all {
		if t.dir+"/"+t.program == o.from {
			return all[i:], nil
		}
	}
	return nil, fmt.Errorf("cannot begin at %q: it is in no list", o.from)
}
