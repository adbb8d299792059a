package wire

import (
	"errors"
	"fmt"
	"syscall"
)

// Release is a release of Slurm, by the word that stands for it in its protocols. The zero
// value is none.
type Release uint16

// The releases whose formats are known.
const (
	V2205 Release = (38 + iota) << 8
	V2302
	V2311
	V2405
	V2411
	V2505
	V2511
	V2605
)

var releases = [...]string{"22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"}

// Known reports whether the release's formats are known.
func (v Release) Known() bool { return v&0xff == 0 && v >= V2205 && v <= V2605 }

// String is the release as Slurm writes it, "23.11".
func (v Release) String() string {
	if !v.Known() {
		return fmt.Sprintf("protocol 0x%04x", uint16(v))
	}
	return releases[(v-V2205)>>8]
}

// ReleaseError is that a release's formats are not known.
type ReleaseError struct{ Release Release }

func (e *ReleaseError) Error() string {
	return fmt.Sprintf("cannot read %s of Slurm: known are %s to %s; install the stepd that goes with this slurmd", e.Release, V2205, V2605)
}

// check returns a *ReleaseError where the release is not known.
func (v Release) check() error {
	if v.Known() {
		return nil
	}
	return &ReleaseError{v}
}

// Errno is the number that slurmd takes for an error of this package: srun and slurmctld print
// its text. nil is 0.
func Errno(err error) int32 {
	switch unknown := (*ReleaseError)(nil); {
	case err == nil:
		return 0
	case errors.As(err, &unknown):
		return 1005 // SLURM_PROTOCOL_VERSION_ERROR, "Incompatible versions of client and server code"
	case errors.Is(err, errStepManager):
		return 2036 // ESLURM_NOT_SUPPORTED, "Requested operation not supported on this system"
	default:
		return int32(syscall.EINVAL)
	}
}
