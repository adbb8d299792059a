package main

import (
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// clientTable is the CPU time, user and system, of the client of a step of one task
// that ends at once.
func (b *bench) clientTable() error {
	n, err := b.start("client", 8, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	runs := b.runsOf(200, 20, 200)
	alone, whole := make([]series, len(n)), make([]series, len(n))
	for i := range runs + 1 {
		err := n.turns(i, func(k int, node *noded) error {
			own, all, err := clientCPU(node.run("true"))
			if err == nil && i > 0 { // the first of each warms the caches
				alone[k], whole[k] = append(alone[k], own), append(whole[k], all)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	w := b.table("client's CPU time\ttasks\tN\tmedian\tp90")
	b.row(w, "client's CPU of run true", 1, alone, ms)
	b.row(w, "client's CPU of run true, with its children's", 1, whole, ms)
	return w.Flush()
}

// clientCPU runs a command and returns the CPU time of its process, and that with the
// processes that it has waited for, in ns.
func clientCPU(argv []string) (own, all float64, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	// As a zombie the process still has its clock, which is its own. wait4's rusage has
	// the children in it.
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	var ns int64
	if err == nil {
		ns, err = cpuOf(cmd.Process.Pid)
	}
	if werr := cmd.Wait(); werr != nil {
		return 0, 0, fmt.Errorf("%q: %w", argv, werr)
	}
	ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return float64(ns), float64(time.Duration(ru.Utime.Nano() + ru.Stime.Nano())), err
}
