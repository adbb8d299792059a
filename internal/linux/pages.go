package linux

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DropProgramPages takes the pages of the program's file that nothing can have written to out of
// the process's memory (madvise(2), MADV_DONTNEED). One that is used again is mapped again.
func DropProgramPages() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	var ranges [][2]uintptr
	for sc := bufio.NewScanner(maps); sc.Scan(); { // proc_pid_maps(5)
		var from, to uintptr
		var perms string
		if _, err := fmt.Sscanf(sc.Text(), "%x-%x %s", &from, &to, &perms); err == nil && perms[1] == '-' && strings.HasSuffix(sc.Text(), " "+exe) {
			ranges = append(ranges, [2]uintptr{from, to})
		}
	}
	maps.Close()
	// Nothing else is called from here on: the kernel maps 64 KB around each page that is used.
	for i := len(ranges) - 1; i >= 0; i-- {
		if _, _, errno := unix.RawSyscall(unix.SYS_MADVISE, ranges[i][0], ranges[i][1]-ranges[i][0], unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}
