package slurmconf

import (
	"slices"
	"strings"
)

// exclusive are pairs of keys of which Slurm allows one.
func exclusive() [][2]string {
	return [][2]string{
		{"PropagateResourceLimits", "PropagateResourceLimitsExcept"},
		{"DefMemPerCPU", "DefMemPerNode"},
		{"MaxMemPerCPU", "MaxMemPerNode"},
		{"Sockets", "SocketsPerBoard"},
	}
}

// exclude finds plain keys that exclude each other; the first of a pair is to
// stay.
func (l *loader) exclude() {
	for _, keys := range exclusive() {
		first, one := l.told[strings.ToLower(keys[0])]
		second, both := l.told[strings.ToLower(keys[1])]
		if one && both {
			l.probs.at(second, SeverityError, "remove one of them", "cannot use %s beside %s of %s:%d", keys[1], keys[0], first.file, first.line)
		}
	}
}

// excludeIn does so within one line.
func (l *loader) excludeIn(s statement) {
	for _, keys := range exclusive() {
		has := func(key string) bool {
			return slices.ContainsFunc(s.pairs, func(p pair) bool { return p.is(key) })
		}
		if has(keys[0]) && has(keys[1]) {
			l.probs.at(s, SeverityError, "remove one of them", "cannot use %s beside %s", keys[1], keys[0])
		}
	}
}

// nodeTogether checks what the keys of a NodeName line mean together.
func (l *loader) nodeTogether(s statement, n *Node) {
	l.excludeIn(s)
	if n.RealMemory > 0 && n.MemSpecLimit >= n.RealMemory {
		l.probs.valueOf(s, "MemSpecLimit", wrong("leave memory to the steps", "RealMemory is %d", n.RealMemory))
	}
}

// together checks, when all files are read, what their keys mean together, and
// gives way with defaults that cannot be.
func (l *loader) together() {
	l.defaultBinding()
	l.partitionMemory()
	l.memoryBounds()
	l.checkPMI2()
	if l.cfg.Cgroup.CgroupPlugin == "disabled" {
		l.withoutCgroups()
		return
	}
	l.constraints()
}

// memoryBounds: a default above its bound is refused to every step.
func (l *loader) memoryBounds() {
	c := l.cfg
	for _, k := range []struct {
		key       string
		def, most uint64
	}{
		{"DefMemPerCPU", c.DefMemPerCPU, c.MaxMemPerCPU},
		{"DefMemPerNode", c.DefMemPerNode, c.MaxMemPerNode},
	} {
		from := l.memoryFrom
		if from.line == 0 {
			from = l.told[strings.ToLower(k.key)]
		}
		if k.most > 0 && k.def > k.most {
			l.probs.at(from, SeverityError, "write it lower, or Max"+k.key[3:]+" higher", "cannot use %s=%d: it is more than the %d MiB that a step may ask for", k.key, k.def, k.most)
		}
	}
}

// withoutCgroups is CgroupPlugin=disabled: what needs cgroups must not have
// been asked for.
func (l *loader) withoutCgroups() {
	c := l.cfg
	const remedy = "write another one, or CgroupPlugin=autodetect into cgroup.conf"
	for _, k := range []struct {
		key   string
		needs bool
	}{
		{"ProctrackType", c.ProctrackType == "proctrack/cgroup"},
		{"TaskPlugin", slices.Contains(c.TaskPlugin, "task/cgroup")},
		{"JobAcctGatherType", c.JobAcctGatherType == "cgroup"},
	} {
		if s, told := l.told[strings.ToLower(k.key)]; told && k.needs {
			l.probs.valueOf(s, k.key, wrong(remedy, "cgroup.conf has CgroupPlugin=disabled"))
		}
	}
	if c.ProctrackType == "proctrack/cgroup" {
		c.ProctrackType = "proctrack/linuxproc"
	}
	c.TaskPlugin = slices.DeleteFunc(c.TaskPlugin, func(w string) bool { return w == "task/cgroup" })
}

// constraints warns about constraints that have no effect.
func (l *loader) constraints() {
	c := l.cfg
	for _, k := range []struct {
		key    string
		on     bool
		memory bool
	}{
		{"ConstrainCores", c.Cgroup.ConstrainCores, false},
		{"ConstrainRAMSpace", c.Cgroup.ConstrainRAMSpace, true},
		{"ConstrainSwapSpace", c.Cgroup.ConstrainSwapSpace, true},
		{"ConstrainDevices", c.Cgroup.ConstrainDevices, false},
	} {
		s := l.told[strings.ToLower(k.key)]
		switch {
		case !k.on:
		case !slices.Contains(c.TaskPlugin, "task/cgroup"):
			l.probs.valueOf(s, k.key, &flaw{SeverityWarning, "it has no effect without task/cgroup", "add task/cgroup to TaskPlugin in slurm.conf"})
		case k.memory && !c.MemoryIsConsumable():
			l.probs.valueOf(s, k.key, &flaw{SeverityWarning, "no memory is given out to steps: MaxRAMPercent of the node's limits each", "write SelectTypeParameters=CR_Core_Memory into slurm.conf"})
		}
	}
	if c.Cgroup.MemorySwappiness != nil && !c.Cgroup.ConstrainSwapSpace {
		l.probs.valueOf(l.told["memoryswappiness"], "MemorySwappiness", &flaw{SeverityWarning, "it has no effect without ConstrainSwapSpace", "write ConstrainSwapSpace=yes"})
	}
}
