package linux

import (
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/runc/libcontainer/system"
)

// StartTime is when process pid started, in clock ticks since boot
// (proc_pid_stat(5), field 22). With pid and BootID it names one process for
// ever.
func StartTime(pid int) (uint64, error) {
	stat, err := system.Stat(pid)
	if err != nil {
		return 0, fmt.Errorf("cannot read the start time of process %d: %w", pid, err)
	}
	return stat.StartTime, nil
}

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// BootID is the kernel's name for this boot, a UUID (random(4)).
func BootID() (string, error) {
	data, err := os.ReadFile(bootIDPath)
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(data))
	if len(id) != 36 {
		return "", fmt.Errorf("cannot parse the boot id in %q: got %q", bootIDPath, id)
	}
	return id, nil
}

// SetSubreaper makes the calling process the parent of its orphaned
// descendants (PR_SET_CHILD_SUBREAPER). It holds for all threads, and is not
// inherited.
func SetSubreaper() error {
	if err := system.SetSubreaper(1); err != nil {
		return fmt.Errorf("cannot become a subreaper: %w", err)
	}
	return nil
}
