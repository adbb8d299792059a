package pmix

import (
	"strings"
	"testing"
	"time"

	"stepd/step"
)

// layout deals ranks to nodes.
func layout(spec *step.Spec, ranks ...string) *step.Spec {
	spec.Layout = &step.Layout{}
	for i, r := range ranks {
		spec.Layout.Nodes = append(spec.Layout.Nodes, step.LayoutNode{Name: "n" + string(rune('0'+i)), Ranks: r})
	}
	return spec
}

// keysOfRank are the infos of one rank's PROC_DATA.
func keysOfRank(t *testing.T, all []info, rank int) []info {
	t.Helper()
	for _, i := range all {
		if i.key != keyProcData {
			continue
		}
		if r, _ := find(i.value.array.infos, keyRank); int(r.num) == rank {
			return i.value.array.infos
		}
	}
	t.Fatalf("no data of rank %d", rank)
	return nil
}

func TestJobInfos(t *testing.T) {
	spec := layout(testSpec(7), "0,3-4", "1-2", "5-6")
	spec.NodeID = 1
	spec.Apps = []step.App{{NTasks: 3}, {NTasks: 4}}
	spec.Parent = &step.ID{Job: 12, Step: 0}
	w := newWorld(spec)
	all := w.infos(1)
	for key, want := range map[string]string{
		keyJobID: "slurm.pmix.12.3", keyNodeMap: "n0,n1,n2", keyProcMap: "0,3,4;1,2;5,6", keyLocalPeers: "1,2",
		keyANLMap: "(vector,(0,1,1),(1,1,2),(0,1,2),(2,1,2))",
	} {
		if v, _ := find(all, key); v.text != want {
			t.Errorf("%s is %q, want %q", key, v.text, want)
		}
	}
	for key, want := range map[string]int{keyUnivSize: 7, keyJobSize: 7, keyNumApps: 2, keyNumNodes: 3, keyLocalSize: 2, keyLocalLdr: 1, keySpawned: 1} {
		if v, _ := find(all, key); int(v.num) != want {
			t.Errorf("%s is %d, want %d", key, v.num, want)
		}
	}
	if v, _ := find(all, keyParentID); v.proc != (proc{"slurm.pmix.12.0", 0}) {
		t.Errorf("parent %v", v.proc)
	}
	for rank, want := range map[int]map[string]int{
		0: {keyAppNum: 0, keyAppRank: 0, keyAppSize: 3, keyLocalRank: 0, keyNodeID: 0},
		4: {keyAppNum: 1, keyAppRank: 1, keyAppSize: 4, keyAppLdr: 3, keyLocalRank: 2, keyNodeRank: 2, keyNodeID: 0},
		6: {keyAppNum: 1, keyAppRank: 3, keyLocalRank: 1, keyNodeID: 2},
	} {
		for key, n := range want {
			if v, ok := find(keysOfRank(t, all, rank), key); !ok || int(v.num) != n {
				t.Errorf("rank %d: %s is %d, want %d", rank, key, v.num, n)
			}
		}
	}
	if v, _ := find(keysOfRank(t, all, 5), keyHostname); v.text != "n2" {
		t.Errorf("rank 5 is on %q", v.text)
	}
}

func TestMapping(t *testing.T) {
	for _, c := range []struct {
		n     int
		nodes []string
		want  string
	}{
		{4, []string{"0-3"}, "(vector,(0,1,4))"},
		{4, []string{"0-1", "2-3"}, "(vector,(0,2,2))"},
		{5, []string{"0-2", "3-4"}, "(vector,(0,1,3),(1,1,2))"},
		{4, []string{"0,2", "1,3"}, "(vector,(0,2,1),(0,2,1))"},
	} {
		if got := newWorld(layout(testSpec(c.n), c.nodes...)).mapping(); got != c.want {
			t.Errorf("%v: %s, want %s", c.nodes, got, c.want)
		}
	}
}

// A rank's end, and what it means for the step.
func TestTaskExited(t *testing.T) {
	const connected, finalized = upConnected, upFinalized
	for _, c := range []struct {
		name   string
		before func(p *Plugin)
		status step.ExitStatus
		code   int
		want   string // "" is no abort
	}{
		{"without PMIx", func(*Plugin) {}, 0, 0, ""},
		{"after init", func(p *Plugin) { p.moved(connected, proc{p.world.nspace, 1}) }, step.ExitedWith(3), 3,
			"MPI rank 1 ended (Exited with exit code 3): it had not called PMIx_Finalize"},
		{"after init, well", func(p *Plugin) { p.moved(connected, proc{p.world.nspace, 1}) }, 0, 1, "it had not called PMIx_Finalize"},
		{"after finalize", func(p *Plugin) {
			p.moved(connected, proc{p.world.nspace, 1})
			p.moved(finalized, proc{p.world.nspace, 1})
		}, step.ExitedWith(3), 0, ""},
		{"that others wait for", func(p *Plugin) {
			p.moved(connected, proc{p.world.nspace, 0})
			p.moved(connected, proc{p.world.nspace, 2})
		}, step.ExitedWith(5), 5, "MPI rank 1 ended (Exited with exit code 5) before PMIx_Init, and rank 0,2 will wait for it"},
		{"another's identity", func(p *Plugin) { p.moved(connected, proc{"slurm.pmix.9.9", 1}) }, 0, 0, ""},
		{"a rank that is none", func(p *Plugin) { p.moved(connected, proc{p.world.nspace, rankWildcard}) }, 0, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := unstarted(t)
			k := &told{}
			p.job, p.started = k.job(p.job.Spec), true
			c.before(p)
			p.TaskExited(1, c.status)
			p.TaskExited(1, c.status)
			if len(k.aborts) > 0 && strings.Contains(c.want, "PMIx_Finalize") {
				t.Errorf("its last words are not waited for: %+v", k.aborts)
			}
			p.moved(upLost, proc{p.world.nspace, 1})
			switch {
			case c.want == "" && len(k.aborts) > 0:
				t.Errorf("aborts: %+v", k.aborts)
			case c.want != "":
				wantAbort(t, k, 1, c.code, c.want)
			}
		})
	}
}

// The other way round: a rank calls PMIx_Init when another has ended without it.
func TestConnectAfterExit(t *testing.T) {
	p := unstarted(t)
	k := &told{}
	p.job, p.started = k.job(p.job.Spec), true
	p.TaskExited(3, 0)
	if len(k.aborts) > 0 {
		t.Fatalf("aborts: %+v", k.aborts)
	}
	p.moved(upConnected, proc{p.world.nspace, 0})
	wantAbort(t, k, 3, 1, "MPI rank 3 ended (Exited with exit code 0) before PMIx_Init, and rank 0 will wait for it")
}

// A rank whose last words come after its end, and one whose connection does not
// end with it.
func TestLastWords(t *testing.T) {
	p := unstarted(t)
	k := &told{}
	p.job, p.started = k.job(p.job.Spec), true
	p.conf.CloseGrace = time.Second
	one, two := proc{p.world.nspace, 1}, proc{p.world.nspace, 2}
	p.moved(upConnected, one)
	p.moved(upConnected, two)
	p.TaskExited(1, 0)
	p.moved(upFinalized, one)
	time.Sleep(1200 * time.Millisecond)
	k.mu.Lock()
	if len(k.aborts) > 0 {
		t.Errorf("aborts: %+v", k.aborts)
	}
	k.mu.Unlock()
	p.TaskExited(2, step.ExitedWith(4))
	for range 500 {
		k.mu.Lock()
		n := len(k.aborts)
		k.mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	wantAbort(t, k, 2, 4, "MPI rank 2 ended (Exited with exit code 4): it had not called PMIx_Finalize")
}
