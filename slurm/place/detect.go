package place

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stepd/internal/linux"
	"stepd/proctrack"
	"stepd/proctrack/detect"
)

// The answer of package detect is kept in the spool until the machine boots: to find it takes
// a third of a millisecond (measured), which each step would pay.

// Dir is the directory of ours in slurmd's spool.
func Dir(spool string) string { return filepath.Join(spool, "stepd") }

const (
	keptName = "cgroup"
	keptMax  = 64 << 10 // bytes
)

// found is what the place of a step needs of detect.Answer.
type found struct {
	kind, parent string
	v1           map[string]string
}

// wish is what cgroup.conf asks for.
func (p *Place) wish() detect.Wish {
	conf := &p.cfg.Site.Cgroup
	w := detect.Wish{Plugin: conf.CgroupPlugin, Mountpoint: conf.CgroupMountpoint}
	if w.Plugin == detect.Disabled { // of slurmd's own trees: ours is apart
		w.Plugin = detect.Autodetect
	}
	return w
}

// key is what an answer depends on, own being this process's cgroups (/proc/self/cgroup).
func key(boot, own string, w detect.Wish) string {
	return fmt.Sprintf("%s %q %q %q", boot, own, w.Plugin, w.Mountpoint)
}

// delegating is the nearest cgroup from dir up to the mount that gives controllers to its
// children: slurmd lives in a leaf, where no step can be limited, and may have a scope above it
// that is made for steps. Where none does it is dir.
func delegating(dir, mount string) string {
	for d := dir; d == mount || strings.HasPrefix(d, mount+"/"); d = filepath.Dir(d) {
		b, err := os.ReadFile(filepath.Join(d, "cgroup.subtree_control"))
		if err == nil && len(bytes.TrimSpace(b)) > 0 {
			return d
		}
	}
	return dir
}

// find decides where the step's cgroups go, and makes their root.
func (p *Place) find() error {
	boot, err := linux.BootID()
	if err != nil {
		return err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return fmt.Errorf("cannot find the own cgroups: %w", err)
	}
	asked := key(boot, string(own), p.wish())
	path := filepath.Join(Dir(p.cfg.Spool), keptName)
	if f, ok := readKept(path, asked); ok && p.use(f) == nil {
		return nil
	}
	// What was kept may be a cgroup that has gone.
	answer, err := detect.Detect(p.wish())
	if err != nil {
		return err
	}
	for _, f := range answer.Fallbacks {
		p.notes = append(p.notes, fmt.Sprintf("no %s: %s", f.What, f.Why))
	}
	f := found{answer.Kind, answer.Parent, answer.V1}
	if f.kind == proctrack.KindCgroupV2 {
		f.parent = delegating(f.parent, answer.Mount)
	}
	if err := p.use(f); err != nil {
		return err
	}
	if answer.Parent == "" {
		return nil // the next step looks again, and says so again
	}
	// Where steps start side by side, one of them has the other's file of the same words.
	if err := keep(path, asked, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.notes = append(p.notes, err.Error())
	}
	return nil
}

// use makes the root at an answer's place.
func (p *Place) use(f found) (err error) {
	if p.kind = f.kind; f.parent == "" {
		if p.cfg.Site.ProctrackType != detect.PGID {
			return nil
		}
		if proctrack.CheckDescent() != nil {
			p.kind = proctrack.KindPGID
			return nil
		}
		p.notes = append(p.notes, fmt.Sprintf("no %s: %s", detect.PGID, detect.InsteadOfPGID))
		return nil
	}
	root, err := proctrack.NewRoot(proctrack.RootConfig{
		Parent: f.parent, Freezer: f.kind == proctrack.KindCgroupV1, V1: f.v1, Spool: p.cfg.Spool,
	})
	if err != nil {
		return err
	}
	missing, err := root.Ensure()
	if err != nil {
		return err
	}
	for _, c := range slices.Sorted(maps.Keys(missing)) {
		p.notes = append(p.notes, fmt.Sprintf("no cgroup controller %s: %s", c, missing[c]))
	}
	p.root = root
	return nil
}

// keep writes an answer to the spool. Its lines are the question, the kind, the parent, and the
// v1 controllers with theirs.
func keep(path, asked string, f found) error {
	lines := []string{asked, f.kind, f.parent}
	for _, c := range slices.Sorted(maps.Keys(f.v1)) {
		lines = append(lines, c+" "+f.v1[c])
	}
	if slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "\n") }) {
		return nil // a mount point may have any name: the next step looks again
	}
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make the step daemons' directory: %w", err)
	}
	return linux.WriteWhole(path, false, func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
		return err
	})
}

// readKept reads an answer to this question. One that cannot be read is none.
func readKept(path, asked string) (f found, ok bool) {
	file, err := os.Open(path)
	if err != nil {
		return f, false
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, keptMax))
	if err != nil {
		return f, false
	}
	return parseKept(b, asked)
}

func parseKept(b []byte, asked string) (f found, ok bool) {
	text, whole := bytes.CutSuffix(b, []byte("\n"))
	lines := strings.Split(string(text), "\n")
	if !whole || len(lines) < 3 || lines[0] != asked || !filepath.IsAbs(lines[2]) {
		return f, false
	}
	f = found{kind: lines[1], parent: lines[2], v1: make(map[string]string)}
	for _, l := range lines[3:] {
		c, dir, ok := strings.Cut(l, " ")
		if !ok || !filepath.IsAbs(dir) {
			return found{}, false
		}
		f.v1[c] = dir
	}
	return f, true
}
