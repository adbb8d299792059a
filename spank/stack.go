package spank

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limits of a plugin stack. pluginsMax is the host's (host/config.h).
const (
	stackFileMax  = 1 << 20 // bytes of one file
	stackFilesMax = 1024    // files, each time they are included
	stackTotalMax = 8 << 20 // bytes of them together
	stackDepthMax = 16      // includes within includes
	problemsMax   = 1000
	pluginsMax    = 4096
)

// Plugin is one plugin of the stack.
type Plugin struct {
	// Path is what to dlopen: the path as written, or for a relative one the
	// first file of that name in the plugin directories. One that is in none
	// stays as written, so that dlopen says what it says in Slurm.
	Path     string
	Required bool
	// Args are the words behind the path.
	Args []string
	// File and Line are where it is written.
	File string
	Line int
}

// Stack is plugstack.conf with its includes. The zero value is an empty one.
type Stack struct {
	Plugins  []Plugin // in the order in which they are called
	Problems []Problem
	// Files are all files that were read, each once.
	Files []string
}

// Severity says how much a Problem matters.
type Severity string

// The severities.
const (
	// SeverityWarning: the stack is as it is written, and may not be what is wanted.
	SeverityWarning Severity = "warning"
	// SeverityError: a line is passed over, as Slurm does.
	SeverityError Severity = "error"
)

// Problem is one finding about a line of plugstack.conf.
type Problem struct {
	Severity Severity
	File     string
	Line     int // 0 is the file as a whole
	Text     string
}

// String is the line for the user, in Slurm's form: "spank: FILE:LINE: TEXT".
func (p Problem) String() string {
	if p.Line == 0 {
		return fmt.Sprintf("spank: %s: %s", p.File, p.Text)
	}
	return fmt.Sprintf("spank: %s:%d: %s", p.File, p.Line, p.Text)
}

// ReadStack reads plugstack.conf. A file that does not exist, or "", is an
// empty stack. Lines that are no good are passed over and become Problems;
// the error says that a file cannot be read, or that the stack has no end (an
// include loop, a limit): then no step may start, for a required plugin may be
// missing from it. The grammar is that of Slurm 22.05.8 as measured: words
// parted by blanks, no quotes, no continuation, "#" begins a comment anywhere.
func ReadStack(file string, pluginDirs []string) (Stack, error) {
	r := &stackReader{dirs: pluginDirs, found: map[string]string{}}
	if file == "" {
		return r.stack, nil
	}
	if err := r.read(file, nil); err != nil {
		return r.stack, fmt.Errorf("cannot read plugin stack %q: %w", file, err)
	}
	return r.stack, nil
}

type stackReader struct {
	dirs  []string
	found map[string]string // relative plugin name to path
	files int
	bytes int
	stack Stack
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
	text, info, err := readStackFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil // also a file that went between glob and open
	}
	if err != nil {
		return err
	}
	for _, c := range chain {
		if os.SameFile(c.info, info) { // by inode: a symlink makes a loop as well
			return fmt.Errorf("an include loop: %s", chainText(chain, file))
		}
	}
	r.files++
	r.bytes += len(text)
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
		r.invalid(file, number, fmt.Sprintf("The word %.80q is none of required, optional, include", flag))
	case len(words) == 1:
		r.invalid(file, number, fmt.Sprintf("There is no path behind %q", flag))
	case strings.IndexByte(strings.Join(words, ""), 0) >= 0:
		r.invalid(file, number, "There is a NUL byte in it")
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

// invalid reports a line that is passed over. Who fills a file with such lines
// learns enough from the first ones.
func (r *stackReader) invalid(file string, line int, why string) {
	switch n := len(r.stack.Problems); {
	case n == problemsMax:
		return
	case n == problemsMax-1:
		why += ". Further invalid lines are not told"
	}
	r.stack.Problems = append(r.stack.Problems, Problem{SeverityError, file, line, "Invalid line. Ignoring. " + why})
}

// include reads all files that the pattern matches, in the order of their
// names' bytes, into the place of the line. No match is no mistake.
func (r *stackReader) include(chain []included, file string, line int, pattern string) error {
	if !filepath.IsAbs(pattern) {
		// Beneath the file that names it, wherever Slurm's own directory is.
		pattern = filepath.Join(filepath.Dir(file), pattern)
	}
	matches, err := globFiles(filepath.Clean(pattern))
	if err != nil {
		r.invalid(file, line, fmt.Sprintf("%.200q is no pattern", pattern))
		return nil
	}
	for _, m := range matches {
		if err := r.read(m, chain); err != nil {
			if len(chain) > 1 {
				return err // told where it was named first
			}
			return fmt.Errorf("include in %s:%d: %w", file, line, err)
		}
	}
	return nil
}
