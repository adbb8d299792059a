package cgroup

import (
	"fmt"

	"stepd/step"
)

// Conf is cgroup.conf as far as it limits steps (cgroup.conf(5)).
type Conf struct {
	Cores, RAM, Swap, Devices bool
	// AllowedRAM and AllowedSwap are percent of the memory that was given,
	// MaxRAM and MaxSwap percent of the node's.
	AllowedRAM, AllowedSwap, MaxRAM, MaxSwap float64
	// MinRAM is the least limit, in MB.
	MinRAM uint64
	// Swappiness is for v1; nil leaves the kernel's.
	Swappiness *uint64
}

// memoryLimit is a level's limits, in bytes.
type memoryLimit struct {
	hard uint64 // RAM
	soft uint64 // RAM from which on the kernel takes pages back
	all  uint64 // RAM and swap
	note string // why it is not what was asked for
}

// memory is the limit of who was given mb of a node with nodeMB; 0 was given
// none, and may have what MaxRAMPercent leaves.
func (c Conf) memory(mb, nodeMB uint64) memoryLimit {
	allowedRAM := c.AllowedRAM
	if !c.RAM {
		allowedRAM = 100 // only RAM and swap together are limited (ConstrainSwapSpace)
	}
	maxRAM, maxAll := percent(nodeMB<<20, c.MaxRAM), percent(nodeMB<<20, c.MaxSwap)
	if mb == 0 {
		l := memoryLimit{hard: maxRAM, soft: maxRAM, all: max(maxAll, maxRAM)}
		return c.swapOnly(l)
	}
	given := mb << 20
	l := memoryLimit{hard: percent(given, allowedRAM), soft: given}
	least := c.MinRAM << 20
	switch {
	case l.hard < least:
		l.note = fmt.Sprintf("the memory limit is raised from %s to %s (MinRAMSpace)", formatBytes(l.hard), formatBytes(least))
		l.hard, l.soft = least, least
	case l.hard > maxRAM:
		l.note = fmt.Sprintf("the memory limit is lowered from %s to %s (MaxRAMPercent)", formatBytes(l.hard), formatBytes(maxRAM))
		l.hard = maxRAM
	}
	l.soft = min(l.soft, l.hard)
	l.all = max(min(l.hard+percent(given, c.AllowedSwap), maxAll), l.hard)
	return c.swapOnly(l)
}

// swapOnly limits RAM by the sum where only that is to be limited.
func (c Conf) swapOnly(l memoryLimit) memoryLimit {
	if !c.RAM {
		l.hard, l.soft = l.all, l.all
	}
	return l
}

// percent never overflows: a limit is at most 2^60 bytes and percent a float.
func percent(bytes uint64, p float64) uint64 {
	v := float64(bytes) * p / 100
	if v >= 1<<62 {
		return 1 << 62
	}
	return uint64(v)
}

func formatBytes(b uint64) string {
	if b%(1<<20) == 0 {
		return step.FormatMB(b >> 20)
	}
	return fmt.Sprintf("%d bytes", b)
}
