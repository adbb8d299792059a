package slurmstepd

import (
	"path/filepath"

	"stepd/slurm/stdio"
	"stepd/srunopt"
	"stepd/step"
)

// labelFiles has the tasks write to this program what goes to files whose lines are labelled,
// and returns the files. srun labels the lines of its own files.
func labelFiles(spec *step.Spec) (files [3]stdio.Files) {
	if !spec.Label {
		return files
	}
	for fd, s := range map[int]*step.Stream{1: &spec.Stdout, 2: &spec.Stderr} {
		if s.Kind != step.StreamFile {
			continue
		}
		pattern := s.Pattern
		files[fd] = stdio.Files{Append: s.Append, Path: func(rank int) (string, error) { return filePath(spec, pattern, rank) }}
		*s = step.Stream{Kind: step.StreamClient, Rank: s.Rank}
	}
	return files
}

// stderrFile is the file that a task has for its stderr, "" where it has none.
func stderrFile(spec *step.Spec, rank int) (string, error) {
	s := spec.Stderr
	if s.Kind == step.StreamSame {
		s = spec.Stdout
	}
	if s.Kind != step.StreamFile {
		return "", nil
	}
	return filePath(spec, s.Pattern, rank)
}

// filePath is the absolute path of a task's file.
func filePath(spec *step.Spec, pattern string, rank int) (string, error) {
	path, err := srunopt.ExpandPattern(pattern, spec, rank)
	if err == nil && !filepath.IsAbs(path) {
		path = filepath.Join(spec.Cwd, path)
	}
	return path, err
}
