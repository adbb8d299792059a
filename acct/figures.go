package acct

import (
	"stepd/step"
	"stepd/step/launch"
)

// figure numbers what is counted. CPU times are microseconds, sizes bytes.
type figure int

const (
	cpu figure = iota
	user
	system
	minorFaults
	majorFaults
	readChars
	writtenChars
	readDisk
	writtenDisk
	nSums // those above add up, those below do not
)

const (
	maxRSS = nSums + iota
	maxVM
	nFigures
)

// figures are counts, some of which are not known. The zero value knows none.
type figures struct {
	of    [nFigures]int64
	known uint16
}

func (f *figures) knows(n figure) bool { return f.known&(1<<n) != 0 }

func (f *figures) set(n figure, v int64) {
	f.of[n] = v
	f.known |= 1 << n
}

func (f *figures) setKnown(n figure, v *int64) {
	if v != nil {
		f.set(n, *v)
	}
}

// get is nil for what is not known.
func (f *figures) get(n figure) *int64 {
	if !f.knows(n) {
		return nil
	}
	return new(f.of[n])
}

// zero makes f a sum of nothing, for add.
func (f *figures) zero() {
	for n := range nSums {
		f.set(n, 0)
	}
}

// add adds what o has used beside f. A sum of which one part is not known is not
// known; of sizes the larger one counts.
func (f *figures) add(o *figures) {
	for n := range nSums {
		if f.of[n] = plus(f.of[n], o.of[n]); !o.knows(n) {
			f.known &^= 1 << n
		}
	}
	f.raise(o, maxRSS, maxVM)
}

// atLeast takes what o knows better of the same thing. The parts of the CPU time
// come from where the whole does.
func (f *figures) atLeast(o *figures) {
	if o.knows(cpu) && (!f.knows(cpu) || o.of[cpu] > f.of[cpu]) {
		f.known &^= 1<<user | 1<<system
		for _, n := range []figure{cpu, user, system} {
			f.setKnown(n, o.get(n))
		}
	}
	f.raise(o, minorFaults, majorFaults, readChars, writtenChars, readDisk, writtenDisk, maxRSS, maxVM)
}

func (f *figures) raise(o *figures, which ...figure) {
	for _, n := range which {
		if o.knows(n) && (!f.knows(n) || o.of[n] > f.of[n]) {
			f.set(n, o.of[n])
		}
	}
}

// used are the figures in the step's words.
func (f *figures) used() step.Used {
	return step.Used{
		CPUSeconds: seconds(f.get(cpu)), UserSeconds: seconds(f.get(user)), SystemSeconds: seconds(f.get(system)),
		MaxRSSBytes: f.get(maxRSS), MaxVMSizeBytes: f.get(maxVM),
		MinorFaults: f.get(minorFaults), MajorFaults: f.get(majorFaults),
		ReadBytes: f.get(readChars), WrittenBytes: f.get(writtenChars),
		DiskReadBytes: f.get(readDisk), DiskWrittenBytes: f.get(writtenDisk),
	}
}

// ofUsage takes what the kernel reported about a process at its end; nil is nothing.
func ofUsage(u *launch.Usage) (f figures) {
	if u == nil {
		return f
	}
	f.set(cpu, (u.User + u.System).Microseconds())
	f.set(user, u.User.Microseconds())
	f.set(system, u.System.Microseconds())
	f.set(maxRSS, u.MaxRSSBytes)
	f.set(minorFaults, u.MinorFaults)
	f.set(majorFaults, u.MajorFaults)
	const block = 512
	f.set(readDisk, u.BlocksRead*block)
	f.set(writtenDisk, u.BlocksOut*block)
	if u.IO != "" {
		if b, err := parseProcIO([]byte(u.IO)); err == nil {
			f.setIO(b)
		}
	}
	return f
}

func (f *figures) setIO(b ioBytes) {
	f.setKnown(readChars, b.readChars)
	f.setKnown(writtenChars, b.writtenChars)
	f.setKnown(readDisk, b.readDisk)
	f.setKnown(writtenDisk, b.writtenDisk)
}

// ofCgroup is what of a cgroup's files is counted in the same way.
func ofCgroup(c *cgroupFigures) (f figures) {
	f.setKnown(cpu, c.cpu.total)
	f.setKnown(user, c.cpu.user)
	f.setKnown(system, c.cpu.system)
	f.setKnown(readDisk, c.diskRead)
	f.setKnown(writtenDisk, c.diskWritten)
	return f
}
