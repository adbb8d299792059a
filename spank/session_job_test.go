package spank

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stepd/step"
)

// jobPlugin asks slurm_load_job in every hook; it is compiled with the headers
// of an installed Slurm.
func jobPlugin(t *testing.T) string {
	t.Helper()
	headers := cmp.Or(os.Getenv("SLURM_HEADERS"), "/usr/include") // of another release
	if _, err := os.Stat(headers + "/slurm/slurm.h"); err != nil {
		if os.Getenv("STRICT") == "1" {
			t.Fatal("no Slurm headers: apt-get install libslurm-dev")
		}
		t.Skip("no Slurm headers: apt-get install libslurm-dev")
	}
	so := filepath.Join(t.TempDir(), "job.so")
	if out, err := exec.Command("cc", "-std=gnu11", "-I"+headers, "-fPIC", "-shared", "host/tests/job_plugin.c", "-o", so).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return so
}

// TestSessionLoadJob: slurm_load_job answers where there is a job that runs.
func TestSessionLoadJob(t *testing.T) {
	so := jobPlugin(t)
	script := []string{
		"nodes vm batch_host vm partition p cluster c dir /w from login account NULL", "num 1 nodes 5 cpus 6 tasks 2 per_task restarts 0 batch 1 mem 5",
	}
	refused := func(id int) string { return fmt.Sprintf("load %d: -1 2017 No such job", id) }
	for _, c := range []struct {
		name    string
		context Context
		ended   step.State
		call    func(s *Session) error
		want    []string
	}{
		{"local", ContextLocal, "", func(s *Session) error {
			if _, err := s.Init(); err != nil {
				return err
			}
			if err := s.PostOpt(nil); err != nil {
				return err
			}
			return s.LocalUserInit(LocalJob{ID: step.ID{Job: 9}, NNodes: 1, TotalTasks: 4, Argv: []string{"true"}, Spec: &step.Spec{
				Request: step.Request{Name: "n", Cwd: "/tmp", CPUsPerTask: 2, SubmitHost: "login", RestartCount: 1}, User: step.User{Name: "u"}, Origin: step.OriginAlloc,
				NodeList: "vm", NCPUs: 2, JobCPUs: "0-7", JobNTasks: 16, JobName: "job's", MemoryMB: 5, JobMemoryMB: 5, JobStarted: time.Unix(1000000, 0), Site: step.Site{Cluster: "c", Partition: "p"},
			}})
		}, []string{refused(0), "records 1 job 9 state 1 uid 12 gid 13 user u name job's", "nodes vm batch_host vm partition p cluster c dir /tmp from login account NULL",
			"num 1 nodes 8 cpus 16 tasks 2 per_task restarts 1 batch 0 mem 5",
			"array 0 fffffffe limit ffffffff start 1000000 end 32536000 submit 1000000 shared fffe", refused(10)}},
		{"local, of several nodes", ContextLocal, "", func(s *Session) error {
			if _, err := s.Init(); err != nil {
				return err
			}
			if err := s.PostOpt(nil); err != nil {
				return err
			}
			return s.LocalUserInit(LocalJob{ID: step.ID{Job: 9}, NNodes: 2, TotalTasks: 4, Argv: []string{"true"}, Spec: &step.Spec{
				Request: step.Request{NTasks: 4, CPUsPerTask: 1, Cwd: "/"}, User: step.User{Name: "u"},
				NodeList: "n[2-3]", JobNodeList: "n[1-3]", JobNodeCPUs: []int{8, 4, 4}, NCPUs: 4,
			}})
		}, []string{"nodes n[1-3] batch_host", "num 3 nodes 16 cpus 4 tasks 1 per_task"}},
		{"prolog", ContextJobScript, step.Running, func(s *Session) error {
			if _, err := s.Init(); err != nil {
				return err
			}
			return s.Hook("slurm_spank_job_prolog")
		}, append(script, "records 1 job 7 state 1 uid 12 gid 13 user root name job.sh",
			"array 5 3 limit 3d start 1000000 end 1003660 submit 1000000 shared fffe", refused(8))},
		{"epilog", ContextJobScript, step.Failed, func(s *Session) error {
			if _, err := s.Init(); err != nil {
				return err
			}
			return s.Hook("slurm_spank_job_epilog")
		}, append(script, "records 1 job 7 state 32773 uid 12 gid 13 user root name job.sh",
			"array 5 3 limit 3d start 1000000 end "+fmt.Sprint(time.Now().Unix()/100), refused(8))},
		{"allocator", ContextAllocator, "", func(s *Session) error { _, err := s.Init(); return err }, []string{refused(0), refused(1)}},
		{"slurmd", ContextSlurmd, "", func(s *Session) error { _, err := s.Init(); return err }, []string{refused(0), refused(1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := heard{ended: c.ended}
			s := open(t, c.context, so, &h)
			if err := c.call(s); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			got := strings.Join(h.all(), "\n")
			for _, want := range append(c.want, refused(1<<32-1), "no room: -1") {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
		})
	}
}

// TestSessionLoadJobLongName: a record has room for whatever the job is called.
func TestSessionLoadJobLongName(t *testing.T) {
	h := heard{name: strings.Repeat("n", 1<<20)}
	s := open(t, ContextJobScript, jobPlugin(t), &h)
	_, err := s.Init()
	if err = errors.Join(err, s.Hook("slurm_spank_job_prolog"), s.Close()); err != nil {
		t.Error(err)
	}
	if got := strings.Join(h.all(), "\n"); !strings.Contains(got, "user root name nnnn") || !strings.Contains(got, "nodes vm batch_host vm") {
		t.Errorf("got %.2000s", got)
	}
}
