package acct

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

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

// Names of the controllers whose v1 directories are used.
const (
	v1CPU    = "cpuacct"
	v1Memory = "memory"
	v1IO     = "blkio"
)

// place is a cgroup, as seen in each hierarchy.
type place struct {
	v2 string            // "" where there is none
	v1 map[string]string // by controller
}

// below is the place of a task below its step's place.
func (p place) below(name string) place {
	out := place{v1: make(map[string]string, len(p.v1))}
	if p.v2 != "" {
		out.v2 = filepath.Join(p.v2, name)
	}
	for controller, dir := range p.v1 {
		out.v1[controller] = filepath.Join(dir, name)
	}
	return out
}

// perTask reports whether tasks have cgroups of their own in there.
func (p place) perTask() bool {
	dirs := slices.Collect(maps.Values(p.v1))
	if p.v2 != "" {
		dirs = append(dirs, p.v2)
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		entries, _ := os.ReadDir(dir) // one that is gone has none
		return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
			_, ok := launch.TaskRank(e.Name())
			return ok && e.IsDir()
		})
	})
}

func (p place) empty() bool { return p.v2 == "" && len(p.v1) == 0 }

// cgroupFigures are the figures in the files of one place, and their names.
type cgroupFigures struct {
	cpu                         cpuTimes
	peak                        *int64
	diskRead, diskWritten       *int64
	pressure                    *step.Pressure
	cpuFrom, peakFrom, diskFrom string
}

// readPlace reads the files of a place. What is missing there is nil; the error
// names the files that exist and cannot be read.
func (r *reader) readPlace(p place) (f cgroupFigures, err error) {
	err = errors.Join(r.readCPU(p, &f), r.readPeak(p, &f), r.readDisk(p, &f), r.readPressure(p, &f))
	return f, err
}

// get reads a file and hands it to parse, unless there is none.
func (r *reader) get(dir, name string, parse func([]byte) error) (found bool, err error) {
	if dir == "" {
		return false, nil
	}
	path := filepath.Join(dir, name)
	data, err := r.file(path)
	if absent(err) {
		return false, nil
	}
	if err == nil {
		err = parse(data)
	}
	if err != nil {
		return false, fmt.Errorf("cannot read %q: %w", path, err)
	}
	return true, nil
}

// readCPU prefers v2's: it exists on a hybrid host, too, since no controller is
// needed for it.
func (r *reader) readCPU(p place, f *cgroupFigures) error {
	found, err := r.get(p.v2, "cpu.stat", func(data []byte) (err error) {
		f.cpu, err = parseCPUStat(data)
		return err
	})
	if found || err != nil {
		f.cpuFrom = "cpu.stat"
		return err
	}
	for _, part := range []struct {
		file string
		to   **int64
	}{{"cpuacct.usage", &f.cpu.total}, {"cpuacct.usage_user", &f.cpu.user}, {"cpuacct.usage_sys", &f.cpu.system}} {
		_, err := r.get(p.v1[v1CPU], part.file, func(data []byte) error {
			ns, err := one(data)
			*part.to = new(ns / 1000)
			return err
		})
		if err != nil {
			return err
		}
	}
	f.cpuFrom = "cpuacct.usage"
	return nil
}

func (r *reader) readPeak(p place, f *cgroupFigures) error {
	for _, from := range []struct{ dir, file string }{{p.v2, "memory.peak"}, {p.v1[v1Memory], "memory.max_usage_in_bytes"}} {
		found, err := r.get(from.dir, from.file, func(data []byte) error {
			n, err := one(data)
			f.peak = &n
			return err
		})
		if found || err != nil {
			f.peakFrom = from.file
			return err
		}
	}
	return nil
}

func (r *reader) readDisk(p place, f *cgroupFigures) error {
	for _, from := range []struct {
		dir, file string
		parse     func([]byte) (int64, int64, error)
	}{{p.v2, "io.stat", parseIOStat}, {p.v1[v1IO], "blkio.throttle.io_service_bytes_recursive", parseBlkio}} {
		found, err := r.get(from.dir, from.file, func(data []byte) error {
			read, written, err := from.parse(data)
			f.diskRead, f.diskWritten = &read, &written
			return err
		})
		if found || err != nil {
			f.diskFrom = from.file
			return err
		}
	}
	return nil
}

// readPressure reads the three pressure files, which only v2 has.
func (r *reader) readPressure(p place, f *cgroupFigures) error {
	out := new(step.Pressure)
	var errs []error
	for _, from := range []struct {
		file string
		to   **step.Stalls
	}{{"cpu.pressure", &out.CPU}, {"memory.pressure", &out.Memory}, {"io.pressure", &out.IO}} {
		_, err := r.get(p.v2, from.file, func(data []byte) (err error) {
			*from.to, err = parsePressure(data)
			return err
		})
		errs = append(errs, err)
	}
	if *out != (step.Pressure{}) {
		f.pressure = out
	}
	return errors.Join(errs...)
}

// used are the figures in the step's words.
func (f *cgroupFigures) used() step.Used {
	u := step.Used{
		CPUSeconds: seconds(f.cpu.total), UserSeconds: seconds(f.cpu.user), SystemSeconds: seconds(f.cpu.system),
		PeakMemoryBytes: f.peak, DiskReadBytes: f.diskRead, DiskWrittenBytes: f.diskWritten,
	}
	if p := f.pressure; p != nil {
		u.CPUStallUS, u.MemoryStallUS, u.IOStallUS = stalled(p.CPU), stalled(p.Memory), stalled(p.IO)
	}
	return u
}

func stalled(s *step.Stalls) *int64 {
	if s == nil {
		return nil
	}
	return &s.Some.TotalUS
}

// placeOf is where the tasks of a step are accounted for.
func placeOf(pt step.Proctrack, c step.Confinement) place {
	p := place{v2: pt.Tasks, v1: c.V1}
	if pt.Kind == "cgroup/v1" {
		p.v2 = "" // it is v1's freezer, which has no figures
	}
	return p
}

// ReadCgroups returns the figures in the cgroups of a step whose stepd is dead:
// before they are removed. v1 is step.Confinement.V1. It is nil where the tasks
// have no cgroups of their own: then the SPANK host may have lived in the step's,
// whose figures then include the host's. The error is for the log.
func ReadCgroups(pt step.Proctrack, v1 map[string]string, gather string, now time.Time) (*step.StepUsage, error) {
	p := placeOf(pt, step.Confinement{V1: v1})
	if !p.perTask() {
		return nil, nil
	}
	r, err := openReader()
	if err != nil {
		return nil, err
	}
	defer r.close()
	f, err := r.readPlace(p)
	u := &step.StepUsage{Used: f.used(), Gather: gather, Time: now, Pressure: f.pressure}
	u.Sources = make(map[string]string)
	f.sources(u)
	return u, err
}

// sources names the files that the figures of u are taken from.
func (f *cgroupFigures) sources(u *step.StepUsage) {
	for _, s := range []struct {
		field, file string
		is          bool
	}{
		{"cpu_seconds", f.cpuFrom, u.CPUSeconds != nil},
		{"peak_memory_bytes", f.peakFrom, u.PeakMemoryBytes != nil},
		{"disk_read_bytes", f.diskFrom, u.DiskReadBytes != nil},
		{"disk_written_bytes", f.diskFrom, u.DiskWrittenBytes != nil},
	} {
		if s.is {
			u.Sources[s.field] = s.file
		}
	}
}

// LastLook reads /proc/PID/io of a process that has ended, before it is reaped: for
// launch.Usage. It is "" where that cannot be read.
func LastLook(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return ""
	}
	return string(data)
}

// one reads a file that holds one count.
func one(data []byte) (int64, error) { return number(bytes.TrimSpace(data)) }

// seconds is nil for nil.
func seconds(us *int64) *float64 {
	if us == nil {
		return nil
	}
	return new(float64(*us) / 1e6)
}
