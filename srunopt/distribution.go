package srunopt

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"stepd/step"
)

// The words of a distribution.
const (
	DistBlock     = "block"
	DistCyclic    = "cyclic"
	DistFCyclic   = "fcyclic"
	DistPlane     = "plane"
	DistArbitrary = "arbitrary"
	DistPack      = "pack"
	DistNoPack    = "nopack"
)

const distributionUsage = "write {block|cyclic|plane=N|arbitrary|*}[:{block|cyclic|fcyclic|*}[:{block|cyclic|fcyclic|*}]][,{Pack|NoPack}]"

// ParseDistribution reads the text of -m. planeSize is what SLURM_DIST_PLANESIZE
// says, for a "plane" without a size of its own.
func ParseDistribution(text, planeSize string) (step.Distribution, error) {
	var d step.Distribution
	methods, pack, packed := strings.Cut(strings.ToLower(text), ",")
	if !packed && (methods == DistPack || methods == DistNoPack) {
		methods, pack = "*", methods // alone, as srun takes it
	} else if packed && pack != DistPack && pack != DistNoPack {
		return d, fmt.Errorf("--distribution=%.80s: %s", text, distributionUsage)
	}
	d.Pack = pack
	if size, ok := strings.CutPrefix(methods, DistPlane); ok {
		if size == "" {
			size = "=" + planeSize
		}
		n, err := strconv.ParseUint(strings.TrimPrefix(size, "="), 10, 32)
		if size[0] != '=' || err != nil || n < 1 || n > step.TasksMax {
			return step.Distribution{}, fmt.Errorf("--distribution=%.80s: the size of a plane is a number from 1 to %d, and nothing comes behind it", text, step.TasksMax)
		}
		d.Nodes, d.Plane, d.Levels = DistPlane, int(n), 1
		return d, nil
	}
	parts := strings.Split(methods, ":")
	if len(parts) > 3 {
		return step.Distribution{}, fmt.Errorf("--distribution=%.80s: %s", text, distributionUsage)
	}
	for i, word := range []*string{&d.Nodes, &d.Sockets, &d.Cores}[:len(parts)] {
		if parts[i] != "*" {
			*word = parts[i]
		}
		if parts[i] == "" {
			return step.Distribution{}, fmt.Errorf("--distribution=%.80s: %s", text, distributionUsage)
		}
	}
	d.Levels = len(parts)
	if err := checkDistribution(d); err != nil {
		return step.Distribution{}, fmt.Errorf("--distribution=%.80s: %w", text, err)
	}
	return d, nil
}

func checkDistribution(d step.Distribution) error {
	switch {
	case d.Nodes != "" && d.Nodes != DistBlock && d.Nodes != DistCyclic && d.Nodes != DistPlane && d.Nodes != DistArbitrary,
		!cpuMethod(d.Sockets), !cpuMethod(d.Cores),
		d.Pack != "" && d.Pack != DistPack && d.Pack != DistNoPack:
		return fmt.Errorf("there is no such method: %s", distributionUsage)
	case (d.Nodes == DistPlane) != (d.Plane != 0) || d.Plane < 0 || d.Plane > step.TasksMax:
		return fmt.Errorf("a plane has from 1 to %d tasks, and nothing else has a size", step.TasksMax)
	case d.Nodes == DistPlane && (d.Sockets != "" || d.Cores != ""):
		return fmt.Errorf("plane goes without methods for sockets and cores")
	case d.Levels < 0 || d.Levels > 3:
		return fmt.Errorf("there are three levels, not %d", d.Levels)
	}
	return nil
}

func cpuMethod(word string) bool {
	return word == "" || word == DistBlock || word == DistCyclic || word == DistFCyclic
}

// DistributionText is the value of SLURM_DISTRIBUTION, as measured: every level that
// was written, with the word for "*". The default for one task a node is cyclic.
func DistributionText(d step.Distribution, ntasks, nnodes int) string {
	nodes := d.Nodes
	if nodes == "" {
		nodes = DistBlock
		if ntasks <= nnodes && d.Levels == 0 {
			nodes = DistCyclic
		}
	}
	sockets := cmp.Or(d.Sockets, DistCyclic)
	words := []string{nodes, sockets, cmp.Or(d.Cores, sockets)} // inherited
	text := strings.Join(words[:max(d.Levels, 1)], ":")
	if d.Pack != "" {
		text += "," + d.Pack
	}
	return text
}
