package step

import "time"

// Used is what a task, or a whole step, has used: so far, or in all when it has ended. A
// figure that is not known is nil, never 0. docs/accounting.md names the source of each figure
// on each layout of cgroups. Of two sources, each of which can only miss something, the larger
// figure counts.
type Used struct {
	// CPUSeconds is user and system time: wait4's, or cpu.stat's (v1
	// cpuacct.usage) where accounting is by cgroup. UserSeconds and SystemSeconds
	// are its parts, by the same source.
	CPUSeconds    *float64 `json:"cpu_seconds,omitempty"`
	UserSeconds   *float64 `json:"user_seconds,omitempty"`
	SystemSeconds *float64 `json:"system_seconds,omitempty"`
	// MaxRSSBytes is the resident memory: of a task the larger of wait4's
	// ru_maxrss, which covers its largest process alone, and the highest sum over
	// its processes in one sample. A step has its largest task's.
	MaxRSSBytes *int64 `json:"max_rss_bytes,omitempty"`
	// RSSBytes is the sum over its processes in the last sample, Processes their number. Both
	// are known only while it runs.
	RSSBytes  *int64 `json:"rss_bytes,omitempty"`
	Processes *int   `json:"processes,omitempty"`
	// PeakMemoryBytes is the kernel's own peak of the cgroup, with page cache and kernel
	// memory: memory.peak (v1 memory.max_usage_in_bytes).
	PeakMemoryBytes *int64 `json:"peak_memory_bytes,omitempty"`
	// MaxVMSizeBytes is the highest sum of virtual sizes in one sample.
	MaxVMSizeBytes *int64 `json:"max_vm_size_bytes,omitempty"`
	MinorFaults    *int64 `json:"minor_faults,omitempty"`
	MajorFaults    *int64 `json:"major_faults,omitempty"`
	// ReadBytes and WrittenBytes passed through read(2), write(2) and their kin:
	// files, pipes and sockets (rchar and wchar of /proc/PID/io; Slurm's
	// AveDiskRead and AveDiskWrite).
	ReadBytes    *int64 `json:"read_bytes,omitempty"`
	WrittenBytes *int64 `json:"written_bytes,omitempty"`
	// DiskReadBytes and DiskWrittenBytes came from and went to storage:
	// read_bytes and write_bytes of /proc/PID/io, and io.stat (v1
	// blkio.throttle.io_service_bytes_recursive).
	DiskReadBytes    *int64 `json:"disk_read_bytes,omitempty"`
	DiskWrittenBytes *int64 `json:"disk_written_bytes,omitempty"`
	// CPUStallUS, MemoryStallUS and IOStallUS are the microseconds in which some thread waited
	// for the resource: "some" of cpu.pressure, memory.pressure and io.pressure of the cgroup
	// (psi(8)).
	CPUStallUS    *int64 `json:"cpu_stall_us,omitempty"`
	MemoryStallUS *int64 `json:"memory_stall_us,omitempty"`
	IOStallUS     *int64 `json:"io_stall_us,omitempty"`
}

// StepUsage is the accounting of a step.
type StepUsage struct {
	Used
	// Gather is JobAcctGatherType: "none", "linux" or "cgroup".
	Gather string `json:"gather"`
	// Time is when it was read. Final says that no process was left then.
	Time  time.Time `json:"time"`
	Final bool      `json:"final"`
	// FrequencyS is the time between samples, 0 for none; Samples were taken, and
	// took stepd SamplingUS microseconds in all.
	FrequencyS int   `json:"frequency_s"`
	Samples    int   `json:"samples"`
	SamplingUS int64 `json:"sampling_us"`
	// Pressure are the pressure files whole; nil where there are none.
	Pressure *Pressure `json:"pressure,omitempty"`
	// Sources names the source of each figure of the step that has several
	// sources, by their JSON names.
	Sources map[string]string `json:"sources,omitempty"`
}

// Sampled reports whether the figures of running tasks were read from time to time.
func (u *StepUsage) Sampled() bool { return u.FrequencyS > 0 && u.Gather != "none" }

// Pressure is how long the tasks of a step have waited for a resource: cpu.pressure,
// memory.pressure and io.pressure of its cgroup (psi(8)).
type Pressure struct {
	CPU    *Stalls `json:"cpu,omitempty"`
	Memory *Stalls `json:"memory,omitempty"`
	IO     *Stalls `json:"io,omitempty"`
}

// Stalls are the two lines of a pressure file: some task waited, or all did.
type Stalls struct {
	Some Stall  `json:"some"`
	Full *Stall `json:"full,omitempty"` // not of CPU before Linux 5.13
}

// Stall is a total of microseconds, and percentages of the last 10, 60 and 300 s.
type Stall struct {
	TotalUS int64   `json:"total_us"`
	Avg10   float64 `json:"avg10"`
	Avg60   float64 `json:"avg60"`
	Avg300  float64 `json:"avg300"`
}
