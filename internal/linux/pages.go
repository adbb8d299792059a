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
	defer maps.Close()
	for sc := bufio.NewScanner(maps); sc.Scan(); { // proc_pid_maps(5)
		var from, to uintptr
		var perms string
		if _, err := fmt.Sscanf(sc.Text(), "%x-%x %s", &from, &to, &perms); err != nil || perms[1] != '-' || !strings.HasSuffix(sc.Text(), " "+exe) {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}
