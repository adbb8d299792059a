package oom

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseVictim(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       victim
		ok         bool
	}{
		{"detail of a cgroup's limit",
			"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a/stepd-1/job_1,task_memcg=/a/stepd-1/job_1/step_0/task_3,task=hog,pid=30277,uid=1000",
			victim{pid: 30277, comm: "hog", task: "/a/stepd-1/job_1/step_0/task_3", full: "/a/stepd-1/job_1"}, true},
		{"a name that looks like the rest of the line",
			"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/x,task_memcg=/x,task=,pid=1,uid=0,pid=77,uid=5",
			victim{pid: 77, comm: ",pid=1,uid=0", task: "/x", full: "/x"}, true},
		{"the machine's memory",
			"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/x,task=hog,pid=7,uid=0",
			victim{pid: 7, comm: "hog", task: "/x", global: true}, true},
		{"the kill", "Memory cgroup out of memory: Killed process 30277 (python3) total-vm:118968kB, anon-rss:20224kB",
			victim{pid: 30277, comm: "python3"}, true},
		{"the kill on the machine", "Out of memory: Killed process 9 (a) total-vm:) total-vm:118968kB",
			victim{pid: 9, comm: "a) total-vm:", global: true}, true},
		{"somebody's own words", "look: Killed process 9 (a) total-vm:1kB", victim{}, false},
		{"another line", "Tasks state (memory values in pages):", victim{}, false},
		{"no pid", "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/x,task_memcg=/x,task=hog,pid=-7,uid=0", victim{}, false},
		{"cut", "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/x,pid=7,uid=0", victim{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := parseVictim(c.text)
			if ok != c.ok {
				t.Fatalf("ok = %v, want %v (%+v)", ok, c.ok, got)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(victim{})); ok && diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBelow(t *testing.T) {
	const dir = "/sys/fs/cgroup/memory/own/stepd-0a/job_1/step_0"
	for _, c := range []struct {
		cgroup, rest string
		ok           bool
	}{
		{"/own/stepd-0a/job_1/step_0", "", true},
		{"/docker/12/own/stepd-0a/job_1/step_0/task_7/deep", "/task_7/deep", true},
		{"/own/stepd-0a/job_1/step_01", "", false},
		{"/own/stepd-0a/job_1", "", false},
		{"/own/stepd-0b/job_1/step_0", "", false},
		{"", "", false},
	} {
		if rest, ok := below(c.cgroup, dir); rest != c.rest || ok != c.ok {
			t.Errorf("below(%q) = %q, %v; want %q, %v", c.cgroup, rest, ok, c.rest, c.ok)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte("6,503,5404356198,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/oomprobe,task_memcg=/oomprobe/task_0,task=python3,pid=30277,uid=0\n SUBSYSTEM=x\n"))
	f.Add([]byte("3,504,5404356229,-;Memory cgroup out of memory: Killed process 30277 (python3) total-vm:118968kB\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, ok := parseRecord(data)
		if !ok {
			return
		}
		v, ok := parseVictim(r.text)
		if ok && v.pid <= 0 {
			t.Errorf("victim %+v has no process id", v)
		}
		below(v.task, "/sys/fs/cgroup/stepd-1/job_1")
	})
}
