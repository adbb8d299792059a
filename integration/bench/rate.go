package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
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
		of := make([]series, len(n))
		cpu := cpuRow{clients: clients, of: make([]series, len(n)), client: make([]series, len(n)), noded: make([]series, len(n)), stepd: make([]series, len(n))}
		var alone, peer series
		for i := range rounds {
			err := n.turns(i, func(k int, node *noded) error {
				before, err := node.cpu()
				if err != nil {
					return err
				}
				used, err := each(clients, perRound, node.run("-n1", "--overcommit", "/bin/true"))
				if err != nil {
					return err
				}
				after, err := node.cpu()
				of[k], cpu.of[k] = append(of[k], used.ns), append(cpu.of[k], used.machine)
				cpu.client[k] = append(cpu.client[k], used.client)
				cpu.noded[k] = append(cpu.noded[k], (after.own-before.own)/used.runs)
				cpu.stepd[k] = append(cpu.stepd[k], (after.children-before.children)/used.runs)
				return err
			})
			if err != nil {
				return err
			}
			if b.base != "" {
				continue
			}
			used, err := each(clients, perRound, []string{"/bin/true"})
			if err != nil {
				return err
			}
			alone, cpu.alone = append(alone, used.ns), append(cpu.alone, used.machine)
			if slurmErr == nil {
				used, slurmErr = each(clients, perRound, slurm.run(1))
				peer, cpu.peer = append(peer, used.ns), append(cpu.peer, used.machine)
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

// cpuRow is what one program costs so many clients: a step, and of that its client, noded, and
// stepd with the host and the task, of each release; the program alone; and srun's.
type cpuRow struct {
	clients                  int
	of, client, noded, stepd []series
	alone, peer              series
}

// cpuTable is the second one of rateTable; slurmErr is why there is no peer.
func (b *bench) cpuTable(rows []cpuRow, rounds int, slurmErr error) error {
	w := b.table("CPU time a step\tclients\tN\tmedian\tp90\tfork and exec alone\tsrun in a job\tratio")
	for _, c := range rows {
		for _, part := range []struct {
			what string
			of   []series
		}{{"all processes and the kernel", c.of}, {"of that its client", c.client}, {"of that noded", c.noded}, {"of that stepd, host and task", c.stepd}} {
			if b.base != "" {
				b.beside(w, fmt.Sprintf("CPU time a step, %d clients: %s", c.clients, part.what), 1, part.of, ms)
				continue
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t", part.what, c.clients, rounds, ms(part.of[0].at(0.5)), ms(part.of[0].at(0.9)))
			switch {
			case &part.of[0] != &c.of[0]:
				fmt.Fprintln(w, "\t\t")
			case slurmErr != nil:
				fmt.Fprintf(w, "%s\tnot measured\t\n", ms(c.alone.at(0.5)))
			default:
				fmt.Fprintf(w, "%s\t%s\t%.2f\n", ms(c.alone.at(0.5)), ms(c.peer.at(0.5)), c.of[0].at(0.5)/c.peer.at(0.5))
			}
		}
	}
	return w.Flush()
}

// nodeCPU is CPU time in ns: noded's own, and its children's, which are the step daemons with
// all that these have waited for (proc_pid_stat(5)). Its unit is 10 ms.
type nodeCPU struct{ own, children float64 }

func (n *noded) cpu() (nodeCPU, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.pid()))
	if err != nil {
		return nodeCPU{}, err
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name has none
	fields := strings.Fields(rest)
	var ns [4]float64 // user, system, and both of the children
	for i := range ns {
		ticks, err := strconv.ParseUint(fields[11+i], 10, 64)
		if err != nil {
			return nodeCPU{}, fmt.Errorf("cannot read /proc/%d/stat: %w", n.pid(), err)
		}
		ns[i] = float64(ticks) * 1e7
	}
	return nodeCPU{own: ns[0] + ns[1], children: ns[2] + ns[3]}, nil
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

// cost is what one run of a command has taken, in ns: time, the machine's CPU time, and the
// CPU time of the command and of what it has waited for. runs is how many there were.
type cost struct{ ns, machine, client, runs float64 }

// each has so many clients run a command, runs times together.
func each(clients, runs int, argv []string) (cost, error) {
	before, err := machineCPU()
	if err != nil {
		return cost{}, err
	}
	start := time.Now()
	var client atomic.Int64
	errs := make(chan error, clients)
	for range clients {
		go func() {
			var err error
			for range runs / clients {
				cmd := exec.Command(argv[0], argv[1:]...)
				if out, e := cmd.CombinedOutput(); e != nil {
					err = errors.Join(err, fmt.Errorf("%q: %w: %s", argv[0], e, out))
					continue
				}
				client.Add(int64(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()))
			}
			errs <- err
		}()
	}
	for range clients {
		err = errors.Join(err, <-errs)
	}
	took, did := float64(time.Since(start)), float64(runs/clients*clients)
	after, cpuErr := machineCPU()
	return cost{took / did, (after - before) / did, float64(client.Load()) / did, did}, errors.Join(err, cpuErr)
}
