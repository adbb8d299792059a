package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// environment reads `env` output.
func environment(out string) map[string]string {
	env := map[string]string{}
	for _, line := range strings.Split(out, "\n") {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = value
		}
	}
	return env
}

// TestRootTaskEnvironment compares the environment of three tasks with the
// recorded one: each name with its value, and no other.
func TestRootTaskEnvironment(t *testing.T) {
	n := startNode(t, site{})
	r := n.do(t, call{
		args: []string{"run", "-n", "3", "-o", "env.%t", "env"},
		env:  []string{"GCUSTOM=fromuser", "SLURM_CONF=" + n.path("slurm.conf")},
	})
	if r.code != 0 {
		t.Fatal(r)
	}
	hostname, err := os.Hostname()
	must(t, err)
	step := n.lastEnded(t)
	job := fmt.Sprint(step.JobID)
	for rank := range 3 {
		b, err := os.ReadFile(n.path("wd", fmt.Sprintf("env.%d", rank)))
		must(t, err)
		got := environment(string(b))
		want := map[string]string{
			"PATH": "/usr/bin:/bin", "HOME": n.path("home"), "USER": alice.name, "LOGNAME": alice.name, "SHELL": "/bin/bash",
			"SLURM_CONF": n.path("slurm.conf"), "GCUSTOM": "fromuser", "NODED_SOCKET": n.socket(),
			"SLURM_PRIO_PROCESS": "0", "SRUN_DEBUG": "3", "SLURM_UMASK": "0022", "SLURM_CLUSTER_NAME": "golden",
			"SLURM_SUBMIT_DIR": n.wd, "SLURM_SUBMIT_HOST": hostname, "SLURM_JOB_NAME": "env", "SLURM_JOB_CPUS_PER_NODE": "3",
			"SLURM_NTASKS": "3", "SLURM_NPROCS": "3", "SLURM_JOB_ID": job, "SLURM_JOBID": job, "SLURM_STEP_ID": "0", "SLURM_STEPID": "0",
			"SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODELIST": "vm", "SLURM_JOB_PARTITION": "p", "SLURM_TASKS_PER_NODE": "3",
			"SLURM_JOB_UID": "7001", "SLURM_JOB_USER": alice.name, "SLURM_JOB_NODELIST": "vm", "SLURM_STEP_NODELIST": "vm",
			"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_CPUS_ON_NODE": "3",
			"SLURM_NODEID": "0", "SLURM_PROCID": fmt.Sprint(rank), "SLURM_LOCALID": fmt.Sprint(rank), "SLURM_GTIDS": "0,1,2",
			"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_JOB_GID": "7001", "SLURMD_NODENAME": "vm",
		}
		if rank == 0 {
			want["TMPDIR"] = "/tmp" // the first task's alone, as recorded
		}
		for name, value := range want {
			if v, ok := got[name]; !ok || v != value {
				t.Errorf("rank %d: %s: got %q (set: %v), want %q", rank, name, v, ok, value)
			}
		}
		if pid := *step.Tasks[rank].PID; got["SLURM_TASK_PID"] != fmt.Sprint(pid) {
			t.Errorf("rank %d: SLURM_TASK_PID %q, show says %d", rank, got["SLURM_TASK_PID"], pid)
		}
		for name := range got {
			if _, ok := want[name]; !ok && name != "SLURM_TASK_PID" {
				t.Errorf("rank %d: %s=%s: not in the recorded environment", rank, name, got[name])
			}
		}
	}
}

// TestRootExport: --export says what of the caller's environment goes along.
func TestRootExport(t *testing.T) {
	n := startNode(t, site{})
	for _, c := range []struct {
		name, flag string
		want       map[string]string
		not        []string
	}{
		{"ALL", "--export=ALL", map[string]string{"ONE": "1", "TWO": "2"}, nil},
		{"ALL and more", "--export=ALL,THREE=3", map[string]string{"ONE": "1", "THREE": "3"}, nil},
		{"some", "--export=ONE,PATH", map[string]string{"ONE": "1", "PATH": "/usr/bin:/bin"}, []string{"TWO", "HOME"}},
		{"values", "--export=FOO=bar", map[string]string{"FOO": "bar"}, []string{"ONE", "PATH"}},
		{"NONE", "--export=NONE", nil, []string{"ONE", "TWO", "PATH", "HOME"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.do(t, call{args: []string{"run", c.flag, "/usr/bin/env"}, env: []string{"ONE=1", "TWO=2"}})
			got := environment(r.out)
			for name, value := range c.want {
				if got[name] != value {
					t.Errorf("%s: got %q, want %q", name, got[name], value)
				}
			}
			for _, name := range c.not {
				if v, ok := got[name]; ok {
					t.Errorf("%s=%s should not be there", name, v)
				}
			}
			if r.code != 0 || got["SLURM_PROCID"] != "0" || got["SLURM_JOB_ID"] == "" {
				t.Errorf("SLURM_* are set in any case: %v", r)
			}
		})
	}
	t.Run("without PATH a bare name is not found", func(t *testing.T) {
		for _, flag := range []string{"--export=NONE", "--export=FOO=bar"} {
			r := n.ctl(t, "run", flag, "env")
			if r.code != 2 {
				t.Errorf("%s: want exit code 2, got %v", flag, r)
			}
			contains(t, "stderr", r.err, "stepd-vm: error: execve(): env: No such file or directory")
		}
	})
}

// TestRootLimitsAndUmask: the caller's soft limits and umask reach the task,
// its ignored signals do not.
func TestRootLimitsAndUmask(t *testing.T) {
	n := startNode(t, site{})
	script := n.userFile(t, "limits.sh", `
trap "" HUP USR1 PIPE
ulimit -S -n 512
ulimit -S -c 1
ulimit -S -s 4096
umask 077
exec `+n.bin+` run sh -c 'umask; ulimit -n; ulimit -Hn; ulimit -s; ulimit -c; grep -E "^Sig(Blk|Ign|Cgt)" /proc/self/status'
`, 0o755)
	r := n.shell(t, n.wd, script)
	lines := strings.Split(r.out, "\n")
	if r.code != 0 || len(lines) < 8 {
		t.Fatal(r)
	}
	if lines[0] != "0077" || lines[1] != "512" || lines[2] == "512" || lines[3] != "4096" || lines[4] != "1" {
		t.Errorf("umask, nofile soft and hard, stack, core: %q", lines[:5])
	}
	for _, want := range []string{"SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"} {
		if !slices.Contains(lines, want) {
			t.Errorf("want %q among %q", want, lines)
		}
	}
}
