package wire

import "fmt"

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
		return fmt.Sprintf("protocol %#06x", uint16(v))
	}
	return releases[(v-V2205)>>8]
}

// check returns an error that names the release where it is not known.
func (v Release) check() error {
	if v.Known() {
		return nil
	}
	return fmt.Errorf("cannot read %s of Slurm: known are %s to %s; install the stepd that goes with this slurmd", v, V2205, V2605)
}
