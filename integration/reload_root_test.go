package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// conf writes a slurm.conf with so many CPUs.
func (n *node) conf(t testing.TB, cpus, more string) {
	t.Helper()
	n.write(t, "slurm.conf", "ClusterName=golden\nNodeName=vm CPUs="+cpus+"\nPartitionName=p Nodes=ALL Default=YES\n"+more)
}

// hup sends SIGHUP, and waits for what the log is to say once more.
func (n *node) hup(t testing.TB, word string) {
	t.Helper()
	before := strings.Count(n.log.String(), word)
	must(t, n.cmd.Process.Signal(syscall.SIGHUP))
	eventually(t, callTimeout, "the log to say "+word, func() error {
		if strings.Count(n.log.String(), word) == before {
			return fmt.Errorf("the log: %s", tail(n.log.String(), 5))
		}
		return nil
	})
}

// TestRootReload: on SIGHUP noded reads its files again, in the same process and with
// the same socket: its steps go on, and no client is refused. Files with a mistake are
// not taken.
func TestRootReload(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "MetricsListen=unix\n"})
	p, step := startStubborn(t, n)
	pid, stepd := n.cmd.Process.Pid, n.findProcess(t, "stepd").pid

	n.conf(t, "many", "")
	n.hup(t, "cannot reload: ")
	n.logs(t, "slurm.conf:2", "goes on with the configuration that it has")
	eventually(t, callTimeout, "the refused reload in node status", func() error {
		if out := n.ctlRoot(t, "node", "status").out; !regexp.MustCompile(`fallback +reload: refused at 20\S+: .*slurm\.conf:2`).MatchString(out) {
			return fmt.Errorf("node status says %q", out)
		}
		return nil
	})
	if r := n.ctl(t, "run", "-n", "60", "--overcommit", "true"); r.code != 0 {
		t.Errorf("after a mistake: %v", r)
	}

	n.conf(t, "32", "")
	clients := make([]*process, 8)
	for i := range clients {
		if i == len(clients)/2 {
			n.hup(t, "noded: ready")
		}
		clients[i] = n.start(t, call{args: []string{"run", "sh", "-c", "exit 5"}})
	}
	for i, c := range clients {
		if r := c.wait(t); r.code != 5 {
			t.Errorf("client %d: %v", i, r)
		}
	}
	if n.exited() || n.cmd.Process.Pid != pid {
		t.Fatal("noded has ended")
	}
	if out := n.ctlRoot(t, "node", "status").out; strings.Contains(out, "reload: ") {
		t.Errorf("after a reload node status says %q", out)
	}
	if code, text := n.page(t, "/readyz"); code != 200 {
		t.Errorf("readyz after a reload: %d %q", code, text)
	}
	if r := n.ctl(t, "run", "-n", "33", "true"); r.code != 1 || !strings.Contains(r.err, "32 CPUs") {
		t.Errorf("with the new number of CPUs: %v", r)
	}
	if now := n.show(t, step.id()); now.State != "RUNNING" || now.StepdPID != stepd {
		t.Errorf("the step: %+v", now)
	}
	n.letGo(t)
	if r := p.wait(t); r.code != 3 {
		t.Errorf("the step: %v", r)
	}
	n.ended(t, step.id())
	n.checkClean(t)
	n.noZombies(t)

	// A stepd that is killed after a reload is still noded's child.
	p, step = startStubborn(t, n)
	n.hup(t, "noded: ready")
	must(t, killNow(n.findProcess(t, "stepd").pid))
	if r := p.wait(t); r.code != 1 {
		t.Errorf("got %v", r)
	}
	contains(t, "reason", n.ended(t, step.id()).Reason, "stepd", "SIGKILL")
	n.noZombies(t)
	n.letGo(t)
}

// noZombies: noded has reaped all that has ended.
func (n *node) noZombies(t testing.TB) {
	t.Helper()
	eventually(t, goneWithin, "noded's children to be reaped", func() error {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.cmd.Process.Pid))
		for _, path := range threads {
			b, _ := os.ReadFile(path)
			for _, child := range strings.Fields(string(b)) {
				stat, _ := os.ReadFile("/proc/" + child + "/stat")
				if _, rest, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(rest, "Z") {
					return fmt.Errorf("process %s: %s", child, stat)
				}
			}
		}
		return nil
	})
}

// TestRootDebugFlags: each flag logs its lines, from the reload on with which it was set, and
// no flag logs another one's.
func TestRootDebugFlags(t *testing.T) {
	waits(t)
	base := containerBase(t)
	n := startNode(t, site{
		Real: true, Node: "Gres=bandwidth:2", Slurm: "JobContainerType=job_container/tmpfs\nGresTypes=bandwidth\n",
		Container: "AutoBasePath=true\nBasePath=" + base + "\n",
	})
	lines := map[string][]string{
		"Cgroup":           {`place `},
		"CPU_Bind":         {`task`},
		"Gres":             {`bandwidth:1`},
		"JobAccountGather": {`{`},
		"JobContainer": {
			"create for uid " + fmt.Sprint(alice.uid), "add_pid ", "of uid " + fmt.Sprint(alice.uid), "add_cont ", "delete", "restore, with the jobs []", "fini",
		},
		"Steps": {fmt.Sprintf("2 tasks of uid %d: CPUs ", alice.uid), "stepd says"},
	}
	conf := readFile(t, n.path("slurm.conf"))
	for _, flags := range []string{"Backfill", "jobcontainer", "Cgroup,CPU_Bind", "Gres,JobAccountGather,Steps,Backfill"} {
		n.write(t, "slurm.conf", conf+"DebugFlags="+flags+"\n")
		n.hup(t, "noded: ready")
		before := len(n.log.String())
		if r := n.ctl(t, "run", "-n2", "--overcommit", "--gres=bandwidth:1", "true"); r.code != 0 {
			t.Fatal(r)
		}
		n.idle(t)
		n.hup(t, "noded: ready")
		var log string // what noded -v has without a flag is of level debug
		for line := range strings.Lines(n.log.String()[before:]) {
			if strings.Contains(line, "level=info") {
				log += line
			}
		}
		for flag, words := range lines {
			set := strings.Contains(strings.ToLower(","+flags+","), strings.ToLower(","+flag+","))
			if has := strings.Contains(log, `msg="`+flag+": "); has != set {
				t.Errorf("DebugFlags=%s: %s is logged: %t", flags, flag, has)
			}
			for _, w := range words {
				if set && !strings.Contains(log, w) {
					t.Errorf("DebugFlags=%s: no %q in\n%s", flags, w, log)
				}
			}
		}
	}
}
