package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildLinger compiles a program that waits between init and finalize, or ends.
func buildLinger(t testing.TB, n *node) string {
	t.Helper()
	return filepath.Join(libOpenMPI.build(t, n, "linger"), "linger")
}

// pmixhosts are the pids of PMIx servers of the machine.
func pmixhosts(t testing.TB) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/comm")
	must(t, err)
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == "pmixhost" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// hostOf is the PMIx server of a step: a child of its stepd.
func hostOf(t testing.TB, n *node, id string) int {
	t.Helper()
	stepd := stepdOf(t, n, id, 0)
	for _, pid := range pmixhosts(t) {
		if parentOf(pid) == stepd {
			return pid
		}
	}
	t.Fatalf("stepd %d has no pmixhost", stepd)
	return 0
}

func parentOf(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(b), "PPid:")
	var parent int
	fmt.Sscan(rest, &parent)
	return parent
}

// leftOfPMIx is what is in the folder of PMIx servers.
func leftOfPMIx(n *node) []string {
	left, _ := filepath.Glob(filepath.Join(n.run, "pmix", "*"))
	return left
}

// noPMIxLeft waits until nothing is: other nodes end their parts a little later.
func (n *node) noPMIxLeft(t testing.TB) {
	t.Helper()
	eventually(t, goneWithin, "an empty folder of PMIx servers", func() error {
		if left := leftOfPMIx(n); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}

// TestRootPMIxEnds: how a rank ends, and the result for the step and for ranks
// that wait for it.
func TestRootPMIxEnds(t *testing.T) {
	n := startNode(t, site{})
	program := buildLinger(t, n)
	for _, c := range []struct {
		what  string
		code  int
		words []string
	}{
		{"exit", 5, []string{"rank 1 ended (Exited with exit code 5)", "PMIx_Finalize"}},
		{"kill", 137, []string{"rank 1 ended (Killed)", "PMIx_Finalize"}},
		{"never", 3, []string{"rank 1 ended (Exited with exit code 3)", "before PMIx_Init"}},
		{"abort", 9, []string{"rank 1 called abort"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := n.do(t, call{args: []string{"run", "-n", "3", "--mpi=pmix", program, "1", c.what}, env: libOpenMPI.env, limit: time.Minute})
			if r.code != c.code {
				t.Errorf("want exit code %d, got %v", c.code, r)
			}
			wantReason(t, n, n.last(t).id(), c.words...)
			n.noPMIxLeft(t)
		})
	}
	n.checkClean(t)
}

// TestRootPMIxKilled: the PMIx server, stepd or noded is killed: the step ends by
// name, and nothing is left.
func TestRootPMIxKilled(t *testing.T) {
	for victim, words := range map[string][]string{
		"pmixhost": {"pmixhost", "ill"}, "stepd": {"stepd", "ill"}, "spankhost": {"spankhost", "ill"}, "noded and stepd": {"stepd", "is gone"},
	} {
		t.Run(victim, func(t *testing.T) {
			n := startNode(t, site{})
			program := buildLinger(t, n)
			p := n.start(t, call{args: []string{"run", "-n", "2", "--mpi=pmix", program}, env: libOpenMPI.env})
			doc := n.running(t)
			host, stepd := hostOf(t, n, doc.id()), stepdOf(t, n, doc.id(), 0)
			checkPowerless(t, host)
			if victim == "pmixhost" { // once
				checkTopology(t, doc)
			}
			if len(leftOfPMIx(n)) != 1 {
				t.Errorf("folders: %q", leftOfPMIx(n))
			}
			pid := stepd
			switch victim {
			case "pmixhost":
				pid = host
			case "spankhost":
				pid = parentOf(*doc.Tasks[0].PID)
			case "noded and stepd": // the next noded ends the step
				n.kill9(t)
			}
			must(t, killNow(pid))
			if victim == "noded and stepd" {
				n.boot(t)
			}
			if r := p.wait(t); r.code == 0 {
				t.Errorf("got %v", r)
			}
			wantReason(t, n, doc.id(), words...)
			eventually(t, callTimeout, "nothing left", func() error {
				if left := leftOfPMIx(n); len(left) > 0 {
					return fmt.Errorf("folders %q", left)
				}
				if syscall.Kill(host, 0) == nil && parentOf(host) != 0 {
					return fmt.Errorf("pmixhost %d lives", host)
				}
				return nil
			})
			n.checkClean(t)
			n.serves(t)
		})
	}
}

// checkTopology: Open MPI's ranks have the machine's topology from the PMIx server,
// which spares each of them the discovery. libmpi maps the file that they share.
func checkTopology(t testing.TB, doc stepDoc) {
	t.Helper()
	eventually(t, callTimeout, "the shared topology", func() error {
		for _, task := range doc.Tasks {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", *task.PID))
			if err != nil {
				return err
			}
			if want := "/pmix/" + doc.id() + "/hwloc.sm"; !strings.Contains(string(b), want) {
				return fmt.Errorf("rank %d maps no %s", task.Rank, want)
			}
		}
		return nil
	})
}

// wantReason looks at why a step has ended: its client gets the end before
// noded does.
func wantReason(t testing.TB, n *node, id string, words ...string) {
	t.Helper()
	var doc stepDoc
	eventually(t, callTimeout, "the step's end", func() error {
		if doc = n.show(t, id); doc.State != "FAILED" {
			return errors.New(doc.State)
		}
		return nil
	})
	contains(t, "reason", doc.Reason, words...)
}

// checkPowerless: the PMIx server is the user's, has no privileges and can gain
// none.
func checkPowerless(t testing.TB, pid int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	user := testUser(t)
	id := fmt.Sprint(user.uid)
	contains(t, "status", string(b), "Uid:\t"+id+"\t"+id+"\t"+id+"\t"+id, "NoNewPrivs:\t1", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000")
	// Not to be attached to by the tasks, who are the same user: its files in /proc are root's.
	st, err := os.Stat(fmt.Sprintf("/proc/%d/mem", pid))
	must(t, err)
	if owner := st.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		t.Errorf("the memory of pmixhost belongs to uid %d: it can be attached to", owner)
	}
}

// TestRootPMIxForeignUser: another user of the node cannot speak with the server:
// libpmix itself believes what a peer says.
func TestRootPMIxForeignUser(t *testing.T) {
	n := startNode(t, site{})
	program := buildLinger(t, n)
	p := n.start(t, call{args: []string{"run", "-n", "1", "--mpi=pmix", "sh", "-c", "echo $PMIX_SERVER_URI2 >uri; exec " + program}, env: libOpenMPI.env})
	doc := n.running(t)
	var port string
	eventually(t, callTimeout, "the server's address", func() error {
		b, err := os.ReadFile(filepath.Join(n.wd, "uri"))
		uri := strings.TrimSpace(string(b))
		port = uri[strings.LastIndexByte(uri, ':')+1:]
		if err == nil && port == "" {
			err = errors.New("empty")
		}
		return err
	})
	for _, c := range []struct {
		uid     uint32
		refused bool
	}{{testUser(t).uid, false}, {54321, true}} {
		if got := hangsUp(t, c.uid, port, map[bool]string{true: "30", false: "2"}[c.refused]); got != c.refused {
			t.Errorf("uid %d: hung up on is %v, want %v", c.uid, got, c.refused)
		}
	}
	eventually(t, callTimeout, "a word in the log", func() error {
		if !n.inLog("refused a connection of uid 54321") {
			return errors.New("it is not there")
		}
		return nil
	})
	n.ctl(t, "cancel", doc.id())
	p.wait(t)
	n.checkClean(t)
}

// hangsUp connects to the server as a user and reports whether it closes within so many seconds.
func hangsUp(t testing.TB, uid uint32, port, limit string) bool {
	t.Helper()
	cmd := exec.Command("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$0 || exit 9; read -t $1 -u 3 x; code=$?; [ $code -gt 128 ] && exit 0; exit 1`, port, limit)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, _ := cmd.CombinedOutput()
	switch code := cmd.ProcessState.ExitCode(); code {
	case 0, 1:
		return code == 1
	default:
		t.Fatalf("cannot connect to port %s: code %d, %s", port, code, out)
		return false
	}
}

// stepdOf is the stepd of a task: the parent of its parent, which is spankhost.
func stepdOf(t testing.TB, n *node, id string, rank int) int {
	t.Helper()
	pid := 0
	eventually(t, callTimeout, "the task's pid", func() error {
		d := n.show(t, id)
		if rank >= len(d.Tasks) || d.Tasks[rank].PID == nil {
			return fmt.Errorf("task %d of %+v", rank, d.Tasks)
		}
		pid = *d.Tasks[rank].PID
		return nil
	})
	for range 2 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must(t, err)
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		pid, err = strconv.Atoi(fields[1])
		must(t, err)
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	must(t, err)
	if strings.TrimSpace(string(comm)) != "stepd" {
		t.Fatalf("process %d, above task %d, is %q", pid, rank, comm)
	}
	return pid
}
