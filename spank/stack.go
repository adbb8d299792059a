package spank

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limits on what a plugstack.conf may hold.
const (
	stackFileMax  = 1 << 20 // bytes in one file
	stackDepthMax = 16      // includes within includes
	stackFilesMax = 1024    // files in all
	stackSizeMax  = 1024    // plugins
	stackArgsMax  = 1024    // arguments of one plugin
)

// Plugin is one line of plugstack.conf.
type Plugin struct {
	// Path is absolute where the file was found; else as it was written, so
	// that dlopen's own words tell what is missing.
	Path     string
	Required bool
	Args     []string
	File     string // where the line is
	Line     int
}

// Problem is a line of plugstack.conf that is left out; the rest holds.
type Problem struct {
	File string
	Line int
	Text string
}

// String is Slurm's form: "spank: FILE:LINE: TEXT".
func (p Problem) String() string { return fmt.Sprintf("spank: %s:%d: %s", p.File, p.Line, p.Text) }

// Stack is the plugin stack, in the order in which hooks are called.
type Stack struct {
	Plugins  []Plugin
	Problems []Problem
}

// ReadStack reads plugstack.conf and what it includes (spank(8), CONFIGURATION).
// file may be empty or absent: then the stack is empty. pluginDirs are searched
// in order for plugins without a slash. A file that is there and cannot be read
// is an error, as is one beyond the limits; a wrong line is a Problem.
//
// Each file is read in one go and what is read is what counts: an editor that
// writes a new file and renames it never shows a half of it.
func ReadStack(file string, pluginDirs []string) (Stack, error) {
	r := stackReader{dirs: pluginDirs}
	if file == "" {
		return r.stack, nil
	}
	r.base = filepath.Dir(file)
	b, err := readLimited(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r.stack, nil
	}
	if err != nil {
		return Stack{}, err
	}
	err = r.file(file, b)
	return r.stack, err
}

// stackReader is one reading of a stack.
type stackReader struct {
	dirs  []string
	base  string   // relative includes are relative to it
	open  []string // files being read, the outermost first
	files int
	stack Stack
}

func (r *stackReader) file(path string, b []byte) error {
	if r.files++; r.files > stackFilesMax {
		return fmt.Errorf("cannot read plugin stack: more than %d files are included, at last %q", stackFilesMax, path)
	}
	r.open = append(r.open, path)
	defer func() { r.open = r.open[:len(r.open)-1] }()
	for i, line := range bytes.Split(b, []byte{'\n'}) {
		text, _, _ := strings.Cut(string(line), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if err := r.line(path, i+1, words); err != nil {
			return err
		}
	}
	return nil
}

// line reads one line of words: they are split at blanks, without quotes,
// escapes or continuation (spank-behaviour §5).
func (r *stackReader) line(file string, line int, words []string) error {
	problem := func(format string, args ...any) {
		r.stack.Problems = append(r.stack.Problems, Problem{file, line, fmt.Sprintf(format, args...)})
	}
	switch words[0] {
	case "required", "optional":
	case "include":
		if len(words) != 2 {
			problem("Invalid line. Ignoring: include takes one file name pattern")
			return nil
		}
		return r.include(file, line, words[1])
	default:
		problem("Invalid option %q. Must be required, optional or include. Invalid line. Ignoring.", words[0])
		return nil
	}
	if len(words) < 2 {
		problem("Invalid line. Ignoring: %s takes the path of a plugin", words[0])
		return nil
	}
	if len(words)-2 > stackArgsMax {
		return fmt.Errorf("cannot read plugin stack %q: line %d has more than %d arguments", file, line, stackArgsMax)
	}
	if len(r.stack.Plugins) == stackSizeMax {
		return fmt.Errorf("cannot read plugin stack %q: line %d is plugin number %d, and %d is the limit", file, line, stackSizeMax+1, stackSizeMax)
	}
	r.stack.Plugins = append(r.stack.Plugins, Plugin{
		Path: r.find(words[1]), Required: words[0] == "required", Args: words[2:], File: file, Line: line,
	})
	return nil
}

// include reads every file that pattern matches, in the order of their names.
func (r *stackReader) include(file string, line int, pattern string) error {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(r.base, pattern)
	}
	names, err := filepath.Glob(pattern)
	if err != nil {
		r.stack.Problems = append(r.stack.Problems, Problem{file, line, fmt.Sprintf("Invalid pattern %q. Ignoring.", pattern)})
		return nil
	}
	slices.Sort(names)
	for _, name := range names {
		if slices.Contains(r.open, name) {
			r.stack.Problems = append(r.stack.Problems, Problem{file, line,
				fmt.Sprintf("Include loop: %s > %s. Ignoring.", strings.Join(r.open, " > "), name)})
			continue
		}
		if len(r.open) == stackDepthMax {
			return fmt.Errorf("cannot read plugin stack %q: line %d includes deeper than %d files", file, line, stackDepthMax)
		}
		b, err := readLimited(name)
		if err != nil {
			return err
		}
		if err := r.file(name, b); err != nil {
			return err
		}
	}
	return nil
}

// find is the path of a plugin: a name without a directory is looked for in
// every folder of PluginDir.
func (r *stackReader) find(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	for _, dir := range r.dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return name
}

// readLimited reads a whole file of at most stackFileMax bytes.
func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read plugin stack: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return nil, fmt.Errorf("cannot read plugin stack %q: it is a directory (include takes files: add /*.conf)", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, stackFileMax+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read plugin stack %q: %w", path, err)
	}
	if len(b) > stackFileMax {
		return nil, fmt.Errorf("cannot read plugin stack %q: it is longer than %d bytes", path, stackFileMax)
	}
	return b, nil
}
