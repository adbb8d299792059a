// Package device refuses devices to the processes of a cgroup v2, by an eBPF
// program that is attached to it. It is heavy, and noded's alone.
package device

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // sets cgroups.DevicesSetV2
	devices "github.com/opencontainers/cgroups/devices/config"
	"golang.org/x/sys/unix"

	"stepd/step"
)

// Attach refuses the devices to every process in and below dir, and nothing
// else; a program that an earlier call has attached is replaced. It holds until
// the directory is removed: the process that attached it may end.
func Attach(dir string, deny []step.Device) error {
	if cgroups.DevicesSetV2 == nil {
		return errors.New("internal error: device programs are not built in")
	}
	rules := []*devices.Rule{{Type: devices.WildcardDevice, Major: devices.Wildcard, Minor: devices.Wildcard, Permissions: "rwm", Allow: true}}
	for _, d := range deny {
		if d.Type != "b" && d.Type != "c" {
			return fmt.Errorf("cannot refuse device %q: type %q is neither \"b\" nor \"c\"", d.Path, d.Type)
		}
		rules = append(rules, &devices.Rule{
			Type: devices.Type(d.Type[0]), Major: int64(d.Major), Minor: int64(d.Minor), Permissions: "rwm",
		})
	}
	if err := cgroups.DevicesSetV2(dir, &cgroups.Resources{Devices: rules}); err != nil {
		return fmt.Errorf("cannot attach a device program to cgroup %q: %w", dir, err)
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
