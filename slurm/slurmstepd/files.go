package slurmstepd

import (
	"path/filepath"
	"sync"
	"time"

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

// stderrFiles writes messages to the files that tasks have opened for their stderr. Any
// goroutine may use it.
type stderrFiles struct {
	opener stdio.Opener
	// path is the file of a rank's stderr, "" of a task that has none.
	path func(rank int) (string, error)
	// otherwise gets a message whose file cannot be opened: nor could its task.
	otherwise func(line string)

	mu     sync.Mutex
	lines  chan fileLine // guarded by mu: nil before the first message
	closed bool          // guarded by mu
	done   chan struct{} // closed when all is written
}

// fileLine is a message about a task.
type fileLine struct {
	rank int
	text string
}

// say queues a message. More than messagesMax are dropped where a file takes none.
func (f *stderrFiles) say(rank int, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	if f.lines == nil {
		f.lines, f.done = make(chan fileLine, messagesMax), make(chan struct{})
		go f.write(f.lines)
	}
	select {
	case f.lines <- fileLine{rank, text}:
	default:
	}
}

func (f *stderrFiles) write(lines <-chan fileLine) {
	defer close(f.done)
	for l := range lines {
		path, err := f.path(l.rank)
		if err == nil && path == "" {
			continue
		}
		// It is opened for each message: a step has few, and perhaps as many files.
		if err != nil || f.opener.Append(path, l.text+"\n") != nil {
			f.otherwise(l.text)
		}
	}
}

// filePatience is how long the last messages may take to their files.
const filePatience = time.Second

// close waits for what is left.
func (f *stderrFiles) close() {
	f.mu.Lock()
	writing := f.lines != nil && !f.closed
	f.closed = true
	if writing {
		close(f.lines)
	}
	f.mu.Unlock()
	if !writing {
		return
	}
	select {
	case <-f.done:
	case <-time.After(filePatience):
	}
}
