package slurm

import (
	"os"
	"strings"
	"testing"
)

// devicesScript prints for each task the variables that name its GPUs, and which devices open.
const devicesScript = `
cat > what <<'end'
echo "$1 $SLURM_PROCID: $CUDA_VISIBLE_DEVICES of $SLURM_JOB_GPUS/$SLURM_STEP_GPUS: $(for d in $DIR/gpu? $DIR/nic?; do (: < $d) 2>&1 | grep -q permitted || echo ${d##*/}; done | paste -sd" ")"
end
srun -Q sh what none
srun -Q --gres=gpu:v100:2 sh what two
srun -Q --gres=nic:1 sh what nic
srun -Q -n2 --gpus-per-task=1 sh what task | sort
srun -Q -n2 --gres=gpu:v100:2 --gpu-bind=verbose,map_gpu:1,0 sh what map 2>&1 | sort
cat > s <<'end'
#!/bin/sh
sh what batch
srun --gres=gpu:1 sh what one
srun --gres=none sh what none
end
sbatch -Q -W -o o --gres=gpu:v100:2 s; cat o
`

// devicesWant is what Slurm's own step daemon prints with cgroup v1, but for SLURM_STEP_GPUS
// of bound tasks: there 22.05 names the first GPUs of the step.
const devicesWant = `none 0:  of /: 
two 0: 0,1 of /2,3: gpu2 gpu3
nic 0:  of /: nic4
task 0: 0 of /0: gpu0
task 1: 0 of /1: gpu1
gpu-bind: usable_gres=0x4; bit_alloc=0xC; local_inx=2; global_list=2; local_list=0
gpu-bind: usable_gres=0x8; bit_alloc=0xC; local_inx=2; global_list=3; local_list=0
map 0: 0 of /3: gpu3
map 1: 0 of /2: gpu2
batch 0: 0,1 of 2,3/: gpu2 gpu3
one 0: 0 of 2,3/2: gpu2
none 0:  of 2,3/: 
`

// TestRootGresDevices: with ConstrainDevices a job, a step and a bound task open their own
// devices alone. Slurm's slurmd does not start with it on a machine of both versions of cgroups;
// a step daemon of 22.05 reads the files anew.
func TestRootGresDevices(t *testing.T) {
	t.Parallel()
	onReleases(t, func(t *testing.T, release string) {
		c := startSite(t, ofRelease("gres", release))
		conf, err := os.ReadFile(c.Path("slurm.conf"))
		must(t, err)
		must(t, os.WriteFile(c.Path("slurm.conf"), []byte(strings.Replace(string(conf), "TaskPlugin=task/none", "TaskPlugin=task/cgroup", 1)), 0o644))
		must(t, os.WriteFile(c.Path("cgroup.conf"), []byte("ConstrainDevices=yes\n"), 0o644))
		out, err := c.Command(t.Context(), "alice", "timeout", "60", "sh", "-c", devicesScript).CombinedOutput()
		if err != nil || string(out) != devicesWant {
			t.Errorf("%v\n%s\nwant:\n%s", err, out, devicesWant)
		}
	})
}
