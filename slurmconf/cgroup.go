package slurmconf

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Cgroup is cgroup.conf, with Slurm's keys, units and defaults (cgroup.conf(5)).
// Without the file every field has its default, which confines nothing.
type Cgroup struct {
	// CgroupPlugin is "autodetect" (the default), "cgroup/v1", "cgroup/v2" or
	// "disabled", with which no cgroup is made at all.
	CgroupPlugin string
	// CgroupMountpoint is where the controllers are mounted: /sys/fs/cgroup by
	// default. The key is for tests.
	CgroupMountpoint string

	// ConstrainCores keeps tasks on the step's CPUs by a cpuset.
	ConstrainCores bool
	// ConstrainRAMSpace limits memory to AllowedRAMSpace percent of what was
	// allocated. It needs memory as a consumable resource; see
	// Config.MemoryIsConsumable.
	ConstrainRAMSpace bool
	// ConstrainSwapSpace limits memory and swap together to AllowedRAMSpace plus
	// AllowedSwapSpace percent of what was allocated. Where ConstrainRAMSpace is
	// no, AllowedRAMSpace counts as 100, and memory alone has this same limit.
	ConstrainSwapSpace bool
	// ConstrainDevices lets tasks open the devices of their own GRES only, and
	// devices that are no GRES.
	ConstrainDevices bool

	// AllowedRAMSpace (default 100) and AllowedSwapSpace (default 0) are percent
	// of the allocated memory. They may exceed 100.
	AllowedRAMSpace, AllowedSwapSpace float64
	// MaxRAMPercent bounds a memory limit, MaxSwapPercent the sum of memory and
	// swap, both in percent of the node's RealMemory; both are 100 by
	// default. They are the limits of what has no memory allocated to it.
	MaxRAMPercent, MaxSwapPercent float64
	// MinRAMSpace, in MiB, is below no memory limit. Default 30.
	MinRAMSpace uint64
	// MemorySwappiness, 0 to 100, is for cgroup v1 and with ConstrainSwapSpace;
	// nil leaves the kernel's.
	MemorySwappiness *int

	// IgnoreSystemd makes cgroups without asking systemd. v2 only.
	IgnoreSystemd bool
	// SystemdTimeout is how long systemd may take to make the scope; the key is
	// in milliseconds. Default 1 s.
	SystemdTimeout time.Duration
	// EnableControllers enables controllers from the root of the tree downwards,
	// where systemd has not done so. v2 only.
	EnableControllers bool
	// CgroupSlice is the slice for the scope, "" for systemd's default
	// (system.slice). v2 only.
	CgroupSlice string
}

func defaultCgroup() Cgroup {
	return Cgroup{
		CgroupPlugin: "autodetect", CgroupMountpoint: "/sys/fs/cgroup",
		AllowedRAMSpace: 100, MaxRAMPercent: 100, MaxSwapPercent: 100, MinRAMSpace: 30,
		SystemdTimeout: time.Second,
	}
}

// Bounds of the percentages: what is no slip of the keyboard.
const (
	percentMax = 100
	allowedMax = 1_000_000
)

func (c *Cgroup) keys() keySet {
	keys := keySet{
		"cgroupplugin":            parsed(&c.CgroupPlugin, cgroupPlugin),
		"cgroupmountpoint":        parsed(&c.CgroupMountpoint, absolute),
		"constraincores":          boolean(&c.ConstrainCores),
		"constrainramspace":       boolean(&c.ConstrainRAMSpace),
		"constrainswapspace":      boolean(&c.ConstrainSwapSpace),
		"constraindevices":        boolean(&c.ConstrainDevices),
		"allowedramspace":         percent(&c.AllowedRAMSpace, allowedMax),
		"allowedswapspace":        percent(&c.AllowedSwapSpace, allowedMax),
		"maxrampercent":           percent(&c.MaxRAMPercent, allowedMax),
		"maxswappercent":          percent(&c.MaxSwapPercent, percentMax),
		"minramspace":             count(&c.MinRAMSpace, 0, memoryMax),
		"memoryswappiness":        optional(&c.MemorySwappiness, func(n *int) setter { return count(n, 0, 100) }),
		"signalchildrenprocesses": unused,
		"ignoresystemd":           boolean(&c.IgnoreSystemd),
		"ignoresystemdonfailure":  unused,
		"systemdtimeout":          times(&c.SystemdTimeout, time.Millisecond, 1, secondsMax*1000),
		"enablecontrollers":       boolean(&c.EnableControllers),
		"enableextracontrollers":  unused,
		"cgroupslice":             parsed(&c.CgroupSlice, slice),
	}
	// Keys of older releases, which files still hold.
	for _, old := range []string{
		"cgroupautomount", "cgroupreleaseagentdir", "alloweddevicesfile", "taskaffinity",
		"constrainkmemspace", "allowedkmemspace", "maxkmempercent", "minkmemspace",
		"memorylimitenforcement", "memorylimitthreshold",
	} {
		keys[old] = obsolete
	}
	return keys
}

// nothing takes any value of a key that is read elsewhere, or concerns the controller alone.
func nothing(string) *flaw { return nil }

// unused takes any value of a key of Slurm's that has no effect here.
func unused(string) *flaw { return &flaw{SeverityIgnored, "the key has no effect here", ""} }

// obsolete takes any value of a key that newer releases do not have.
func obsolete(string) *flaw {
	return &flaw{SeverityWarning, "the key is obsolete and has no effect", "remove it"}
}

func cgroupPlugin(v string) (string, *flaw) {
	word, f := oneOf([]string{"cgroup/"}, "autodetect", "v1", "v2", "disabled")(v)
	switch {
	case f != nil:
		f.remedy = "write one of autodetect, cgroup/v1, cgroup/v2, disabled"
	case word == "v1" || word == "v2":
		word = "cgroup/" + word
	}
	return word, f
}

// slice reads the name of a systemd slice. systemd makes its parents of the
// dashes in it; a path is none.
func slice(v string) (string, *flaw) {
	name, ok := strings.CutSuffix(v, ".slice")
	if !ok || name == "" || len(v) > 255 || strings.ContainsAny(v, "/ \t\"%\x7f") || strings.HasPrefix(v, ".") {
		return "", wrong("write a name such as system.slice", "not the name of a slice")
	}
	return v, nil
}

// percent reads a number with or without decimals: "98.5".
func percent(field *float64, high float64) setter {
	return parsed(field, func(v string) (float64, *flaw) {
		remedy := fmt.Sprintf("write a percentage from 0 to %g, such as 98.5", high)
		x, err := strconv.ParseFloat(v, 64)
		switch {
		case err != nil || strings.Trim(v, "0123456789.") != "": // no sign, exponent, NaN or %
			return 0, wrong(remedy, "not a number")
		case x > high:
			return 0, wrong(remedy, "out of range")
		}
		return x, nil
	})
}
