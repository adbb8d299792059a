package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// slurmdTable is what a step of one task costs below slurmd, of our step daemon and of Slurm's own
// in turns. Each has a slurmd and a slurmctld of its own.
func slurmdTable(b *bench) error {
	var ours *slurm
	original, err := b.slurm()
	if err == nil {
		ours, err = startSlurm(b.dir, "ours-slurm", 2691, filepath.Join(b.bin, "slurmstepd"))
	}
	if err != nil {
		fmt.Printf("\nbelow slurmd: not measured: %v\n", err)
		return nil
	}
	defer original.use()
	defer ours.stop()
	rec, err := b.events()
	if err != nil {
		return err
	}
	sides := [2]*slurm{ours, original}
	var launches [2][]launch
	var cpu, memory [2]series
	runs, perRound := b.runsOf(60, 10, 60), 20
	for i := range runs + 1 {
		for k := range sides {
			k = (k + i) % 2
			s := sides[k]
			s.use()
			l, err := measure(rec, s.pid(), 1, s.run(1))
			if err != nil {
				return err
			}
			if i > 0 { // the first warms the caches
				launches[k] = append(launches[k], l)
			}
			if i%10 != 1 {
				continue
			}
			c, err := each(1, perRound, s.run(1))
			if err != nil {
				return err
			}
			kb, err := s.memoryOfStep()
			if err != nil {
				return err
			}
			cpu[k], memory[k] = append(cpu[k], c.machine), append(memory[k], kb)
		}
	}
	w := b.table("below slurmd\ttasks\tN\tmedian\tp90\tpeer\tpeer's median\tratio")
	whole := span{"srun's exec to its exit", func(l launch) uint64 { return l.clientExit - l.client }}
	for _, sp := range []span{toFirst, toEnd, whole} {
		row(w, strings.Replace(sp.what, "stepd", "slurmstepd", 2), 1, sp.series(launches[0]), "slurmstepd", sp.series(launches[1]), nil)
	}
	row(w, "CPU time a step, all processes and the kernel", 1, cpu[0], "slurmstepd", cpu[1], nil)
	fmt.Fprintf(w, "proportional memory, all but the task\t1\t%d\t%s\t%s\tslurmstepd\t%s\t%.2f\n", len(memory[0]),
		mb(memory[0].at(0.5)), mb(memory[0].at(0.9)), mb(memory[1].at(0.5)), memory[0].at(0.5)/memory[1].at(0.5))
	return w.Flush()
}

// memoryOfStep is the Pss of a step's daemons, in kB: the step daemon's, and the host's and the
// keeper's if it has these, while a task sleeps.
func (s *slurm) memoryOfStep() (float64, error) {
	cmd := exec.Command("srun", "-Q", "--jobid", s.job, "-n1", "--overcommit", "-i", "none", "sleep", "60")
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	kb, id, err := s.memory()
	if err == nil {
		err = exec.Command("scancel", id).Run()
	}
	if err != nil {
		cmd.Process.Kill()
	}
	cmd.Wait() // its end is the cancel's, and the other side's step of this number is the next
	return kb, err
}

// memory waits for the step's task, and for a second, as stepMemory.
func (s *slurm) memory() (kb float64, id string, err error) {
	if err := awaitSleepers(1); err != nil {
		return 0, "", err
	}
	time.Sleep(time.Second)
	if _, id, err = s.killer("").daemon(); err != nil {
		return 0, "", err
	}
	for _, pid := range pids() {
		b, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if name, _, ok := strings.Cut(string(b), ": ["+id+"]"); err == nil && ok && !strings.Contains(name, "\x00") {
			kb += float64(pss(pid))
		}
	}
	return kb, id, nil
}
