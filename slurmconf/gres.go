package slurmconf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

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
	// Cores are the cores near it, numbered through the node's sockets; nil is none in particular.
	Cores []int
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
		"cores":         parsed(&g.gres.Cores, numberList),
		"cpus":          parsed(&g.gres.Cores, numberList), // the key's name before 15.08
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

// gresFile reads gres.conf, and brings it together with what the NodeName line
// says. The lines of other nodes are checked all the same.
func (l *loader) gresFile(_ string, stmts []statement) {
	var own []gresLine
	var auto, global *gresLine // with the AutoDetect of this node, and of all
	for _, s := range stmts {
		g, ok := l.gresLine(s)
		here, everywhere := l.isFor(s)
		if !ok || !here && !everywhere {
			continue
		}
		switch {
		case g.auto == "":
		case everywhere:
			global = g
		case auto != nil && auto.auto != g.auto:
			l.probs.valueOf(s, "AutoDetect", wrong("write the same", "%s:%d says %q for this node", auto.from.file, auto.from.line, auto.auto))
		default:
			auto = g
		}
		if g.gres.Name == "" {
			continue
		}
		if len(own) == gresFilesMax {
			l.probs.at(s, SeverityError, "", "cannot take more than %d lines for one node", gresFilesMax)
			break
		}
		own = append(own, *g)
	}
	if auto == nil {
		auto = global
	}
	wanted, lines := l.wantedGres(), l.ownGres(own)
	if auto != nil && auto.auto != "off" {
		auto.undetected(&l.probs, wanted, lines)
	}
	l.joinGres(wanted, lines)
}

// undetected reports an AutoDetect of this node: a mistake where the node has GPUs in slurm.conf that
// no line names, since nothing finds their devices. A file that all nodes share has it for others.
func (g *gresLine) undetected(probs *problems, wanted []NodeGres, lines []Gres) {
	for _, want := range wanted {
		named := slices.ContainsFunc(lines, func(have Gres) bool { return have.Name == want.Name })
		if want.Name == "gpu" && want.Count > 0 && !named {
			probs.valueOf(g.from, "AutoDetect", wrong("write the node's devices by File=, and AutoDetect=off for this node",
				"finding devices by itself is not supported, and no line names the devices of %s", kindOf(want.Name, want.Type)))
			return
		}
	}
	probs.ignored(g.from, "AutoDetect="+g.auto, ClassUnsupported)
}

// gresLine reads one line and checks it by itself.
func (l *loader) gresLine(s statement) (*gresLine, bool) {
	g := &gresLine{from: s}
	if !l.set(s, s.pairs, g.keys(), SeverityError) {
		return g, false
	}
	if g.gres.Name == "" {
		if g.auto == "" {
			l.probs.at(s, SeverityError, "write Name= into it", "cannot use a line that names no resource")
		}
		return g, g.auto != ""
	}
	if key, f := g.complete(); f != nil {
		l.probs.valueOf(s, key, f)
		return g, false
	}
	return g, true
}

// isFor reports whether a line names this node, or none and is for all.
func (l *loader) isFor(s statement) (here, everywhere bool) {
	i := slices.IndexFunc(s.pairs, func(p pair) bool { return p.is("NodeName") })
	if i < 0 {
		return false, true
	}
	names, ok := l.hosts(s, s.pairs[i])
	return ok && slices.Contains(names, l.cfg.Node.Name), false
}

// ownGres checks this node's lines against the site and against each other, and
// returns what can be used.
func (l *loader) ownGres(lines []gresLine) []Gres {
	var out []Gres
	var above *gresLine
	for i := range lines {
		g := &lines[i]
		g.gres.File, g.gres.Line = g.from.file, g.from.line
		g.environment(above)
		above = g
		switch name := g.gres.Name; {
		case !l.isGresType(name):
			all := strings.Join(append(slices.Clone(l.cfg.GresTypes), name), ",")
			l.probs.valueOf(g.from, "Name", &flaw{SeverityWarning, "it is left out, since GresTypes has it not", "write GresTypes=" + all + " into slurm.conf"})
		case isShared(name):
			l.probs.valueOf(g.from, "Name", &flaw{SeverityWarning, "it is left out: sharing a GPU among steps is not supported", ""})
		default:
			if key, f := g.against(out); f != nil {
				l.probs.valueOf(g.from, key, f)
			} else if g.gres.Count > 0 {
				out = append(out, g.gres)
			}
		}
	}
	return out
}

// isGresType reports whether the site has the name. A site whose slurm.conf
// names no nodes and no GresTypes has what gres.conf says.
func (l *loader) isGresType(name string) bool {
	return slices.Contains(l.cfg.GresTypes, name) || l.cfg.GresTypes == nil && len(l.nodes) == 0
}

// environment settles which variables name a task's GPUs: the line's
// own, else the line's above where it has the same name and type, else all.
func (g *gresLine) environment(above *gresLine) {
	if g.gres.Name != "gpu" {
		return
	}
	switch {
	case g.env != nil:
	case above != nil && above.gres.Name == "gpu" && above.gres.Type == g.gres.Type:
		g.env = above.env
	default:
		g.env = gpuEnv()
	}
	for _, e := range gpuEnv() { // in this order, each once
		if slices.Contains(g.env, e) {
			g.gres.Flags = append(g.gres.Flags, e)
		}
	}
}

// against checks a line against the lines that hold already. It names the key that
// is wrong.
func (g *gresLine) against(others []Gres) (key string, f *flaw) {
	if g.gres.Name == "gpu" && g.gres.Files == nil && !slices.Contains(g.gres.Flags, GresCountOnly) {
		return "Name", wrong("name its devices by File=, or write Flags=CountOnly", "a gpu needs its device files")
	}
	total := len(g.gres.Files)
	for _, o := range others {
		for _, file := range g.gres.Files {
			if slices.Contains(o.Files, file) {
				return g.fileKey(), wrong("remove it from one of them", "%q is a device of %s:%d already", file, o.File, o.Line)
			}
		}
		if o.Name != g.gres.Name {
			continue
		}
		total += len(o.Files)
		switch {
		case (o.Files == nil) != (g.gres.Files == nil):
			return "Name", wrong("name files in all lines of one name, or in none", "%s:%d is of this name and differs in having files", o.File, o.Line)
		case o.Type != g.gres.Type:
		case o.Files == nil:
			return "Name", wrong("remove one of them", "%s:%d counts the same already", o.File, o.Line)
		case !slices.Equal(envOf(o.Flags), envOf(g.gres.Flags)):
			return "Name", wrong("write the same Flags", "%s:%d is of this name and type and differs in the flags of its environment", o.File, o.Line)
		}
	}
	if total > gresFilesMax {
		return g.fileKey(), wrong("", "the node has more than %d of them", gresFilesMax)
	}
	return "", nil
}

func (g *gresLine) fileKey() string {
	if g.gres.MultipleFiles {
		return "MultipleFiles"
	}
	return "File"
}

// envOf are the flags of a GPU's environment.
func envOf(flags []string) []string {
	return slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return !slices.Contains(gpuEnv(), f) })
}

// gresPart is what one entry of Gres= takes of one line of gres.conf.
type gresPart struct {
	gres Gres
	// Where its devices stand, to number them as gres.conf does.
	name, line int
	offset     uint64
}

// joinGres makes Config.Gres of what its Gres= wants and this node's lines of
// gres.conf, as the comment of Config.Gres says. A slurm.conf without any node leaves all
// to gres.conf.
func (l *loader) joinGres(wanted []NodeGres, lines []Gres) {
	if len(l.nodes) == 0 {
		l.cfg.Gres = lines
		return
	}
	used := make([]uint64, len(lines)) // of each line's count
	var parts []gresPart
	for _, want := range wanted {
		name := slices.IndexFunc(l.cfg.Node.Gres, func(g NodeGres) bool { return g.Name == want.Name })
		parts = append(parts, l.takeGres(want, name, lines, used)...)
	}
	slices.SortStableFunc(parts, func(a, b gresPart) int {
		return cmp.Or(a.name-b.name, a.line-b.line, cmp.Compare(a.offset, b.offset))
	})
	for _, p := range parts {
		l.cfg.Gres = append(l.cfg.Gres, p.gres)
	}
	for i, g := range lines {
		if used[i] < g.Count {
			kind := kindOf(g.Name, g.Type)
			l.probs.at(statement{file: g.File, line: g.Line}, SeverityWarning, fmt.Sprintf("write Gres=%s:%d for this node into slurm.conf", kind, g.Count),
				"%d of %d %s are left out: NodeName's Gres= has no more", g.Count-used[i], g.Count, kind)
		}
	}
}

// wantedGres are the entries of Gres= that can be: of names that the site has
// and that are not shared.
func (l *loader) wantedGres() []NodeGres {
	var out []NodeGres
	for _, g := range l.cfg.Node.Gres {
		switch {
		case !slices.Contains(l.cfg.GresTypes, g.Name):
			l.probs.valueOf(l.nodeFrom, "Gres", wrong("add it there", "GresTypes has not %q", g.Name))
		case isShared(g.Name):
			l.probs.valueOf(l.nodeFrom, "Gres", &flaw{SeverityWarning, fmt.Sprintf("%s is left out: sharing a GPU among steps is not supported", g.Name), ""})
		default:
			out = append(out, g)
		}
	}
	return out
}

// takeGres takes what one entry of Gres= wants: from the lines of its type
// first, then from the lines without a type. An entry without a type takes any,
// and they keep their types. What gres.conf does not speak of is counted only,
// but a gpu, whose devices must be known.
func (l *loader) takeGres(want NodeGres, name int, lines []Gres, used []uint64) []gresPart {
	if want.Name != "gpu" && !slices.ContainsFunc(lines, func(g Gres) bool { return g.Name == want.Name }) {
		if want.Count == 0 {
			return nil
		}
		return []gresPart{{name: name, gres: Gres{
			Name: want.Name, Type: want.Type, Count: want.Count, NoConsume: want.NoConsume, File: l.nodeFrom.file, Line: l.nodeFrom.line,
		}}}
	}
	var parts []gresPart
	rest := want.Count
	for _, exact := range []bool{true, false} {
		for i, g := range lines {
			fits := g.Type == want.Type || want.Type == ""
			if !exact {
				fits = g.Type == ""
			}
			n := min(rest, g.Count-used[i])
			if g.Name != want.Name || !fits || n == 0 {
				continue
			}
			part := cutGres(g, used[i], n)
			part.Type = cmp.Or(g.Type, want.Type)
			part.NoConsume = want.NoConsume
			parts = append(parts, gresPart{gres: part, name: name, line: i, offset: used[i]})
			used[i] += n
			rest -= n
		}
	}
	if rest > 0 {
		kind := kindOf(want.Name, want.Type)
		l.probs.valueOf(l.nodeFrom, "Gres", &flaw{SeverityWarning, fmt.Sprintf("%s:%d, but gres.conf has %d", kind, want.Count, want.Count-rest), "the node is drained: mend one of them"})
		l.cfg.DrainReasons = append(l.cfg.DrainReasons, fmt.Sprintf("gres/%s: slurm.conf has %d, gres.conf %d", kind, want.Count, want.Count-rest))
	}
	return parts
}

// cutGres is n of g's resources from number first on.
func cutGres(g Gres, first, n uint64) Gres {
	g.Count = n
	if g.Files != nil && !g.MultipleFiles {
		g.Files = g.Files[first : first+n]
	}
	return g
}

func kindOf(name, kind string) string {
	if kind == "" {
		return name
	}
	return name + ":" + kind
}

// CheckDevices looks at the device files of Gres on this machine. Those that
// cannot be found are warnings, and reasons to drain the node; a file that is
// no device is a warning, since no step can be kept from it.
func (c *Config) CheckDevices() (problems []Problem, drain []string) {
	for _, g := range c.Gres {
		var missing []string
		var why error
		for _, file := range g.Files {
			info, err := os.Stat(file)
			p := Problem{Severity: SeverityWarning, File: g.File, Line: g.Line}
			switch {
			case err != nil:
				missing, why = append(missing, file), cause(err)
				p.Text = fmt.Sprintf("cannot find device %q of %s: %v", file, kindOf(g.Name, g.Type), why)
				p.Remedy = "the node is drained: load the driver, or take the device out of gres.conf and Gres="
			case info.Mode()&os.ModeDevice == 0:
				p.Text = fmt.Sprintf("%q of %s is no device: no step can be kept from it", file, kindOf(g.Name, g.Type))
			default:
				continue
			}
			problems = append(problems, p)
		}
		if missing != nil {
			drain = append(drain, fmt.Sprintf("gres/%s: %s: %v", kindOf(g.Name, g.Type), CompressHosts(missing), why))
		}
	}
	return problems, drain
}

// cause is the error number alone: the path is printed beside it.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
