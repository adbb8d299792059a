package slurmconf

import (
	"fmt"
	"path/filepath"
)

// Setting is one KEY=VALUE as it is written.
type Setting struct {
	File       string
	Line       int
	Key, Value string
	// On is the value of the line's first key, where that begins a line of several:
	// NodeName, PartitionName.
	On string
}

// String is the setting with its place.
func (s Setting) String() string {
	return fmt.Sprintf("%s:%d: %s=%s", filepath.Base(s.File), s.Line, s.Key, s.Value)
}

// Settings are what a file in the syntax of slurm.conf sets, with the files that it includes:
// any keys, in their order, and a key that is repeated each time. A line that is none is left
// out. The error is os.ErrNotExist where the file is missing.
func Settings(path string) ([]Setting, error) {
	lines, err := statements(path)
	if err != nil {
		return nil, err
	}
	var list []Setting
	for _, s := range lines {
		for i, p := range s.pairs {
			set := Setting{File: s.file, Line: s.line, Key: p.key, Value: p.value}
			if i > 0 {
				set.On = s.pairs[0].value
			}
			list = append(list, set)
		}
	}
	return list, nil
}

// statements are the lines of a file and of the files that it includes.
func statements(path string) ([]statement, error) {
	file, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	r := &reader{probs: new(problems), dir: filepath.Dir(file)}
	if err := r.read(file); err != nil {
		return nil, fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	return r.out, nil
}
