package main

import (
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// rateTable is steps per second, each of one task that ends at once, for so many
// clients at a time; beside srun in a job, by turns, and the programs alone, which is
// what the machine could do.
func (b *bench) rateTable() error {
	rounds, perRound := b.runsOf(7, 3, 9), 120
	if b.quick || b.base != "" {
		perRound = 40
	}
	n, err := b.start("rate", 64, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	slurm, slurmErr := b.slurm()
	w := b.table("steps per second\tclients\tN\tmedian\tp10\tpeer\tpeer's median\tratio")
	for _, clients := range []int{1, 2, 8} {
		of := make([]series, len(n))
		var alone, peer series
		for i := range rounds {
			err := n.turns(i, func(k int, node *noded) error {
				ns, err := each(clients, perRound, node.run("-n1", "--overcommit", "/bin/true"))
				of[k] = append(of[k], ns)
				return err
			})
			if err != nil {
				return err
			}
			if b.base != "" {
				continue
			}
			ns, err := each(clients, perRound, []string{"/bin/true"})
			if err != nil {
				return err
			}
			alone = append(alone, ns)
			if slurmErr == nil {
				ns, slurmErr = each(clients, perRound, slurm.run(1))
				peer = append(peer, ns)
			}
		}
		const what = "steps of one task that ends at once"
		if b.base != "" {
			b.beside(w, fmt.Sprintf("%s, %d clients", what, clients), 1, of, perSecond)
			continue
		}
		own := fmt.Sprintf("%s\t%d\t%d\t%s\t%s", what, clients, rounds, perSecond(of[0].at(0.5)), perSecond(of[0].at(0.9)))
		fmt.Fprintf(w, "%s\tfork and exec alone\t%s\t%.2f\n", own, perSecond(alone.at(0.5)), alone.at(0.5)/of[0].at(0.5))
		if slurmErr != nil {
			fmt.Fprintf(w, "%s\tsrun in a job\tnot measured: %v\t\n", own, slurmErr)
			continue
		}
		fmt.Fprintf(w, "%s\tsrun in a job\t%s\t%.2f\n", own, perSecond(peer.at(0.5)), peer.at(0.5)/of[0].at(0.5))
	}
	return w.Flush()
}

// each has so many clients run a command, runs times together, and returns the time
// divided by the runs, in ns.
func each(clients, runs int, argv []string) (float64, error) {
	start := time.Now()
	errs := make(chan error, clients)
	for range clients {
		go func() {
			var err error
			for range runs / clients {
				if out, e := exec.Command(argv[0], argv[1:]...).CombinedOutput(); e != nil {
					err = errors.Join(err, fmt.Errorf("%q: %w: %s", argv[0], e, out))
				}
			}
			errs <- err
		}()
	}
	var err error
	for range clients {
		err = errors.Join(err, <-errs)
	}
	return float64(time.Since(start)) / float64(runs/clients*clients), err
}
