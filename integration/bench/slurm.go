package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// slurm is Debian's slurmctld and slurmd on this node, with folders and ports of their own: the
// original beside us, or with our step daemon.
type slurm struct {
	daemons []*exec.Cmd
	conf    string
	slurmd  int
	job     string
}

const slurmConf = `ClusterName=bench
SlurmctldHost=%[1]s(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=%[2]s/munge.sock
CredType=cred/munge
SlurmctldPort=%[3]d7
SlurmdPort=%[3]d8
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/slurmd
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MaxTasksPerNode=2000
NodeName=%[1]s NodeAddr=127.0.0.1 CPUs=1024 State=UNKNOWN
PartitionName=p Nodes=%[1]s Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16
`

// startSlurm needs munged, slurmctld, slurmd and srun; its error says what is
// missing. name is its folder in dir, ports are the first digits of its ports, and daemon is its
// step daemon, "" for Slurm's own. Its commands are run after use.
func startSlurm(dir, name string, ports int, daemon string) (*slurm, error) {
	for _, p := range []string{"munged", "slurmctld", "slurmd", "srun"} {
		if _, err := exec.LookPath(p); err != nil {
			return nil, fmt.Errorf("%s is not installed", p)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	d := filepath.Join(dir, name)
	for _, sub := range []string{"", "state", "slurmd"} {
		if err := os.MkdirAll(filepath.Join(d, sub), 0o755); err != nil {
			return nil, err
		}
	}
	// munged wants every folder above its socket to be writable by root alone.
	os.Chmod(dir, 0o755)
	s := &slurm{conf: filepath.Join(d, "slurm.conf")}
	if err := os.WriteFile(s.conf, fmt.Appendf(nil, slurmConf, host, d, ports), 0o644); err != nil {
		return nil, err
	}
	key := filepath.Join(d, "munge.key")
	if err := os.WriteFile(key, bytes.Repeat([]byte("benchmark key  "), 8), 0o600); err != nil {
		return nil, err
	}
	s.use()
	s.start("munged", "-F", "--force", "--key-file", key, "--socket", filepath.Join(d, "munge.sock"),
		"--pid-file", filepath.Join(d, "munged.pid"), "--log-file", filepath.Join(d, "munged.log"), "--seed-file", filepath.Join(d, "munged.seed"))
	time.Sleep(time.Second)
	s.start("slurmctld", "-D", "-f", s.conf)
	time.Sleep(time.Second)
	args := []string{"-D", "-f", s.conf}
	if daemon != "" {
		args = append(args, "-d", daemon)
	}
	s.slurmd = s.start("slurmd", args...)
	if err := s.allocate(); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// use has Slurm's commands speak to this one.
func (s *slurm) use() { os.Setenv("SLURM_CONF", s.conf) }

func (s *slurm) start(prog string, args ...string) int {
	cmd := exec.Command(prog, args...)
	if cmd.Start() != nil {
		return 0
	}
	s.daemons = append(s.daemons, cmd)
	return cmd.Process.Pid
}

// allocate waits until a job can be had, and holds it: the benchmark measures
// steps, not the scheduler.
func (s *slurm) allocate() error {
	var last []byte
	for range 40 {
		time.Sleep(500 * time.Millisecond)
		cmd := exec.Command("salloc", "-Q", "--no-shell", "-n", "1000", "-t", "60")
		out, err := cmd.CombinedOutput()
		if err != nil {
			last = out
			continue
		}
		out, err = exec.Command("squeue", "-h", "-o", "%i", "-t", "R").Output()
		if id := string(bytes.TrimSpace(out)); err == nil && id != "" {
			s.job = id
			return nil
		}
	}
	return fmt.Errorf("no allocation: %s", bytes.TrimSpace(last))
}

func (s *slurm) pid() int { return s.slurmd }

func (s *slurm) run(n int) []string {
	return []string{"srun", "-Q", "--jobid", s.job, "-n", fmt.Sprint(n), "--overcommit", "/bin/true"}
}

func (s *slurm) stop() {
	if s.job != "" {
		s.use()
		exec.Command("scancel", s.job).Run()
		time.Sleep(500 * time.Millisecond)
	}
	for _, d := range s.daemons {
		d.Process.Signal(unix.SIGTERM)
	}
	for _, d := range s.daemons {
		d.Wait()
	}
}
