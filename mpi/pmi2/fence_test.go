package pmi2

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"stepd/step"
)

// together runs play for every rank at once.
func (w *world) together(play func(f *fake)) {
	var all sync.WaitGroup
	for _, f := range w.ranks {
		all.Go(func() { play(f) })
	}
	all.Wait()
}

// fence is the rank's fence, in its protocol.
func (f *fake) fence() {
	f.t.Helper()
	if f.frames {
		f.ask("cmd=kvs-fence;", "cmd=kvs-fence-response;rc=0;")
	} else {
		f.ask("cmd=barrier_in", "cmd=barrier_out rc=0")
	}
}

func (f *fake) put(key, value string) {
	f.t.Helper()
	if f.frames {
		f.ask("cmd=kvs-put;key="+key+";value="+value+";", "cmd=kvs-put-response;rc=0;")
	} else {
		f.ask("cmd=put kvsname=12.3 key="+key+" value="+value, "cmd=put_result rc=0")
	}
}

func (f *fake) get(key, value string) {
	f.t.Helper()
	if f.frames {
		f.ask("cmd=kvs-get;jobid=12.3;srcid=-1;key="+key+";", "cmd=kvs-get-response;rc=0;found=TRUE;value="+value+";")
	} else {
		f.ask("cmd=get kvsname=12.3 key="+key, "cmd=get_result rc=0 value="+value)
	}
}

func (f *fake) getNone(key string) {
	f.t.Helper()
	if f.frames {
		f.ask("cmd=kvs-get;key="+key+";", "cmd=kvs-get-response;rc=0;found=FALSE;")
	} else {
		f.ask("cmd=get key="+key, "cmd=get_result rc=-1 msg=key_not_found value=unknown")
	}
}

func (f *fake) finalize() {
	f.t.Helper()
	if f.frames {
		f.ask("cmd=finalize;", "cmd=finalize-response;rc=0;")
	} else {
		f.ask("cmd=finalize", "cmd=finalize_ack rc=0")
	}
}

// speak makes the rank speak PMI-1, PMI-2, or by its number one of them.
func (f *fake) speak(protocol string) {
	if protocol == "PMI-2" || protocol == "both" && f.n%2 == 1 {
		f.init2()
	} else {
		f.init1()
	}
}

func TestFence(t *testing.T) {
	for _, protocol := range []string{"PMI-1", "PMI-2", "both"} {
		for _, n := range []int{1, 2, 3, 7, 64} {
			t.Run(fmt.Sprintf("%s %d", protocol, n), func(t *testing.T) {
				w := newWorld(t, n, step.PMI2Conf{})
				w.together(func(f *fake) {
					f.speak(protocol)
					for round := range 5 {
						f.put(fmt.Sprintf("k-%d-%d", round, f.n), fmt.Sprintf("v-%d-%d", round, f.n))
						f.fence()
						next := (f.n + 1) % n
						f.get(fmt.Sprintf("k-%d-%d", round, next), fmt.Sprintf("v-%d-%d", round, next))
					}
					f.finalize()
				})
				for rank := range n {
					w.exit(rank, 0)
				}
				w.wantQuiet()
			})
		}
	}
}

// What a rank puts is its own until the fence, and no rank leaves a
// fence before the last one has entered.
func TestFenceMakesVisible(t *testing.T) {
	w := newWorld(t, 3, step.PMI2Conf{})
	a, b, c := w.ranks[0].init1(), w.ranks[1].init2(), w.ranks[2].init1()
	a.put("k", "1")
	a.get("k", "1")
	b.getNone("k")
	a.say("cmd=barrier_in")
	b.say("cmd=kvs-fence;thrid=5;")
	c.getNone("k") // answered: so both of the others are in, and none is out
	_ = a.file.SetReadDeadline(time.Now())
	if got, err := a.in.ReadString('\n'); err == nil {
		t.Errorf("rank 0 left the fence with %q", got)
	}
	c.fence()
	a.want("cmd=barrier_out rc=0")
	b.want("cmd=kvs-fence-response;thrid=5;rc=0;")
	b.get("k", "1")
	c.get("k", "1")
	b.put("k", "2") // another rank's key, by another protocol
	c.get("k", "1")
	w.together((*fake).fence)
	a.get("k", "2")
	w.wantQuiet()
}

// A threaded PMI-2 client goes on while one of its threads is in a fence.
func TestFenceHoldsUpNoOtherThread(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{})
	a, b := w.ranks[0].init2(), w.ranks[1].init2()
	a.say("cmd=kvs-fence;thrid=1;")
	a.ask("cmd=job-getid;thrid=2;", "cmd=job-getid-response;thrid=2;rc=0;jobid=12.3;")
	a.ask("cmd=kvs-fence;thrid=3;", "cmd=kvs-fence-response;thrid=3;rc=3;errmsg=rank 0 waits in a fence already;")
	b.ask("cmd=ring;ring-left=a;ring-right=b;", "cmd=ring-response;rc=3;errmsg=rank 1 enters a ring while others wait in a fence;")
	b.fence()
	a.want("cmd=kvs-fence-response;thrid=1;rc=0;")
	w.wantQuiet()
}

func TestFenceRing(t *testing.T) {
	const n = 5
	w := newWorld(t, n, step.PMI2Conf{})
	w.together(func(f *fake) {
		f.init2()
		f.ask(fmt.Sprintf("cmd=ring;ring-count=1;ring-left=l%d;ring-right=r%d;", f.n, f.n),
			fmt.Sprintf("cmd=ring-response;rc=0;ring-count=%d;ring-left=r%d;ring-right=l%d;", f.n, (f.n+n-1)%n, (f.n+1)%n))
	})
	w.wantQuiet()
}

func TestWaitForNodeAttribute(t *testing.T) {
	const n = 8
	w := newWorld(t, n, step.PMI2Conf{})
	w.together(func(f *fake) {
		f.init2()
		if f.n == n-1 {
			return
		}
		f.say("cmd=info-getnodeattr;key=shm;wait=TRUE;")
		f.ask("cmd=job-getid;", "cmd=job-getid-response;rc=0;jobid=12.3;")
	})
	w.ranks[n-1].ask("cmd=info-putnodeattr;key=shm;value=a;;b;", "cmd=info-putnodeattr-response;rc=0;")
	for _, f := range w.ranks[:n-1] {
		f.want("cmd=info-getnodeattr-response;rc=0;found=TRUE;value=a;;b;")
	}
	w.wantQuiet()
}

// A thousand ranks start and fence, and cost little of stepd's memory.
func TestFenceOfThousandRanks(t *testing.T) {
	const n = 1000
	before := memory()
	w := newWorld(t, n, step.PMI2Conf{})
	w.together(func(f *fake) {
		f.speak("both")
		f.put(fmt.Sprint("address-", f.n), "0123456789abcdef0123456789abcdef")
		f.fence()
	})
	// The test's own half: a buffered reader of 4 KiB a rank.
	if used := memory() - before - n*4096; used > 16<<20 {
		t.Errorf("%d ranks cost %d KiB", n, used>>10)
	} else {
		t.Logf("%d ranks cost %d KiB of heap and stacks, the fakes' files included", n, used>>10)
	}
	for rank := range n {
		w.exit(rank, step.SignaledBy(9))
	}
	select {
	case <-w.aborts: // by any of them
	case <-time.After(10 * time.Second):
		t.Error("no abort")
	}
}

func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
