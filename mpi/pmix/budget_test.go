package pmix

import (
	"errors"
	"strings"
	"testing"

	"stepd/internal/wire"
)

func upcall(typ uint32, who proc, more int) *frame {
	w := &writer{}
	w.proc(who)
	w.B = append(w.B, make([]byte, more)...)
	return &frame{typ: typ, id: 1, body: reader{Reader: wire.Reader{B: w.B}}, size: len(w.B)}
}

// What may be unanswered at a time ends, for one process before it does for all.
func TestBudget(t *testing.T) {
	b := newBudget(4)
	rank := func(n int) proc { return proc{"slurm.pmix.12.3", uint32(n)} }
	var all []*share
	for range clientUpcallsMax {
		s, err := b.take(upcall(upLookup, rank(0), 8))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if _, err := b.take(upcall(upLookup, rank(0), 8)); err == nil || !strings.Contains(err.Error(), "64 requests of slurm.pmix.12.3:0 are unanswered") {
		t.Errorf("one process: %v", err)
	}
	// Another's are served, as are upcalls whose process is unknown.
	for b.count < upcallsMax+4 {
		typ := uint32(upModex)
		if b.count%2 == 0 {
			typ = upPublish
		}
		s, err := b.take(upcall(typ, rank(b.count/clientUpcallsMax), 8))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if _, err := b.take(upcall(upQuery, rank(99), 8)); err == nil || !strings.Contains(err.Error(), "1028 requests are unanswered") {
		t.Errorf("all: %v", err)
	}
	for _, s := range all {
		s.give()
	}
	if b.count != 0 || b.requests != 0 || b.meetings != 0 || len(b.clients) != 0 {
		t.Errorf("left: %+v", b)
	}
	// A fence may bring a whole frame while others are refused theirs.
	if _, err := b.take(&frame{typ: upPublish, size: requestBytesMax + 1}); !errors.Is(err, errBudget) {
		t.Errorf("a long request: %v", err)
	}
	if _, err := b.take(&frame{typ: upFence, size: pmixhostFrameMax}); err != nil {
		t.Error(err)
	}
	if _, err := b.take(&frame{typ: upFence, size: pmixhostFrameMax}); !errors.Is(err, errBudget) {
		t.Errorf("two fences: %v", err)
	}
}

// Infos of no content, 14 bytes each, are paid for before they are read: a frame of
// them would take twenty times its size.
func TestCostlyInfos(t *testing.T) {
	p := unstarted(t)
	k := &told{}
	p.job = k.job(p.job.Spec)
	w := &writer{}
	w.proc(proc{p.world.nspace, 0})
	w.U32(400000)
	w.B = append(w.B, make([]byte, 400000*infoMin)...)
	w.U32(0)
	f := frame{typ: upPublish, id: 1, body: reader{Reader: wire.Reader{B: w.B}}, size: len(w.B)}
	s, err := p.budget.take(&f)
	if err != nil {
		t.Fatal(err)
	}
	f.body.spend = s.spend
	if _, err := (upcalls{p}).serve(t.Context(), f); !errors.Is(err, errBudget) {
		t.Errorf("400,000 infos: %v", err)
	}
	s.give()
	if p.budget.requests != 0 {
		t.Errorf("%d bytes were not given back", p.budget.requests)
	}
}
