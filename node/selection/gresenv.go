package selection

import (
	"slices"
	"strconv"
	"strings"

	"stepd/step"
)

// GresScope is the receiver of a gresEnv.
type GresScope struct {
	Batch bool // a batch job's script, prolog or epilog: of the job
	Local bool // it sees its own devices alone, numbered from 0
}

// The variables that name GPUs of any kind (srun(1), sbatch(1)).
const (
	envJobGPUs    = "SLURM_JOB_GPUS"
	envStepGPUs   = "SLURM_STEP_GPUS"
	envGPUsOnNode = "SLURM_GPUS_ON_NODE"
)

// GresEnv describes their share of the node's generic resources to tasks and scripts, in the
// variables that libraries read (gres.conf(5), Flags), and which variables would
// tell him something else. SLURM_*_GPUS have the node's numbers; the others do
// too, unless the devices of others are hidden: libraries then count what they
// see.
func GresEnv(node []Gres, has []step.GresAlloc, to GresScope) (env, unset []string) {
	gpus := slices.DeleteFunc(slices.Clone(node), func(g Gres) bool { return g.Name != "gpu" || len(g.Files) == 0 })
	if len(gpus) == 0 {
		return nil, nil
	}
	global := make(map[string][]string) // variable to the node's numbers
	local := make(map[string][]string)
	var all []string
	seen := 0
	for _, g := range gpus {
		for i := range g.Files {
			if !HasGres(has, g.Name, g.First+i) {
				continue
			}
			n := strconv.Itoa(gpuNumber(gpus, g, i))
			all = append(all, n)
			for _, v := range g.Env {
				global[v] = append(global[v], n)
				local[v] = append(local[v], strconv.Itoa(seen))
			}
			seen++
		}
	}
	name, other := envStepGPUs, envJobGPUs
	if to.Batch {
		name, other = envJobGPUs, envStepGPUs
	}
	if len(all) == 0 {
		unset = []string{envGPUsOnNode, envStepGPUs}
		if to.Batch {
			unset = append(unset, envJobGPUs)
		}
	} else {
		env = []string{name + "=" + strings.Join(all, ","), envGPUsOnNode + "=" + strconv.Itoa(len(all))}
		if to.Batch {
			unset = []string{other}
		}
	}
	for _, v := range gpuVariables(gpus) {
		numbers := global[v]
		if to.Local {
			numbers = local[v]
		}
		if numbers == nil {
			unset = append(unset, v)
		} else {
			env = append(env, v+"="+strings.Join(numbers, ","))
		}
	}
	return env, unset
}

// gpuVariables are the variables that name the node's GPUs, in a stable order.
func gpuVariables(gpus []Gres) []string {
	var all []string
	for _, g := range gpus {
		all = append(all, g.Env...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// gpuNumber is what the driver calls a device: the digits that its file ends in,
// where those tell all GPUs of the node apart, else its place in gres.conf.
func gpuNumber(gpus []Gres, g Gres, i int) int {
	seen := make(map[int]bool)
	for _, h := range gpus {
		for _, files := range h.Files {
			n, ok := fileNumber(files[0])
			if !ok || seen[n] {
				return g.First + i
			}
			seen[n] = true
		}
	}
	n, _ := fileNumber(g.Files[i][0])
	return n
}

func fileNumber(path string) (int, bool) {
	digits := path[len(strings.TrimRight(path, "0123456789")):]
	n, err := strconv.Atoi(digits)
	return n, err == nil
}
