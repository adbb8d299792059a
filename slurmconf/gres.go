package slurmconf

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"stepd/srunopt"
)

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

// noConsume is the word in Gres= that makes an entry one that is not used up.
const noConsume = "no_consume"

// nodeGres reads Gres= of a NodeName line: NAME[:TYPE][:no_consume]:COUNT,
// parted by commas. Without a count it is 1.
func nodeGres(v string) (all []NodeGres, _ *flaw) {
	if strings.EqualFold(v, "none") {
		return nil, nil
	}
	var plain []string
	var free []bool
	for item := range strings.SplitSeq(v, ",") {
		fields := strings.Split(item, ":")
		kept := slices.DeleteFunc(fields, func(f string) bool { return strings.EqualFold(f, noConsume) })
		plain = append(plain, strings.Join(kept, ":"))
		free = append(free, len(kept) < len(fields))
	}
	list, err := srunopt.ParseGres(strings.Join(plain, ","))
	if err != nil {
		return nil, wrong("write NAME[:TYPE][:no_consume]:COUNT, such as gpu:a100:2,scratch:100G", "%v", err)
	}
	for i, g := range list {
		all = append(all, NodeGres{Name: g.Name, Type: g.Type, NoConsume: free[i], Count: g.Count})
	}
	return all, nil
}

// gresTypes reads GresTypes: names, parted by commas.
func gresTypes(v string) ([]string, *flaw) {
	out := words(v)
	for _, w := range out {
		if err := srunopt.CheckGresName(w); err != nil {
			return nil, wrong("write names such as gpu,scratch", "%v", err)
		}
	}
	return out, nil
}

// gresFilesMax bounds the devices of one line, and of one name on the node:
// Slurm's own limit.
const gresFilesMax = 1024

// gresLine is one line of gres.conf while it is read.
type gresLine struct {
	from statement
	gres Gres
	// auto is AutoDetect in lower case, "" where it is not set.
	auto string
	// counted: Count was set. env are the flags of a GPU's
	// environment, nil where there is none.
	counted bool
	env     []string
}

func (g *gresLine) keys() keySet {
	return keySet{
		"nodename":      nothing,
		"autodetect":    parsed(&g.auto, autoDetect),
		"name":          parsed(&g.gres.Name, gresName),
		"type":          parsed(&g.gres.Type, gresName),
		"count":         g.count,
		"cores":         unused,
		"cpus":          unused, // the key's name before 15.08
		"file":          g.files(false),
		"files":         g.files(false),
		"multiplefiles": g.files(true),
		"flags":         g.flags,
		"links":         unused,
		"link":          unused,
	}
}

func gresName(v string) (string, *flaw) {
	if err := srunopt.CheckGresName(v); err != nil {
		return "", wrong("write a word such as gpu or a100", "%v", err)
	}
	return v, nil
}

func autoDetect(v string) (string, *flaw) {
	word, f := oneOf(nil, "off", "nvml", "nvidia", "rsmi", "oneapi", "nrt")(v)
	if f != nil {
		f = wrong("write AutoDetect=off, and the devices by File=", "there is no such detection")
	}
	return word, f
}

func (g *gresLine) count(v string) *flaw {
	n, err := srunopt.ParseGresCount(v)
	if err != nil {
		return wrong("write a number such as 4 or 10G", "%v", err)
	}
	g.gres.Count, g.counted = n, true
	return nil
}

// files reads File or MultipleFiles: paths with ranges in brackets.
func (g *gresLine) files(multiple bool) setter {
	return func(v string) *flaw {
		const remedy = "write device files such as /dev/nvidia[0-3]"
		if g.gres.Files != nil {
			return wrong("remove one of them", "the line names its files already: File excludes MultipleFiles")
		}
		files, err := ExpandHosts(v) // a list of files is written as one of hosts is
		switch {
		case err != nil:
			return wrong(remedy, "%v", err)
		case len(files) == 0:
			return wrong(remedy, "no file is named")
		case len(files) > gresFilesMax:
			return wrong(remedy, "more than %d files", gresFilesMax)
		}
		for i, f := range files {
			if !filepath.IsAbs(f) {
				return wrong(remedy, "%q is not an absolute path", f)
			}
			files[i] = filepath.Clean(f)
		}
		if sorted := slices.Sorted(slices.Values(files)); len(slices.Compact(sorted)) < len(files) {
			return wrong(remedy, "a file is given twice")
		}
		g.gres.Files, g.gres.MultipleFiles = files, multiple
		return nil
	}
}

// noGPUEnv is the flag that a GPU sets no variables.
const noGPUEnv = "no_gpu_env"

// gpuEnv are the flags of a GPU's environment; a GPU has all of them
// where its line has none.
func gpuEnv() []string { return []string{GresNvidiaEnv, GresAMDEnv, GresIntelEnv, GresOpenCLEnv} }

// flags passes over flags that are not known, with a warning: a newer release
// may have them.
func (g *gresLine) flags(v string) *flaw {
	plain := []string{GresCountOnly}
	unused := []string{"explicit", "one_sharing", "all_sharing"} // the latter of names that are left out
	var warning *flaw
	for _, w := range words(v) {
		same := func(s string) bool { return strings.EqualFold(s, w) }
		switch i, j := slices.IndexFunc(plain, same), slices.IndexFunc(append(gpuEnv(), noGPUEnv), same); {
		case i >= 0:
			g.gres.Flags = append(g.gres.Flags, plain[i])
		case j >= 0:
			g.env = append(g.env, append(gpuEnv(), noGPUEnv)[j])
		case !slices.ContainsFunc(unused, same):
			known := slices.Concat(plain, gpuEnv(), []string{noGPUEnv}, unused)
			warning = &flaw{SeverityWarning, fmt.Sprintf("flag %q is not known and has no effect", w), "write some of " + strings.Join(known, ",")}
		}
	}
	if slices.Contains(g.env, noGPUEnv) && len(slices.Compact(slices.Sorted(slices.Values(g.env)))) > 1 {
		return wrong("write it alone", "%s excludes the other flags of the environment", noGPUEnv)
	}
	return warning
}

// complete checks what the keys of one line mean together, and fills in the
// count. It names the key that is wrong.
func (g *gresLine) complete() (key string, f *flaw) {
	files := uint64(len(g.gres.Files))
	if g.gres.MultipleFiles {
		files = 1
	}
	switch {
	case isShared(g.gres.Name): // its Count is not the number of its files
		return "", nil
	case g.gres.MultipleFiles && g.counted && g.gres.Count != 1:
		return "Count", wrong("write Count=1, or File= for several devices", "all of MultipleFiles are one device")
	case files > 0 && g.counted && g.gres.Count != files:
		return "Count", wrong("remove Count, or name as many files", "File names %d", files)
	}
	if !g.counted {
		g.gres.Count = max(files, 1)
	}
	return "", nil
}

// isShared names what several steps share of one GPU, which is not built.
func isShared(name string) bool { return name == "mps" || name == "shard" }
