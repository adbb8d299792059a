package selection

import (
	"strings"
	"testing"

	"stepd/step"
)

func mb(v uint64) *uint64 { return &v }

func TestMemoryForJob(t *testing.T) {
	site := Memory{MB: 24 << 10, Consumable: true}
	with := func(change func(*Memory)) Memory { m := site; change(&m); return m }
	for _, c := range []struct {
		name string
		mem  Memory
		req  step.Request
		cpus int
		want uint64
		says string
	}{
		{"nothing asked, no default", site, step.Request{}, 2, 0, ""},
		{"default by CPU", with(func(m *Memory) { m.DefPerCPU = 100 }), step.Request{}, 2, 200, ""},
		{"default by node", with(func(m *Memory) { m.DefPerNode = 300 }), step.Request{}, 2, 300, ""},
		{"a default is for consumables", Memory{MB: 100, DefPerNode: 50}, step.Request{}, 2, 0, ""},
		{"a default over the node's", with(func(m *Memory) { m.DefPerCPU = 1 << 20 }), step.Request{}, 2, 24 << 10, ""},
		{"mem", site, step.Request{Mem: mb(64)}, 2, 64, ""},
		{"all", site, step.Request{Mem: mb(0)}, 2, 24 << 10, ""},
		{"by CPU", site, step.Request{MemPerCPU: mb(64)}, 3, 192, ""},
		{"all by CPU", site, step.Request{MemPerCPU: mb(0)}, 3, 24 << 10, ""},
		{"over the node's", site, step.Request{Mem: mb(64 << 10)}, 2, 0, "needs 64 GB of memory on this node, which has 24 GB"},
		{"by CPU over the node's", site, step.Request{MemPerCPU: mb(10 << 10)}, 3, 0, "needs 30 GB of memory on this node, which has 24 GB"},
		{"over MaxMemPerNode", with(func(m *Memory) { m.MaxPerNode = 100 }), step.Request{Mem: mb(101)}, 2, 0, "MaxMemPerNode"},
		{"over MaxMemPerCPU", with(func(m *Memory) { m.MaxPerCPU = 50 }), step.Request{Mem: mb(101)}, 2, 0, "MaxMemPerCPU"},
		{"at MaxMemPerCPU", with(func(m *Memory) { m.MaxPerCPU = 50 }), step.Request{Mem: mb(100)}, 2, 100, ""},
	} {
		p := memPool{Memory: c.mem}
		got, err := p.forJob(&c.req, c.cpus)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", c.name, got, err, c.want)
		}
	}
}

func TestMemoryForStep(t *testing.T) {
	p := memPool{Memory: Memory{MB: 1000, Consumable: true}}
	for _, c := range []struct {
		name  string
		req   step.Request
		jobMB uint64
		want  uint64
		says  string
	}{
		{"the job's", step.Request{}, 500, 500, ""},
		{"all of the job's", step.Request{Mem: mb(0)}, 500, 500, ""},
		{"less", step.Request{Mem: mb(100)}, 500, 100, ""},
		{"by CPU", step.Request{MemPerCPU: mb(100)}, 500, 200, ""},
		{"over the job's", step.Request{Mem: mb(501)}, 500, 0, "needs 501 MB of memory in job 7, which has 500 MB"},
		{"a job without a share", step.Request{Mem: mb(600)}, 0, 600, ""},
		{"over the node's", step.Request{Mem: mb(1001)}, 0, 0, "this node, which has 1000 MB"},
	} {
		got, err := p.forStep(&c.req, 2, 7, c.jobMB)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", c.name, got, err, c.want)
		}
	}
}

func TestMemoryPool(t *testing.T) {
	p := memPool{Memory: Memory{MB: 1000, Consumable: true}}
	if err := p.fits(700); err != nil {
		t.Fatal(err)
	}
	p.hold(700)
	if err := p.fits(301); err == nil || !strings.Contains(err.Error(), "of its 1000 MB 300 MB are free") {
		t.Errorf("too much: %v", err)
	}
	if err := p.fits(0); err != nil {
		t.Errorf("a job without a share: %v", err)
	}
	if err := p.fits(300); err != nil {
		t.Error(err)
	}
	p.hold(300)
	p.release(700)
	if p.used != 300 {
		t.Errorf("%d MB are used, want 300", p.used)
	}
	shared := memPool{Memory: Memory{MB: 1000}}
	for range 2 { // what is no consumable resource is not counted against others
		if err := shared.fits(800); err != nil {
			t.Error(err)
		}
		shared.hold(800)
	}
}
