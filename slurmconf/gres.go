package slurmconf

// Gres is one kind of generic resource of this node, or a part of one: what a
// line of gres.conf gives, cut down to what Gres= of the NodeName line admits.
// Several may have one Name and Type: devices are numbered through them in
// their order. Config.Gres says how both files are brought together.
type Gres struct {
	// Name is one of GresTypes: "gpu".
	Name string
	// Type is the model, "" where none is set: "a100".
	Type string
	// Count is how many of it there are: of devices where Files is set, of
	// whatever the site counts (bytes, licences) where not.
	Count uint64
	// Files are its device files, absolute: Files[i] is the device of number i,
	// or all of them belong to the only one where MultipleFiles. nil is a
	// resource that is counted only.
	Files         []string
	MultipleFiles bool
	// Flags are in the spelling of the constants below. A gpu always has the
	// flags of its environment: all four where the file names none.
	Flags []string
	// NoConsume: a request does not use it up.
	NoConsume bool
	// File and Line are where the line stands, for messages.
	File string
	Line int
}

// The flags of a Gres (gres.conf(5)).
const (
	GresCountOnly = "CountOnly"
	// Which variables name a task's GPUs: CUDA_VISIBLE_DEVICES,
	// ROCR_VISIBLE_DEVICES, ZE_AFFINITY_MASK, GPU_DEVICE_ORDINAL.
	GresNvidiaEnv = "nvidia_gpu_env"
	GresAMDEnv    = "amd_gpu_env"
	GresIntelEnv  = "intel_gpu_env"
	GresOpenCLEnv = "opencl_env"
)

// Devices are the device files of each of the Count resources; nil for one
// that is counted only.
func (g *Gres) Devices() [][]string {
	if g.MultipleFiles {
		return [][]string{g.Files}
	}
	var out [][]string
	for _, f := range g.Files {
		out = append(out, []string{f})
	}
	return out
}
