package wire

import (
	"fmt"
	"time"
)

// TRES is a resource that the site counts.
type TRES struct {
	ID         uint32 // TRESCPU and so on, or one of the site's above 1000
	Type, Name string // "gres", "gpu"
}

// The resources of every site.
const (
	TRESCPU    uint32 = 1 // ms of CPU time
	TRESMemory uint32 = 2 // bytes resident
	TRESEnergy uint32 = 3 // J
	TRESDisk   uint32 = 6 // bytes read, and written
	TRESVMem   uint32 = 7 // bytes of address space
	TRESPages  uint32 = 8 // page faults that read
)

// Infinite64 is a figure that was not measured.
const Infinite64 uint64 = 0xffffffffffffffff

// Figures are what the tasks have used of a resource: the largest and smallest figure with the
// node and task that it is of, numbers within the step, and the sum of all.
type Figures struct {
	Max, MaxNode, MaxTask uint64
	Min, MinNode, MinTask uint64
	Total                 uint64
}

// unmeasured are the figures of a resource that nothing measures.
var unmeasured = Figures{Infinite64, Infinite64, Infinite64, Infinite64, Infinite64, Infinite64, Infinite64}

// TRESUsage is what a step has used of a resource: In is what it has taken or read, Out what it
// has written.
type TRESUsage struct {
	TRES
	In, Out Figures
}

// Usage is what a step has used, for slurmctld and sstat. nil is that nothing was measured:
// JobAcctGatherType=jobacct_gather/none.
type Usage struct {
	User, System time.Duration
	CPUFreq      uint32 // kHz
	Energy       uint64 // J
	// TRES are the figures, in slurmctld's order of resources: NewUsage makes them.
	TRES []TRESUsage
}

// NewUsage is a usage without figures of the site's resources, Conf.TRES.
func NewUsage(site []TRES) *Usage {
	u := &Usage{TRES: make([]TRESUsage, len(site))}
	for i, t := range site {
		u.TRES[i] = TRESUsage{t, unmeasured, unmeasured}
	}
	return u
}

// Of is the entry of a resource, nil where the site does not count it.
func (u *Usage) Of(id uint32) *TRESUsage {
	for i := range u.TRES {
		if u.TRES[i].ID == id {
			return &u.TRES[i]
		}
	}
	return nil
}

// PackUsage is a usage as it is packed on a step's socket, the same in all releases: sstat learns
// there which resources the site has. In messages their list is left out.
func PackUsage(u *Usage) []byte {
	w := new(writer)
	u.packWith(w, func() {
		w.u32(uint32(len(u.TRES)))
		for i := range u.TRES {
			t := &u.TRES[i]
			w.u64(0) // seconds
			w.u64(0) // how many there are
			w.u32(t.ID)
			w.str(t.Name)
			w.str(t.Type)
		}
	})
	return w.b
}

func (u *Usage) pack(w *writer) { u.packWith(w, func() { w.u32(NoVal) }) }

func (u *Usage) packWith(w *writer, list func()) {
	if u == nil {
		w.u8(0)
		return
	}
	w.u8(1)
	for _, d := range []time.Duration{u.User, u.System} {
		w.u64(uint64(d / time.Second))
		w.u32(uint32(d % time.Second / time.Microsecond))
	}
	w.u32(u.CPUFreq)
	w.u64(u.Energy)
	w.u32(uint32(len(u.TRES)))
	for i := range u.TRES {
		w.u32(u.TRES[i].ID)
	}
	list()
	for _, side := range sides {
		for _, figure := range figures {
			w.u32(uint32(len(u.TRES)))
			for i := range u.TRES {
				w.u64(*figure(side(&u.TRES[i])))
			}
		}
	}
}

// sides and figures are the parts of a resource's figures in the order in which they are packed.
var (
	sides   = [2]func(*TRESUsage) *Figures{func(t *TRESUsage) *Figures { return &t.In }, func(t *TRESUsage) *Figures { return &t.Out }}
	figures = [7]func(*Figures) *uint64{
		func(f *Figures) *uint64 { return &f.Max }, func(f *Figures) *uint64 { return &f.MaxNode }, func(f *Figures) *uint64 { return &f.MaxTask },
		func(f *Figures) *uint64 { return &f.Min }, func(f *Figures) *uint64 { return &f.MinNode }, func(f *Figures) *uint64 { return &f.MinTask },
		func(f *Figures) *uint64 { return &f.Total },
	}
)

// usageTRESMax bounds the resources of a usage that comes from another node.
const usageTRESMax = 4096

// UnpackUsage reads a usage of another node's; nil is one where nothing was measured.
func UnpackUsage(b []byte) (*Usage, error) {
	r := newReader(0, "usage", b)
	if r.u8("measured") == 0 {
		return nil, r.err
	}
	u := new(Usage)
	for _, d := range []*time.Duration{&u.User, &u.System} {
		s, us := r.u64("seconds"), r.u32("microseconds")
		*d = time.Duration(min(s, 1<<32))*time.Second + time.Duration(us)*time.Microsecond
	}
	u.CPUFreq, u.Energy = r.u32("CPU frequency"), r.u64("energy")
	ids := r.u32s("resources")
	if len(ids) > usageTRESMax {
		return nil, fmt.Errorf("%d resources in a usage, and %d is the limit", len(ids), usageTRESMax)
	}
	u.TRES = make([]TRESUsage, len(ids))
	for i, id := range ids {
		u.TRES[i].ID = id
	}
	if n := r.u32("list"); n != NoVal {
		for range r.fits("list", uint64(n), 28) {
			r.u64("list")
			r.u64("list")
			r.u32("list")
			r.str("list")
			r.str("list")
		}
	}
	for _, side := range sides {
		for _, figure := range figures {
			values := r.u64s("figures")
			if r.err == nil && len(values) != len(ids) {
				return nil, fmt.Errorf("%d figures in a usage of %d resources", len(values), len(ids))
			}
			for i, v := range values {
				*figure(side(&u.TRES[i])) = v
			}
		}
	}
	if r.err == nil && len(r.b) > 0 {
		return nil, fmt.Errorf("%d bytes follow a usage", len(r.b))
	}
	return u, r.err
}

// Add adds what other nodes of the step have used. Resources that u does not have are left out:
// all nodes of a step count the same.
func (u *Usage) Add(other *Usage) {
	u.User += other.User
	u.System += other.System
	u.Energy += other.Energy
	u.CPUFreq = max(u.CPUFreq, other.CPUFreq) // as Slurm adds it up, it is the step's fastest
	for i := range u.TRES {
		if t := other.Of(u.TRES[i].ID); t != nil {
			for _, side := range sides {
				side(&u.TRES[i]).add(side(t))
			}
		}
	}
}

// add adds the figures of other tasks.
func (f *Figures) add(other *Figures) {
	if other.Max != Infinite64 && (f.Max == Infinite64 || other.Max > f.Max) {
		f.Max, f.MaxNode, f.MaxTask = other.Max, other.MaxNode, other.MaxTask
	}
	if other.Min != Infinite64 && (f.Min == Infinite64 || other.Min < f.Min) {
		f.Min, f.MinNode, f.MinTask = other.Min, other.MinNode, other.MinTask
	}
	switch {
	case other.Total == Infinite64:
	case f.Total == Infinite64:
		f.Total = other.Total
	default:
		f.Total += other.Total
	}
}
