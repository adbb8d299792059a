package spank

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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
	for _, dir := range r.dirs {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() {
			path = candidate
			break
		}
	}
	r.found[name] = path
	return path
}

// globFiles is glob(3) without the directories: unlike in Go's, "[!a]" negates,
// and a wildcard does not match a leading dot. The pattern is a clean one.
func globFiles(pattern string) ([]string, error) {
	pattern = strings.ReplaceAll(pattern, "[!", "[^")
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	wanted := strings.Split(pattern, "/")
	matches = slices.DeleteFunc(matches, func(m string) bool {
		parts := strings.Split(m, "/")
		for i, p := range parts {
			if strings.HasPrefix(p, ".") && i < len(wanted) && !strings.HasPrefix(wanted[i], ".") {
				return true
			}
		}
		info, err := os.Stat(m)
		return err == nil && info.IsDir()
	})
	slices.Sort(matches)
	return matches, nil
}

// readStackFile reads a regular file, or /dev/null. O_NONBLOCK keeps a FIFO in
// its place from holding the step.
func readStackFile(file string) (string, os.FileInfo, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() && file != os.DevNull {
		return "", nil, fmt.Errorf("open %s: not a regular file", file)
	}
	data, err := io.ReadAll(io.LimitReader(f, stackFileMax+1))
	if err != nil {
		return "", nil, err
	}
	if len(data) > stackFileMax {
		return "", nil, fmt.Errorf("read %s: more than %d bytes", file, stackFileMax)
	}
	return string(data), info, nil
}
