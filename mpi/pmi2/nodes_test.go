package pmi2

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/step"
)

// lists deals n ranks to nodes.
func lists(nodes, n int, cyclic bool) []string {
	of := make([][]int, nodes)
	for r := range n {
		node := r * nodes / n
		if cyclic {
			node = r % nodes
		}
		of[node] = append(of[node], r)
	}
	var out []string
	for _, ranks := range of {
		out = append(out, step.FormatCPUList(ranks))
	}
	return out
}

// TestNodesFence: what a rank puts is seen by all after the next fence, wherever
// they are and whatever they speak; a ring goes around all nodes.
func TestNodesFence(t *testing.T) {
	for _, c := range []struct {
		nodes, ranks int
		cyclic       bool
	}{{2, 2, false}, {2, 5, true}, {4, 8, false}, {4, 13, true}, {16, 32, true}} {
		t.Run(fmt.Sprintf("%d nodes %d ranks", c.nodes, c.ranks), func(t *testing.T) {
			w := newCluster(t, step.PMI2Conf{}, lists(c.nodes, c.ranks, c.cyclic)...)
			n := c.ranks
			w.together(func(f *fake) {
				f.speak("both")
				for round := range 3 {
					f.put(fmt.Sprintf("k%d.%d", round, f.n), fmt.Sprint("v", f.n))
					f.put("same", fmt.Sprint("of_", f.n))
					f.get("same", fmt.Sprint("of_", f.n))
					f.fence()
					for r := range n {
						f.get(fmt.Sprintf("k%d.%d", round, r), fmt.Sprint("v", r))
					}
					f.get("same", fmt.Sprint("of_", n-1)) // the last rank's, on all nodes
					f.fence()
				}
				f.finalize()
			})
			for rank := range n {
				w.exit(rank, 0)
			}
			w.wantQuiet()
		})
	}
	t.Run("ring", func(t *testing.T) {
		const n = 7
		w := newCluster(t, step.PMI2Conf{}, lists(3, n, true)...)
		w.together(func(f *fake) {
			f.init2()
			f.ask(fmt.Sprintf("cmd=ring;ring-count=1;ring-left=l%d;ring-right=r%d;", f.n, f.n),
				fmt.Sprintf("cmd=ring-response;rc=0;ring-count=%d;ring-left=r%d;ring-right=l%d;", f.n, (f.n+n-1)%n, (f.n+1)%n))
		})
	})
	t.Run("a node without ranks", func(t *testing.T) {
		w := newCluster(t, step.PMI2Conf{}, "0-1", "", "2")
		w.together(func(f *fake) {
			f.init1()
			f.put(fmt.Sprint("k", f.n), "v")
			f.fence()
			f.get("k2", "v")
			f.ask("cmd=get key=PMI_process_mapping", "cmd=get_result rc=0 value=(vector,(0,1,2),(2,1,1))")
			f.finalize()
		})
		for rank := range 3 {
			w.exit(rank, 0)
		}
		w.wantQuiet()
	})
}

// A node's attributes stay on it, its list of ranks too; the identity is the socket's.
func TestNodesAttributes(t *testing.T) {
	w := newCluster(t, step.PMI2Conf{}, "0,2", "1,3")
	a, b := w.ranks[2].init2(), w.ranks[1].init2()
	a.ask("cmd=info-putnodeattr;key=x;value=1;", "cmd=info-putnodeattr-response;rc=0;")
	a.ask("cmd=info-getnodeattr;key=x;wait=FALSE;", "cmd=info-getnodeattr-response;rc=0;found=TRUE;value=1;")
	b.ask("cmd=info-getnodeattr;key=x;wait=FALSE;", "cmd=info-getnodeattr-response;rc=0;found=FALSE;")
	b.ask("cmd=info-getnodeattr;key=localRanks;wait=FALSE;", "cmd=info-getnodeattr-response;rc=0;found=TRUE;value=1,3;")
	b.ask("cmd=info-getnodeattr;key=localRanksCount;wait=FALSE;", "cmd=info-getnodeattr-response;rc=0;found=TRUE;value=2;")
	b.ask("cmd=info-getjobattr;key=PMI_process_mapping;", "cmd=info-getjobattr-response;rc=0;found=TRUE;value=(vector,(0,2,1));")
	c := w.ranks[3].hello2()
	c.ask("cmd=fullinit;pmirank=2;", `cmd=fullinit-response;rc=3;errmsg=rank 3 claims to be rank "2";`)
	w.nodes[1].wantLog("rank 3 claims to be rank")
	env := strings.Join(w.nodes[1].tasks.TaskEnv[1], " ")
	if !strings.Contains(env, "PMI_RANK=3 PMI_ID=3 PMI_SIZE=4") {
		t.Errorf("environment %q", env)
	}
}

// abort waits for the first abort of any node.
func (c *cluster) abort() told {
	c.t.Helper()
	cases := make([]reflect.SelectCase, 0, len(c.nodes)+1)
	for _, w := range c.nodes {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(w.aborts)})
	}
	cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(time.After(10 * time.Second))})
	i, v, _ := reflect.Select(cases)
	if i == len(c.nodes) {
		c.t.Fatal("no abort")
	}
	return v.Interface().(told)
}

// Ranks that can never be joined in a fence end the step, and the words name who is
// missing, and where.
func TestNodesStuck(t *testing.T) {
	wait := func(f *fake) {
		if f.frames {
			f.say("cmd=kvs-fence;")
		} else {
			f.say("cmd=barrier_in")
		}
	}
	for _, c := range []struct {
		name  string
		conf  step.PMI2Conf
		play  func(w *cluster)
		rank  int
		code  int
		words []string
	}{
		{"all of a node have finalized", step.PMI2Conf{}, func(w *cluster) {
			for _, r := range []int{2, 3} {
				w.ranks[r].init1().finalize()
			}
			wait(w.ranks[0].init1())
			wait(w.ranks[1].init2())
		}, 2, 1, []string{"MPI fence cannot complete: 2 of 4 ranks wait in it", `rank 2 on node "n1" will never enter it; rank 2 has finalized`}},
		{"one never speaks and ends", step.PMI2Conf{}, func(w *cluster) {
			wait(w.ranks[0].init1())
			wait(w.ranks[1].init2())
			w.exit(3, step.ExitedWith(5))
		}, 3, 5, []string{`rank 3 on node "n1" will never enter it; rank 3 ended (Exited with exit code 5) before init`}},
		{"one ends in the middle", step.PMI2Conf{}, func(w *cluster) {
			wait(w.ranks[0].init1())
			wait(w.ranks[1].init2())
			w.ranks[3].init1()
			w.exit(3, step.SignaledBy(9))
		}, 3, 137, []string{"MPI rank 3 ended (Killed) running: it had not finalized"}},
		{"fence and ring", step.PMI2Conf{}, func(w *cluster) {
			wait(w.ranks[0].init1())
			wait(w.ranks[1].init2())
			for _, r := range []int{2, 3} {
				w.ranks[r].init2().say("cmd=ring;ring-left=;ring-right=;")
			}
		}, 2, 1, []string{`rank 0 on node "n0" waits in it, and rank 2 on node "n1" in a ring`}},
		{"one of this node is late", step.PMI2Conf{FenceTimeout: 50 * time.Millisecond}, func(w *cluster) {
			w.ranks[1].init1()
			wait(w.ranks[0].init1())
		}, 1, 1, []string{"after 50ms (PMI2FenceTimeout)", `1 of 2 ranks on node "n0" wait in it, and rank 1 on node "n0" has not come; rank 1 is running`}},
		{"a node is late", step.PMI2Conf{FenceTimeout: 50 * time.Millisecond}, func(w *cluster) {
			w.ranks[3].init1()
			wait(w.ranks[0].init1())
			wait(w.ranks[1].init2())
		}, 0, 1, []string{`all 2 ranks on node "n0" wait in it: after 50ms (PMI2FenceTimeout)`, `ranks 2-3 on node "n1" have not come; rank 2 is before init`}},
		{"more than fits", step.PMI2Conf{TotalBytes: 3 * (entryOverhead + 20)}, func(w *cluster) {
			for r := range 4 {
				w.ranks[r].init1()
				w.ranks[r].put(fmt.Sprint("key", r), "value")
			}
			for r := range 4 {
				wait(w.ranks[r])
			}
		}, -1, 1, []string{"the ranks of all nodes store", "(PMI2TotalBytes)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster(t, c.conf, "0-1", "2-3")
			c.play(w)
			got := w.abort()
			if (c.rank >= 0 && got.rank != c.rank) || got.code != c.code {
				t.Errorf("abort by rank %d with code %d, want %d, %d: %s", got.rank, got.code, c.rank, c.code, got.text)
			}
			for _, words := range c.words {
				if !strings.Contains(got.text, words) {
					t.Errorf("abort says %q, which lacks %q", got.text, words)
				}
			}
		})
	}
}

// What another stepd brings is read with care, and never believed about ranks that
// are not its own.
func TestNodesBadShare(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"empty":           {},
		"unknown":         {9},
		"cut":             {1, 200},
		"another's ranks": (&share{kind: kindFence, ranks: []rankShare{{n: 0, pairs: []pair{{"a", "b"}}}}}).encode(),
		"no such rank":    (&share{kind: kindFence, ranks: []rankShare{{n: 99}}}).encode(),
	} {
		t.Run(name, func(t *testing.T) {
			w := newCluster(t, step.PMI2Conf{}, "0", "1")
			w.ranks[0].init1().say("cmd=barrier_in")
			w.net.meet(meetFence+"[0 1]", 2, 1, bytes)
			w.nodes[0].wantAbort(0, 1, `node "n1"`, "cannot read another node's part of a fence")
		})
	}
}

func TestMapping(t *testing.T) {
	for _, c := range []struct {
		of   []int
		want string
	}{
		{[]int{0, 0, 0}, "(vector,(0,1,3))"},
		{[]int{0, 0, 1, 1, 2, 2}, "(vector,(0,3,2))"},
		{[]int{0, 1, 2, 0, 1, 2}, "(vector,(0,3,1))"},
		{[]int{0, 1, 2, 0, 1}, "(vector,(0,3,1))"},
		{[]int{0, 0, 1, 2, 2}, "(vector,(0,1,2),(1,1,1),(2,1,2))"},
		{[]int{1, 0}, "(vector,(1,1,1),(0,1,1))"},
		{[]int{0, 0, 1, 1, 0, 0, 1, 1, 0}, "(vector,(0,2,2))"}, // plane
		{[]int{0, 2, 2, 5}, "(vector,(0,1,1),(2,1,2),(5,1,1))"},
	} {
		l := layout{of: c.of}
		if got := l.mapping(); got != c.want {
			t.Errorf("%v: %s, want %s", c.of, got, c.want)
		}
	}
	// One that a client cannot take is not told at all.
	var odd []string
	for i := range 300 {
		odd = append(odd, fmt.Sprint(i*7%300))
	}
	w := newCluster(t, step.PMI2Conf{}, odd...)
	w.ranks[0].init1().ask("cmd=get key=PMI_process_mapping", "cmd=get_result rc=-1 msg=key_not_found value=unknown")
}

// FuzzShare: what is read can be written and read again, and costs what it has.
func FuzzShare(f *testing.F) {
	for _, s := range []*share{
		{kind: kindFence, ranks: []rankShare{{n: 0, pairs: []pair{{"a", "b"}, {"", "\xff"}}}, {n: 7}}},
		{kind: kindRing, ranks: []rankShare{{n: 3, left: "l", right: "r"}}},
		{kind: kindLeft, left: &leftShare{ranks: []int{1, 2}, first: 1, code: -3, how: "has finalized"}},
	} {
		f.Add(s.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseShare(b)
		if err != nil {
			return
		}
		again, err := parseShare(s.encode())
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("%+v, then %+v, %v", s, again, err)
		}
		if s.kind != kindLeft && slices.ContainsFunc(s.ranks, func(r rankShare) bool { return len(r.pairs) > len(b) }) {
			t.Fatalf("%d bytes became %+v", len(b), s)
		}
	})
}
