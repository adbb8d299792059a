package spank

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
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
	// stays as written, so that dlopen says what it says in Slurm, and with a
	// slash in it is one from the root.
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
	// Sources are all paths that were looked at: files, whether they exist or
	// not, and the directories that a pattern has read. While none of them
	// changes, the stack is the same.
	Sources []string
	// Digest is of the names and the contents of Files. Two who have read the
	// same have the same one; it is no secret, and no protection.
	Digest string
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
	Remedy   string // what to do; may be empty
}

// String is the line for the user, in Slurm's form: "spank: FILE:LINE: TEXT".
func (p Problem) String() string {
	if p.Line == 0 {
		return fmt.Sprintf("spank: %s: %s", p.File, p.Text)
	}
	return fmt.Sprintf("spank: %s:%d: %s", p.File, p.Line, p.Text)
}

// stackPatience bounds the wait for processes that write the stack's files.
const stackPatience = time.Second

// ReadStack reads plugstack.conf. A file that does not exist, or "", is an
// empty stack. Lines that are no good are passed over and become Problems;
// the error says that a file cannot be read, or that the stack has no end (an
// include loop, a limit): then no step may start, for a required plugin may be
// missing from it. The grammar is Slurm 22.05.8's as measured: words
// parted by blanks, no quotes, no continuation, "#" begins a comment anywhere.
//
// A file that is being written is not read half. Where the kernel grants us
// a read lease (root, or the file's owner), a file is read while no process
// has it open for writing; a writer is waited for, at most a second in all. Elsewhere
// it is read again until it is the same before and after. In the end all files
// and patterns are looked at once more: if one has changed, all are read again.
// On an error the stack holds what was found, Sources above all.
func ReadStack(file string, pluginDirs []string) (Stack, error) {
	if file == "" {
		return Stack{}, nil
	}
	deadline := time.Now().Add(stackPatience)
	for {
		r := newStackReader(pluginDirs, deadline)
		err := r.read(file, nil)
		r.stack.Digest = hex.EncodeToString(r.digest.Sum(nil))
		changed := r.changed()
		switch {
		case changed != "" && time.Now().Before(deadline):
			continue
		case err == nil && changed != "":
			err = fmt.Errorf("%q changes all the time; write a new file and rename it into place", changed)
		}
		if err != nil {
			return r.stack, fmt.Errorf("cannot read plugin stack %q: %w", file, err)
		}
		return r.stack, nil
	}
}

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

// LeaveOut takes the optional plugins out of the stack that conf has in
// quarantine, and returns a line for user and log about each.
func (s *Stack) LeaveOut(conf *step.SpankConf) []string {
	var lines []string
	s.Plugins = slices.DeleteFunc(s.Plugins, func(p Plugin) bool {
		q, ok := conf.Quarantine(p.Path)
		if !ok || p.Required {
			return false
		}
		if line := q.String(); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
		return true
	})
	return lines
}

// Unsafe lists what users other than root may change of the stack: its
// files, its plugins, and the directories on the way to them. All of it is
// code that runs as root, in the end. Slurm accepts it, so ReadStack does not
// look; the administrator's check does, and RequireSafe. Relative plugin names
// that were not found are passed over.
func (s Stack) Unsafe() []Problem {
	seen := map[string]bool{}
	var out []Problem
	note := func(path, file string, line int) {
		for _, p := range Way(path) {
			if seen[p] {
				continue
			}
			seen[p] = true
			if why, remedy := UnsafeFile(p); why != "" {
				out = append(out, Problem{SeverityWarning, file, line, fmt.Sprintf("%q %s", p, why), remedy})
			}
		}
	}
	for _, f := range s.Files {
		note(f, f, 0)
	}
	for _, p := range s.Plugins {
		if filepath.IsAbs(p.Path) {
			note(p.Path, p.File, p.Line)
		}
	}
	return out
}

// StackOf reads the stack as a step has to: the one with which its job began, and with
// RequireSafe, if the node wants that.
func StackOf(conf step.SpankConf) (Stack, error) {
	stack, err := ReadStack(conf.Plugstack, conf.PluginDirs)
	if conf.Plugstack != "" && conf.Kept != "" && (err != nil || stack.Digest != conf.Digest) {
		// After a reboot there is no copy, and no step of the job either: its epilog is left.
		if kept, kerr := readCopy(conf.Kept); !errors.Is(kerr, os.ErrNotExist) {
			stack, err = kept, kerr
		}
	}
	if err == nil && conf.RequireSafe {
		err = stack.RequireSafe()
	}
	return stack, err
}

// Copy is what StackOf reads of a stack that is kept, and the mode of its file: users may read
// it who can read the files of the stack.
func (s Stack) Copy() (doc []byte, mode os.FileMode, err error) {
	mode = 0o644
	for _, file := range s.Files {
		for _, p := range Way(file) {
			if info, err := os.Stat(p); err != nil || info.Mode()&0o004 == 0 && (p == file || info.Mode()&0o001 == 0) {
				mode = 0o600
			}
		}
	}
	k := keptStack{Files: step.Raw(s.Files)}
	for _, p := range s.Plugins {
		k.Plugins = append(k.Plugins, keptPlugin{[]byte(p.Path), p.Required, step.Raw(p.Args), []byte(p.File), p.Line})
	}
	doc, err = json.Marshal(k)
	return doc, mode, err
}

// keptStack is a stack in a file. Names and words are any bytes.
type keptStack struct {
	Plugins []keptPlugin `json:"plugins"`
	Files   [][]byte     `json:"files"`
}

type keptPlugin struct {
	Path     []byte   `json:"path"`
	Required bool     `json:"required"`
	Args     [][]byte `json:"args"`
	File     []byte   `json:"file"`
	Line     int      `json:"line"`
}

func words(raw [][]byte) (out []string) {
	for _, w := range raw {
		out = append(out, string(w))
	}
	return out
}

// copyMax bounds a copy: paths, lines and quotes are beside the words of the files.
const copyMax = 8 * stackTotalMax

// readCopy reads what Copy has made. Its plugins are loaded: none but root, or the caller, may
// have written it.
func readCopy(path string) (s Stack, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return s, fmt.Errorf("cannot read the plugin stack with which the job began: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return s, fmt.Errorf("cannot stat %q: %w", path, err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return s, fmt.Errorf("cannot use %q: it is no file that only root may write", path)
	}
	doc, err := io.ReadAll(io.LimitReader(f, copyMax))
	var k keptStack
	if err == nil {
		err = json.Unmarshal(doc, &k)
	}
	if err != nil {
		return s, fmt.Errorf("cannot read the plugin stack with which the job began: %q: %w", path, err)
	}
	s.Files = words(k.Files)
	for _, p := range k.Plugins {
		s.Plugins = append(s.Plugins, Plugin{Path: string(p.Path), Required: p.Required, Args: words(p.Args), File: string(p.File), Line: p.Line})
	}
	return s, nil
}

// RequireSafe fails when Unsafe finds anything (RequireSafePlugins=yes of
// stepd.conf). The error names the file, what is wrong with it and the remedy.
func (s Stack) RequireSafe() error {
	unsafe := s.Unsafe()
	if len(unsafe) == 0 {
		return nil
	}
	p := unsafe[0]
	at := p.File
	if p.Line > 0 {
		at = fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	more := ""
	if len(unsafe) > 1 {
		more = fmt.Sprintf(" (and %d more: stepctl plugins --check lists them)", len(unsafe)-1)
	}
	return fmt.Errorf("cannot load the plugin stack: %s: %s, and stepd.conf has RequireSafePlugins=yes; %s%s", at, p.Text, p.Remedy, more)
}

// linksMax is how many symlinks a path may have, as in the kernel (path_resolution(7)).
const linksMax = 40

// Way lists an absolute path's directories from the root down and the path
// itself; where one of them is a symlink, the way that it leads follows. What
// does not exist is listed as it is written. A user who may change one of
// these decides what is found at the path.
func Way(path string) []string {
	out := []string{"/"}
	seen := map[string]bool{"/": true}
	at, links := "/", 0
	for todo := strings.Split(path, "/"); len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		if name == ".." {
			at = filepath.Dir(at)
		}
		if name == "" || name == "." || name == ".." {
			continue
		}
		next := filepath.Join(at, name)
		if !seen[next] {
			seen[next] = true
			out = append(out, next)
		}
		target, err := os.Readlink(next)
		if err != nil { // no link
			at = next
			continue
		}
		if links++; links > linksMax {
			return out
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return out
}

// UnsafeFile says why a file or directory is not root's alone, or "", and what
// to do. It looks at the path itself, not at the way there (Way). What does not
// exist is no finding of this check.
func UnsafeFile(path string) (why, remedy string) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", ""
	}
	why, remedy = unsafeMode(st.Mode, st.Uid, st.Gid)
	if why == "" && st.Mode&syscall.S_IFMT != syscall.S_IFLNK && st.Mode&0o020 != 0 && hasACL(path) {
		// The group's bits are the mask of the list then (acl(5)).
		why, remedy = "may be written by those in its access control list", "setfacl -b"
	}
	if why == "" {
		return "", ""
	}
	return why, fmt.Sprintf("%s %s", remedy, path)
}

func hasACL(path string) bool {
	n, err := unix.Lgetxattr(path, "system.posix_acl_access", nil)
	return err == nil && n > 0
}

// unsafeMode judges st_mode, owner and group. In a sticky directory only an
// entry's owner may replace it, and the entry is judged by itself; the mode of
// a symlink means nothing.
func unsafeMode(mode, uid, gid uint32) (why, remedy string) {
	kind := mode & syscall.S_IFMT
	sticky := kind == syscall.S_IFDIR && mode&syscall.S_ISVTX != 0
	switch {
	case uid != 0 && kind == syscall.S_IFLNK:
		return fmt.Sprintf("belongs to uid %d, not to root", uid), "chown -h root"
	case uid != 0:
		return fmt.Sprintf("belongs to uid %d, not to root", uid), "chown root"
	case kind == syscall.S_IFLNK || sticky:
		return "", ""
	case mode&0o002 != 0:
		return "may be written by everybody", "chmod o-w"
	case mode&0o020 != 0 && gid != 0:
		return fmt.Sprintf("may be written by group %d", gid), "chmod g-w"
	}
	return "", ""
}
