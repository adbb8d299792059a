// Package device refuses devices to the processes of a cgroup v2, by a BPF program that is
// attached to it.
package device

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

// Attach refuses the devices to every process in and below dir, and nothing
// else; a program that an earlier call has attached is replaced. It holds until
// the directory is removed: the process that attached it may end.
func Attach(dir string, deny []step.Device) error {
	var rules []linux.DeviceRule
	for _, d := range deny {
		if d.Type != "b" && d.Type != "c" {
			return fmt.Errorf("cannot refuse device %q: type %q is neither \"b\" nor \"c\"", d.Path, d.Type)
		}
		rules = append(rules, linux.DeviceRule{Block: d.Type == "b", Major: d.Major, Minor: d.Minor})
	}
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot refuse devices: %w", err)
	}
	defer f.Close()
	if err := linux.DenyDevices(int(f.Fd()), rules); err != nil {
		return fmt.Errorf("cannot refuse devices in cgroup %q: %w", dir, err)
	}
	return nil
}

// Stat reads the numbers of a device node.
func Stat(path string) (step.Device, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return step.Device{}, fmt.Errorf("cannot find device: %w", &os.PathError{Op: "stat", Path: path, Err: err})
	}
	d := step.Device{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev), Path: path}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		d.Type = "b"
	case unix.S_IFCHR:
		d.Type = "c"
	default:
		return step.Device{}, fmt.Errorf("cannot use %q as a device: it is none", path)
	}
	return d, nil
}
