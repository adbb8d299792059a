package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// rateTable is steps per second, each of one task that ends at once, for so many
// clients at a time; beside srun in a job, by turns, and the programs alone, which is
// what the machine could do. After it comes the CPU time that one of them costs the
// machine, in all processes and in the kernel.
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
	var cpus []cpuRow
	for _, clients := range []int{1, 2, 8} {
		of, cpu := make([]series, len(n)), cpuRow{clients: clients, of: make([]series, len(n))}
		var alone, peer series
		for i := range rounds {
			err := n.turns(i, func(k int, node *noded) error {
				ns, used, err := each(clients, perRound, node.run("-n1", "--overcommit", "/bin/true"))
				of[k], cpu.of[k] = append(of[k], ns), append(cpu.of[k], used)
				return err
			})
			if err != nil {
				return err
			}
			if b.base != "" {
				continue
			}
			ns, used, err := each(clients, perRound, []string{"/bin/true"})
			if err != nil {
				return err
			}
			alone, cpu.alone = append(alone, ns), append(cpu.alone, used)
			if slurmErr == nil {
				ns, used, slurmErr = each(clients, perRound, slurm.run(1))
				peer, cpu.peer = append(peer, ns), append(cpu.peer, used)
			}
		}
		cpus = append(cpus, cpu)
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
	if err := w.Flush(); err != nil {
		return err
	}
	return b.cpuTable(cpus, rounds, slurmErr)
}

// cpuRow is what one program costs so many clients: a step, the program alone, and srun's.
type cpuRow struct {
	clients     int
	of          []series
	alone, peer series
}

// cpuTable is the second one of rateTable; slurmErr is why there is no peer.
func (b *bench) cpuTable(rows []cpuRow, rounds int, slurmErr error) error {
	w := b.table("CPU time a step\tclients\tN\tmedian\tp90\tfork and exec alone\tsrun in a job\tratio")
	const what = "all processes and the kernel, one task that ends at once"
	for _, c := range rows {
		if b.base != "" {
			b.beside(w, fmt.Sprintf("%s, %d clients", what, c.clients), 1, c.of, ms)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t", what, c.clients, rounds, ms(c.of[0].at(0.5)), ms(c.of[0].at(0.9)), ms(c.alone.at(0.5)))
		if slurmErr != nil {
			fmt.Fprintln(w, "not measured\t")
			continue
		}
		fmt.Fprintf(w, "%s\t%.2f\n", ms(c.peer.at(0.5)), c.of[0].at(0.5)/c.peer.at(0.5))
	}
	return w.Flush()
}

// machineCPU is the CPU time that the machine has spent since its boot, of processes and of the
// kernel, in ns (proc_stat(5)): what a step costs is in many processes, and some end unwaited for.
// Its unit is 10 ms, and what else the machine does is in it.
func machineCPU() (ns float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system, idle, wait, irq, softirq float64
	if _, err := fmt.Sscanf(string(text), "cpu %g %g %g %g %g %g %g", &user, &nice, &system, &idle, &wait, &irq, &softirq); err != nil {
		return 0, fmt.Errorf("cannot read /proc/stat: %w", err)
	}
	return (user + nice + system + irq + softirq) * 1e7, nil
}

// each has so many clients run a command, runs times together, and returns the time
// and the machine's CPU time divided by the runs, in ns.
func each(clients, runs int, argv []string) (ns, cpu float64, err error) {
	before, err := machineCPU()
	if err != nil {
		return 0, 0, err
	}
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
	for range clients {
		err = errors.Join(err, <-errs)
	}
	took, did := float64(time.Since(start)), float64(runs/clients*clients)
	after, cpuErr := machineCPU()
	return took / did, (after - before) / did, errors.Join(err, cpuErr)
}
