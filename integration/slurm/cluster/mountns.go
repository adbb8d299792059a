package cluster

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// nsGetMountID is NS_GET_MNTNS_ID (linux/nsfs.h, Linux 6.11).
const nsGetMountID = 0x8008b705

// unshared is a command line that runs line in new namespaces, the mount namespace among them.
//
// A mount namespace can be bound only in one with a lower number, as Slurm's job_container/tmpfs
// does with each job's. Since Linux 6.18 each CPU deals numbers from a lot of its own
// (kernel/nstree.c), and Slurm does not look for a CPU: slurmd's namespace has to be lower than
// all that come. So it is made on the CPU whose numbers are the lowest.
func unshared(flags, line []string) []string {
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return slices.Concat([]string{"unshare"}, flags, line)
	}
	var cpus []string
	lowest, number := "", 0
	for cpu := range len(all) * 64 {
		if !all.IsSet(cpu) {
			continue
		}
		cpus = append(cpus, strconv.Itoa(cpu))
		// Before Linux 6.11 it is 0: there is one lot for all.
		if n := nextNumber(cpu); lowest == "" || n < number {
			lowest, number = cpus[len(cpus)-1], n
		}
	}
	back := []string{"taskset", "-c", strings.Join(cpus, ",")}
	return slices.Concat([]string{"taskset", "-c", lowest, "unshare"}, flags, back, line)
}

// nextNumber is the number of a mount namespace that is made on a CPU now; 0 where the kernel does
// not tell.
func nextNumber(cpu int) (number int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		var one unix.CPUSet
		one.Set(cpu)
		if unix.SchedSetaffinity(0, &one) != nil || unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS) != nil {
			return
		}
		if f, err := os.Open("/proc/thread-self/ns/mnt"); err == nil {
			number, _ = unix.IoctlGetInt(int(f.Fd()), nsGetMountID)
			f.Close()
		}
	}()
	<-done
	return number
}
