package spank

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// stackReader reads a stack once.
type stackReader struct {
	dirs     []string
	deadline time.Time
	found    map[string]string // relative plugin name to path
	files    int
	bytes    int
	looked   []look
	digest   hash.Hash
	stack    Stack
}

func newStackReader(pluginDirs []string, deadline time.Time) *stackReader {
	return &stackReader{dirs: pluginDirs, deadline: deadline, found: map[string]string{}, digest: fnv.New128a()}
}

// included is a link in the chain of files that are being read.
type included struct {
	path string
	info os.FileInfo
}

func (r *stackReader) read(file string, chain []included) error {
	// Before the file is read: a short file can name a long one often.
	if len(chain) > stackDepthMax {
		return fmt.Errorf("includes are nested deeper than %d: %s", stackDepthMax, chainText(chain, file))
	}
	if r.files == stackFilesMax {
		return fmt.Errorf("more than %d files are included", stackFilesMax)
	}
	if r.bytes > stackTotalMax {
		return fmt.Errorf("the files have more than %d bytes together", stackTotalMax)
	}
	r.source(file)
	text, info, err := readWhole(file, r.deadline)
	if errors.Is(err, os.ErrNotExist) {
		r.looked = append(r.looked, look{path: file})
		return nil
	}
	if err != nil {
		return err
	}
	r.looked = append(r.looked, look{path: file, info: info})
	for _, c := range chain {
		if os.SameFile(c.info, info) { // by inode: a symlink makes a loop as well
			return fmt.Errorf("an include loop: %s", chainText(chain, file))
		}
	}
	r.files++
	r.bytes += len(text)
	fmt.Fprintf(r.digest, "%d %s %d %s", len(file), file, len(text), text) // a hash's Write never fails
	if !slices.Contains(r.stack.Files, file) {
		r.stack.Files = append(r.stack.Files, file)
	}
	chain = append(chain, included{file, info})
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		if err := r.line(chain, file, number, strings.FieldsFunc(line, isBlank)); err != nil {
			return err
		}
	}
	return nil
}

// source notes a path that the stack depends on.
func (r *stackReader) source(path string) {
	if !slices.Contains(r.stack.Sources, path) {
		r.stack.Sources = append(r.stack.Sources, path)
	}
}

// isBlank is isspace(3) in the C locale.
func isBlank(c rune) bool { return c == ' ' || c >= '\t' && c <= '\r' }

func chainText(chain []included, last string) string {
	var b strings.Builder
	for _, c := range chain {
		b.WriteString(c.path + " -> ")
	}
	return b.String() + last
}

// line takes the words of one line.
func (r *stackReader) line(chain []included, file string, number int, words []string) error {
	if len(words) == 0 {
		return nil
	}
	switch flag := words[0]; {
	case flag != "required" && flag != "optional" && flag != "include":
		r.invalid(file, number, fmt.Sprintf("The word %.80q is none of required, optional, include", flag),
			"write required, optional or include, in lower case, and the path behind it")
	case len(words) == 1:
		r.invalid(file, number, fmt.Sprintf("There is no path behind %q", flag), "add the path, or remove the line")
	case strings.IndexByte(strings.Join(words, ""), 0) >= 0:
		r.invalid(file, number, "There is a NUL byte in it", "remove it")
	case flag == "include":
		return r.include(chain, file, number, words[1]) // Slurm drops further words too
	case len(r.stack.Plugins) == pluginsMax:
		return fmt.Errorf("%s:%d: more than %d plugins", file, number, pluginsMax)
	default:
		r.stack.Plugins = append(r.stack.Plugins, Plugin{
			Path: r.find(words[1]), Required: flag == "required", Args: words[2:], File: file, Line: number,
		})
	}
	return nil
}

// invalid reports a line that is passed over.
func (r *stackReader) invalid(file string, line int, why, remedy string) {
	r.problem(Problem{SeverityError, file, line, "Invalid line. Ignoring. " + why, remedy})
}

// problem adds a finding. Who fills a file with bad lines learns enough from
// the first ones.
func (r *stackReader) problem(p Problem) {
	switch n := len(r.stack.Problems); {
	case n == problemsMax:
		return
	case n == problemsMax-1:
		p.Text += ". Further problems are not told"
	}
	r.stack.Problems = append(r.stack.Problems, p)
}

// includeError says which line includes a file that is no good: the innermost
// one, which is the one to mend.
type includeError struct {
	file string
	line int
	err  error
}

func (e *includeError) Error() string {
	return fmt.Sprintf("include in %s:%d: %v", e.file, e.line, e.err)
}
func (e *includeError) Unwrap() error { return e.err }

// include reads all files that the pattern matches, in the order of their
// names' bytes, into the place of the line. No match is no mistake.
func (r *stackReader) include(chain []included, file string, line int, pattern string) error {
	if !filepath.IsAbs(pattern) {
		// Beneath the file that names it, wherever Slurm's own directory is.
		pattern = filepath.Join(filepath.Dir(file), pattern)
	}
	pattern = filepath.Clean(pattern)
	found, err := globFiles(pattern)
	if err != nil {
		r.invalid(file, line, fmt.Sprintf("%.200q is no pattern", pattern), `close the bracket, or write "\[" for one in a name`)
		return nil
	}
	r.looked = append(r.looked, look{path: pattern, glob: &found})
	for _, d := range found.dirs {
		r.source(d)
	}
	for _, m := range found.leftovers {
		r.problem(Problem{SeverityWarning, file, line, fmt.Sprintf("%q is left over from an editor or a package manager. Ignored", m),
			"remove it, or name it in full to include it"})
	}
	for _, m := range found.files {
		err := r.read(m, chain)
		if _, told := errors.AsType[*includeError](err); err != nil && !told {
			return &includeError{file, line, err}
		} else if err != nil {
			return err
		}
	}
	return nil
}
