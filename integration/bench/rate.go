package main

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"text/tabwriter"
	"time"
)

// throughput is steps per second, each of one task that ends at once, for so many
// clients at a time; beside srun in a job, by turns, and the programs alone, which is
// what the machine could do.
func throughput(w *tabwriter.Writer, ours *noded, slurm *slurm, slurmErr error, quick bool) error {
	rounds, perRound := 7, 120
	if quick {
		rounds, perRound = 3, 40
	}
	for _, clients := range []int{1, 2, 8} {
		var own, bare, peer rates
		for range rounds {
			if err := own.add(clients, perRound, ours.run("-n1", "--overcommit", "/bin/true")); err != nil {
				return err
			}
			if err := bare.add(clients, perRound, []string{"/bin/true"}); err != nil {
				return err
			}
			if slurmErr == nil {
				slurmErr = peer.add(clients, perRound, slurm.run(1))
			}
		}
		what := fmt.Sprintf("steps per second, %d clients", clients)
		fmt.Fprintf(w, "%s\t1\t%d\t%.0f /s\t%.0f /s\tfork and exec alone\t%.0f /s\t%.2f\n", what, rounds, own.at(0.5), own.at(0.1), bare.at(0.5), own.at(0.5)/bare.at(0.5))
		if len(peer) < rounds {
			fmt.Fprintf(w, "%s\t1\t%d\t%.0f /s\t%.0f /s\tsrun in a job\tnot measured: %v\t\n", what, rounds, own.at(0.5), own.at(0.1), slurmErr)
			continue
		}
		fmt.Fprintf(w, "%s\t1\t%d\t%.0f /s\t%.0f /s\tsrun in a job\t%.1f /s\t%.2f\n", what, rounds, own.at(0.5), own.at(0.1), peer.at(0.5), own.at(0.5)/peer.at(0.5))
	}
	return nil
}

// rates are runs per second; the worst are the low ones.
type rates []float64

func (r rates) at(q float64) float64 {
	sorted := slices.Sorted(slices.Values(r))
	return sorted[int(float64(len(sorted))*q)]
}

// add has so many clients run a command, runs times together.
func (r *rates) add(clients, runs int, argv []string) error {
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
	*r = append(*r, float64(runs/clients*clients)/time.Since(start).Seconds())
	return err
}
