package spec

import (
	"strings"
	"testing"
	"time"

	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
)

// TestOfJob has the environments that slurmd 22.05.8 and 26.05.5 have given the program.
func TestOfJob(t *testing.T) {
	conf, c := &wire.Conf{Release: wire.V2205, Node: "vm"}, new(slurmconf.Config)
	old := strings.Fields("SLURM_JOB_USER=daemon SLURM_JOBID=19 SLURM_JOB_NUM_NODES=1 SLURM_JOB_CPUS_PER_NODE=1 SLURM_JOB_GID=2 " +
		"SLURM_JOB_WORK_DIR=/home SLURM_CONF=/etc/slurm/slurm.conf SLURM_SCRIPT_CONTEXT=prolog_slurmd SLURM_NODELIST=vm " +
		"SLURM_JOB_RESTART_COUNT=3 SLURMD_NODENAME=vm SLURM_UID=1 SLURM_CLUSTER_NAME=real SLURM_JOB_PARTITION=p SLURM_JOB_NTASKS=4")
	j, err := OfJob(conf, c, old)
	if err != nil {
		t.Fatal(err)
	}
	s := j.Spec
	if s.ID.Job != 19 || s.User.UID != 1 || s.User.GID != 2 || s.User.Name != "daemon" || s.JobNodeList != "vm" || s.JobNTasks != 4 ||
		s.RestartCount != 3 || s.Partition != "p" || s.Cwd != "/home" || s.NodeName != "vm" || s.Array != nil || !s.JobStarted.IsZero() {
		t.Errorf("%+v", s)
	}
	if j.State != step.Running || len(j.JobControl) != 0 {
		t.Errorf("%s, %q", j.State, j.JobControl)
	}

	later := append(old, "SLURM_JOB_ID=20", "SLURM_JOB_UID=7", "SLURM_JOB_NODELIST=vm,vn", "SLURM_JOB_START_TIME=1795463046",
		"SPANK__SLURM_SPANK_OPTION_probe_reg=a=b", "SPANK_JC=1", "SLURM_ARRAY_JOB_ID=18", "SLURM_ARRAY_TASK_ID=2", "SLURM_JOB_EXIT_CODE=256")
	if j, err = OfJob(conf, c, later); err != nil {
		t.Fatal(err)
	}
	s = j.Spec
	if s.ID.Job != 20 || s.User.UID != 7 || s.JobNodeList != "vm,vn" || !s.JobStarted.Equal(time.Unix(1795463046, 0)) ||
		s.Array == nil || *s.Array != (step.ArrayTask{Job: 18, Task: 2}) || j.State != step.Failed {
		t.Errorf("%+v, %s", s, j.State)
	}
	if len(j.JobControl) != 2 || string(j.JobControl[0]) != "_SLURM_SPANK_OPTION_probe_reg=a=b" || string(j.JobControl[1]) != "JC=1" {
		t.Errorf("%q", j.JobControl)
	}

	for _, missing := range []string{"SLURM_JOBID", "SLURM_UID", "SLURM_JOB_GID"} {
		var env []string
		for _, e := range old {
			if !strings.HasPrefix(e, missing+"=") {
				env = append(env, e)
			}
		}
		if _, err := OfJob(conf, c, env); err == nil {
			t.Errorf("a job without %s is read", missing)
		}
	}
}
