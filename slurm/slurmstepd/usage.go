package slurmstepd

import (
	"time"

	"stepd/slurm/wire"
	"stepd/step"
)

// usage is what a step has used, as Slurm counts it; nil where the site counts nothing. It is
// of this node's tasks.
func usage(rec *step.Record, site []wire.TRES, node uint32) *wire.Usage {
	if rec.Usage == nil || rec.Usage.Gather == "none" {
		return nil
	}
	u := wire.NewUsage(site)
	u.User, u.System = seconds(rec.Usage.UserSeconds), seconds(rec.Usage.SystemSeconds)
	for _, count := range []struct {
		id      uint32
		in, out func(*step.Used) *uint64
	}{
		{wire.TRESCPU, func(t *step.Used) *uint64 { return milliseconds(t.CPUSeconds) }, nil},
		{wire.TRESMemory, func(t *step.Used) *uint64 { return figure(t.MaxRSSBytes) }, nil},
		{wire.TRESVMem, func(t *step.Used) *uint64 { return figure(t.MaxVMSizeBytes) }, nil},
		{wire.TRESPages, func(t *step.Used) *uint64 { return figure(t.MajorFaults) }, nil},
		{wire.TRESDisk, func(t *step.Used) *uint64 { return figure(t.ReadBytes) }, func(t *step.Used) *uint64 { return figure(t.WrittenBytes) }},
	} {
		if t := u.Of(count.id); t != nil {
			sum(&t.In, rec.Tasks, node, count.in)
			sum(&t.Out, rec.Tasks, node, count.out)
		}
	}
	if t := u.Of(wire.TRESEnergy); t != nil { // no sensor is read: Slurm's own counts 0 J then, of no task
		none := wire.Figures{MaxNode: uint64(node), MaxTask: wire.Infinite64, MinNode: uint64(node), MinTask: wire.Infinite64}
		t.In, t.Out = none, none
	}
	return u
}

// sum adds up what each task has used, and leaves the figures alone where no task has
// one.
func sum(f *wire.Figures, tasks []step.Task, node uint32, of func(*step.Used) *uint64) {
	if of == nil {
		return
	}
	first := true
	for i := range tasks {
		t := &tasks[i]
		if t.Usage == nil {
			continue
		}
		v := of(t.Usage)
		if v == nil {
			continue
		}
		rank := uint64(t.Rank)
		if first {
			*f = wire.Figures{Max: *v, MaxNode: uint64(node), MaxTask: rank, Min: *v, MinNode: uint64(node), MinTask: rank}
		}
		first = false
		if *v > f.Max {
			f.Max, f.MaxTask = *v, rank
		}
		if *v < f.Min {
			f.Min, f.MinTask = *v, rank
		}
		f.Total += *v
	}
}

func seconds(s *float64) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}

func milliseconds(s *float64) *uint64 {
	if s == nil {
		return nil
	}
	return new(uint64(*s * 1000))
}

func figure(n *int64) *uint64 {
	if n == nil || *n < 0 {
		return nil
	}
	return new(uint64(*n))
}
