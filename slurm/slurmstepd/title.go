package slurmstepd

import (
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setTitle makes text the process's title (/proc/self/cmdline) and comm its name: site
// tools find steps by both. The arguments and the environment lie behind each other on the
// stack, and the runtime has copied the environment: the title takes the place of both.
func setTitle(comm, text string) {
	b := append([]byte(comm), 0)
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&b[0])), 0, 0, 0)
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return // the name alone
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest) // from field 3 on, proc_pid_stat(5)
	const argStart, envEnd = 48 - 3, 51 - 3
	if len(fields) <= envEnd {
		return
	}
	from, err1 := strconv.ParseUint(fields[argStart], 10, 64)
	to, err2 := strconv.ParseUint(fields[envEnd], 10, 64)
	first := unsafe.Pointer(unsafe.StringData(os.Args[0]))
	if err1 != nil || err2 != nil || uint64(uintptr(first)) != from || to <= from {
		return
	}
	os.Args = []string{strings.Clone(os.Args[0])}
	area := unsafe.Slice((*byte)(first), int(to-from))
	clear(area)
	copy(area[:len(area)-1], text)
}
