package spank

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// find looks a relative name up in the plugin directories.
func (r *stackReader) find(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	path, known := r.found[name]
	if known {
		return path
	}
	path = name
	if strings.Contains(name, "/") {
		path = "/" + name // as for stepd; never beneath a client's own directory
	}
	for _, dir := range r.dirs {
		candidate := filepath.Join(dir, name)
		r.source(candidate)
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() {
			path = candidate
			break
		}
	}
	r.found[name] = path
	return path
}

// globbed is what a pattern has matched.
type globbed struct {
	files     []string // to be read, sorted by their bytes
	leftovers []string // matched, and passed over
	dirs      []string // read to find out
}

// globFiles is glob(3) without the directories: unlike in Go's, "[!a]" negates,
// and a wildcard does not match a leading dot. A path without wildcards is
// given back whether it exists or not. The pattern is absolute and clean.
func globFiles(pattern string) (globbed, error) {
	pattern = strings.ReplaceAll(pattern, "[!", "[^")
	if _, err := filepath.Match(pattern, ""); err != nil {
		return globbed{}, err
	}
	if !isPattern(pattern) {
		return globbed{files: withoutDirs([]string{pattern})}, nil
	}
	var g globbed
	paths := []string{"/"}
	for part := range strings.SplitSeq(strings.TrimPrefix(pattern, "/"), "/") {
		var next []string
		for _, dir := range paths {
			if !isPattern(part) {
				if path := filepath.Join(dir, part); exists(path) {
					next = append(next, path)
				}
				continue
			}
			g.dirs = append(g.dirs, dir)
			for _, name := range matching(dir, part) {
				path := filepath.Join(dir, name)
				if isLeftover(name) {
					g.leftovers = append(g.leftovers, path)
				} else {
					next = append(next, path)
				}
			}
		}
		paths = next
	}
	g.files, g.leftovers = withoutDirs(paths), withoutDirs(g.leftovers)
	slices.Sort(g.files)
	slices.Sort(g.leftovers)
	return g, nil
}

func isPattern(s string) bool { return strings.ContainsAny(s, `*?[\`) }

// matching lists the names in dir that part matches. What cannot be read has
// none, as with glob(3).
func matching(dir, part string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(name string) bool {
		ok, err := filepath.Match(part, name)
		return err != nil || !ok || strings.HasPrefix(name, ".") && !strings.HasPrefix(part, ".")
	})
}

// exists reports whether a pattern has composed a path that exists.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func withoutDirs(paths []string) []string {
	return slices.DeleteFunc(paths, func(p string) bool {
		info, err := os.Stat(p)
		return err == nil && info.IsDir()
	})
}

// isLeftover reports whether the name is one that an editor, sed or a
// package manager leaves beside the file that it worked on. Slurm reads it, and the old
// half of the site's plugins with it.
func isLeftover(name string) bool {
	for _, suffix := range []string{
		"~", ".swp", ".swo", ".swx", ".bak", ".orig", ".rej", ".tmp",
		".rpmsave", ".rpmnew", ".rpmorig",
		".dpkg-old", ".dpkg-new", ".dpkg-dist", ".dpkg-tmp", ".dpkg-bak",
		".ucf-old", ".ucf-new", ".ucf-dist",
	} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	emacs := strings.HasPrefix(name, ".#") || len(name) > 1 && strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#")
	return emacs || isSedTemporary(name)
}

// isSedTemporary reports whether the file is one that `sed -i` writes: "sed" and six
// random letters or digits.
func isSedTemporary(name string) bool {
	random, ok := strings.CutPrefix(name, "sed")
	return ok && len(random) == 6 && !strings.ContainsFunc(random, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}
