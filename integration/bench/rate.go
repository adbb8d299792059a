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
// what the machine could do. After it comes the CPU time that one of them spent the
// machine, in all processes and in the kernel.
func (b *bench) rateTable() error {
	n, err := b.start("rate", 64, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	slurm, slurmErr := b.slurm()
	w := b.table("steps per second\tclients\tN\tmedian\tp10\tpeer\tpeer's median\tratio")
	var rows []*rateRow
	for _, clients := range []int{1, 2, 8} {
		r := &rateRow{clients: clients, ours: make([]spent, len(n)), slurmErr: slurmErr}
		if err := b.rate(r, n, slurm); err != nil {
			return err
		}
		slurmErr = r.slurmErr
		rows = append(rows, r)
		const what = "steps of one task that ends at once"
		if b.base != "" {
			b.beside(w, fmt.Sprintf("%s, %d clients", what, clients), 1, r.each(cost.time), perSecond)
			continue
		}
		ours, alone, peer := r.ours[0].series(cost.time), r.alone.series(cost.time), r.peer.series(cost.time)
		own := fmt.Sprintf("%s\t%d\t%d\t%s\t%s", what, clients, len(ours), perSecond(ours.at(0.5)), perSecond(ours.at(0.9)))
		fmt.Fprintf(w, "%s\tfork and exec alone\t%s\t%.2f\n", own, perSecond(alone.at(0.5)), alone.at(0.5)/ours.at(0.5))
		if slurmErr != nil {
			fmt.Fprintf(w, "%s\tsrun in a job\tnot measured: %v\t\n", own, slurmErr)
			continue
		}
		fmt.Fprintf(w, "%s\tsrun in a job\t%s\t%.2f\n", own, perSecond(peer.at(0.5)), peer.at(0.5)/ours.at(0.5))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return b.cpuTable(rows)
}

// cost is what one run of a command has taken, in ns: time, and CPU time of the machine, of the command
// with what it has waited for, and of noded and its children.
type cost struct{ ns, machine, client, noded, stepd float64 }

func (c cost) time() float64     { return c.ns }
func (c cost) whole() float64    { return c.machine }
func (c cost) ofClient() float64 { return c.client }
func (c cost) ofNoded() float64  { return c.noded }
func (c cost) ofStepd() float64  { return c.stepd }

// spent are of all rounds.
type spent []cost

func (all spent) series(of func(cost) float64) (s series) {
	for _, c := range all {
		s = append(s, of(c))
	}
	return s
}

// rateRow is what one program spent so many clients: a step of each release, the program alone, and
// srun's; slurmErr is why there is no peer.
type rateRow struct {
	clients     int
	ours        []spent
	alone, peer spent
	slurmErr    error
}

// each is one figure of each release.
func (r *rateRow) each(of func(cost) float64) (all []series) {
	for _, c := range r.ours {
		all = append(all, c.series(of))
	}
	return all
}

// rate measures a row.
func (b *bench) rate(r *rateRow, n nodes, slurm *slurm) error {
	rounds, perRound := b.runsOf(7, 3, 9), 120
	if b.quick || b.base != "" {
		perRound = 40
	}
	for i := range rounds {
		err := n.turns(i, func(k int, node *noded) error {
			before, err := node.cpu()
			if err != nil {
				return err
			}
			c, err := each(r.clients, perRound, node.run("-n1", "--overcommit", "/bin/true"))
			if err != nil {
				return err
			}
			after, err := node.cpu()
			runs := float64(perRound / r.clients * r.clients)
			c.noded, c.stepd = (after.own-before.own)/runs, (after.children-before.children)/runs
			r.ours[k] = append(r.ours[k], c)
			return err
		})
		if err != nil {
			return err
		}
		if b.base != "" {
			continue
		}
		c, err := each(r.clients, perRound, []string{"/bin/true"})
		if err != nil {
			return err
		}
		r.alone = append(r.alone, c)
		if r.slurmErr == nil {
			c, r.slurmErr = each(r.clients, perRound, slurm.run(1))
			r.peer = append(r.peer, c)
		}
	}
	return nil
}

// cpuTable is the second one of rateTable.
func (b *bench) cpuTable(rows []*rateRow) error {
	w := b.table("CPU time a step\tclients\tN\tmedian\tp90\tfork and exec alone\tsrun in a job\tratio")
	parts := []struct {
		what string
		of   func(cost) float64
	}{{"all processes and the kernel", cost.whole}, {"of that its client", cost.ofClient}, {"of that noded", cost.ofNoded}, {"of that stepd, host and task", cost.ofStepd}}
	for _, r := range rows {
		for i, part := range parts {
			if b.base != "" {
				b.beside(w, fmt.Sprintf("CPU time a step, %d clients: %s", r.clients, part.what), 1, r.each(part.of), ms)
				continue
			}
			ours := r.ours[0].series(part.of)
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t", part.what, r.clients, len(ours), ms(ours.at(0.5)), ms(ours.at(0.9)))
			alone, peer := r.alone.series(part.of), r.peer.series(part.of)
			switch {
			case i > 0: // the others have no such part
				fmt.Fprintln(w, "\t\t")
			case r.slurmErr != nil:
				fmt.Fprintf(w, "%s\tnot measured\t\n", ms(alone.at(0.5)))
			default:
				fmt.Fprintf(w, "%s\t%s\t%.2f\n", ms(alone.at(0.5)), ms(peer.at(0.5)), ours.at(0.5)/peer.at(0.5))
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
// kernel, in ns (proc_stat(5)): what a step spent is in many processes, and some end unwaited for.
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
	return cost{ns: took / did, machine: (after - before) / did, client: float64(client.Load()) / did}, errors.Join(err, cpuErr)
}
