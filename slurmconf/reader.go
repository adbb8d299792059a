package slurmconf

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"stepd/internal/nearest"
)

// Limits of what is read. Slurm has none; a site's files stay far below them.
const (
	fileMax  = 4 << 20  // bytes of one file
	totalMax = 16 << 20 // bytes of a file with all that it includes
	filesMax = 1024     // files, included ones counted each time
	depthMax = 16       // includes within includes
)

// reader reads a file with its includes into one list of statements.
type reader struct {
	probs   *problems
	dir     string // relative includes are beneath it: slurm.conf's directory
	cluster string // ClusterName so far, for %c
	chain   []openFile
	files   int
	bytes   int
	digest  io.Writer // of all that is read, nil where no caller asks for it
	out     []statement
}

// openFile is a file that is being read: a link in the chain of includes.
type openFile struct {
	path string
	info os.FileInfo
}

// read reads a file and its includes. An error is about this file alone; what
// is wrong inside, includes too, becomes a problem.
func (r *reader) read(path string) error {
	// Before the file is read: a short file can name a long one often.
	switch {
	case len(r.chain) > depthMax:
		return fmt.Errorf("includes are nested deeper than %d: %s", depthMax, r.chainText(path))
	case r.files == filesMax:
		return fmt.Errorf("more than %d files are included", filesMax)
	case r.bytes > totalMax:
		return fmt.Errorf("the files have more than %d bytes together", totalMax)
	}
	data, info, err := readConf(path)
	if err != nil {
		return err
	}
	r.files++
	r.bytes += len(data)
	if r.digest != nil {
		fmt.Fprintf(r.digest, "%q %d\n", path, len(data))
		r.digest.Write(data)
	}
	for _, f := range r.chain {
		if os.SameFile(f.info, info) { // by inode: a symlink makes a loop as well
			return fmt.Errorf("it includes itself: %s", r.chainText(path))
		}
	}
	r.chain = append(r.chain, openFile{path, info})
	defer func() { r.chain = r.chain[:len(r.chain)-1] }()
	for _, l := range logicalLines(string(data)) {
		r.line(statement{file: path, line: l.number}, l.text)
	}
	return nil
}

func (r *reader) chainText(last string) string {
	var b strings.Builder
	for _, f := range r.chain {
		b.WriteString(f.path + " -> ")
	}
	return b.String() + last
}

func (r *reader) line(s statement, text string) {
	if strings.IndexByte(text, 0) >= 0 {
		r.probs.at(s, SeverityError, "is this a text file?", "cannot read a line with a NUL byte in it")
		return
	}
	if word, rest := cutWord(text); strings.EqualFold(word, "include") && !strings.HasPrefix(rest, "=") {
		r.include(s, rest)
		return
	}
	pairs, err := parsePairs(text)
	if err != nil {
		r.probs.at(s, SeverityError, "write KEY=VALUE, and quotes around a value with blanks", "%v", err)
	}
	if len(pairs) == 0 {
		return
	}
	if pairs[0].is("ClusterName") {
		r.cluster = strings.ToLower(pairs[0].value)
	}
	s.pairs = pairs
	r.out = append(r.out, s)
}

func cutWord(s string) (word, rest string) {
	n := strings.IndexAny(s, blanks)
	if n < 0 {
		return s, ""
	}
	return s[:n], strings.TrimLeft(s[n:], blanks)
}

// include reads one file into the place of the line: no glob, as in Slurm.
func (r *reader) include(s statement, name string) {
	if name == "" {
		r.probs.at(s, SeverityError, "name a file behind it", "cannot include nothing")
		return
	}
	path := strings.Trim(name, `"`)
	if strings.Contains(path, "%c") {
		if r.cluster == "" {
			r.probs.at(s, SeverityError, "set ClusterName above this line", "cannot include %q: ClusterName is not known here", name)
			return
		}
		path = strings.ReplaceAll(path, "%c", r.cluster)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.dir, path)
	}
	if err := r.read(path); err != nil {
		r.probs.at(s, SeverityError, "", "cannot include %q: %v", path, err)
	}
}

// readConf reads a regular file, or /dev/null. O_NONBLOCK keeps a FIFO in its
// place from holding the daemon.
func readConf(path string) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() && path != os.DevNull {
		return nil, nil, fmt.Errorf("open %s: not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err != nil {
		return nil, nil, err
	}
	if len(data) > fileMax {
		return nil, nil, fmt.Errorf("read %s: more than %d bytes", path, fileMax)
	}
	return data, info, nil
}

// statement is one line after continuations were joined: its KEY=VALUE pairs.
type statement struct {
	file  string
	line  int
	pairs []pair
}

// pair is one KEY=VALUE as written.
type pair struct {
	key, value string
}

// is reports whether the key is name; keys have no case.
func (p pair) is(name string) bool { return strings.EqualFold(p.key, name) }

// logicalLine is a line without comment, its continuations joined and its
// escapes resolved.
type logicalLine struct {
	text   string
	number int // of its first line, from 1
}

// logicalLines splits a file. A comment ends before a continuation is looked
// for, so that a comment cannot swallow the next line.
func logicalLines(data string) []logicalLine {
	var out []logicalLine
	var joined strings.Builder
	start, number := 0, 0
	for physical := range strings.Lines(data) {
		number++
		start = cmp.Or(start, number)
		text, more := cutContinuation(cutComment(physical))
		joined.WriteString(text)
		if more {
			continue
		}
		out = appendLine(out, joined.String(), start)
		joined.Reset()
		start = 0
	}
	return appendLine(out, joined.String(), start)
}

func appendLine(out []logicalLine, text string, number int) []logicalLine {
	text = strings.Trim(unescape(text), blanks)
	if text == "" {
		return out
	}
	return append(out, logicalLine{text, number})
}

// blanks are isspace(3)'s in the C locale.
const blanks = " \t\r\n\v\f"

// cutComment removes a comment. A backslash takes the meaning of what follows
// it, so "\#" is a number sign. Quotes do not protect it, as in Slurm.
func cutComment(s string) string {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '#':
			return s[:i]
		}
	}
	return s
}

// cutContinuation removes the backslash that continues the line, and what
// blanks follow it. Backslashes in pairs are escaped ones.
func cutContinuation(s string) (text string, more bool) {
	trimmed := strings.TrimRight(s, blanks)
	n := len(trimmed) - len(strings.TrimRight(trimmed, `\`))
	if n%2 == 0 {
		return s, false
	}
	return trimmed[:len(trimmed)-1], true
}

// unescape resolves backslashes: each stands for the character behind it.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parsePairs reads KEY=VALUE pairs up to the end of the text or to the first
// fault; the pairs before it are returned in any case. Blanks may surround the
// equals sign; a value with blanks in it is quoted.
func parsePairs(text string) ([]pair, error) {
	var out []pair
	for rest := text; ; {
		rest = strings.TrimLeft(rest, blanks)
		if rest == "" {
			return out, nil
		}
		n := 0
		for n < len(rest) && isKeyByte(rest[n]) {
			n++
		}
		key, after := rest[:n], strings.TrimLeft(rest[n:], blanks)
		if key != "" && (strings.HasPrefix(after, "+=") || strings.HasPrefix(after, "-=")) {
			return out, fmt.Errorf("cannot use %q after key %q", after[:2], key)
		}
		if key == "" || !strings.HasPrefix(after, "=") {
			return out, fmt.Errorf("cannot read %.80q", rest)
		}
		value, left, err := cutValue(strings.TrimLeft(after[1:], blanks))
		if err != nil {
			return out, fmt.Errorf("cannot read the value of %q: %w", key, err)
		}
		out = append(out, pair{key, value})
		rest = left
	}
}

func isKeyByte(c byte) bool {
	return c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func cutValue(s string) (value, rest string, err error) {
	if s == "" {
		return "", "", fmt.Errorf("there is none")
	}
	if s[0] != '"' {
		n := strings.IndexAny(s, blanks)
		if n < 0 {
			n = len(s)
		}
		return s[:n], s[n:], nil
	}
	n := strings.IndexByte(s[1:], '"')
	if n < 0 {
		return "", "", fmt.Errorf("no closing quote in %.80q", s)
	}
	value, rest = s[1:1+n], s[n+2:]
	if rest != "" && !strings.ContainsRune(blanks, rune(rest[0])) {
		return "", "", fmt.Errorf("no blank behind the closing quote in %.80q", s)
	}
	return value, rest, nil
}

// Severity says how much a Problem matters.
type Severity string

// The severities.
const (
	// SeverityIgnored: a key that is not read here. Nothing is wrong.
	SeverityIgnored Severity = "ignored"
	// SeverityWarning: probably not what was meant, but it has a meaning.
	SeverityWarning Severity = "warning"
	// SeverityError: a mistake. The default holds in place of what was written.
	SeverityError Severity = "error"
)

// Problem is one finding about one line of the configuration.
type Problem struct {
	Severity Severity
	File     string
	Line     int // the first line of the statement; 0 is the file as a whole
	Text     string
	Remedy   string // what to write instead; may be empty
	// Key and Class are of an ignored key: its name, with the word where only that is ignored
	// ("LaunchParameters=mem_sort"), and why.
	Key   string
	Class Class
}

// Class says why a key is ignored.
type Class string

// The classes of ignored keys.
const (
	// ClassController: the key is of Slurm's other daemons, and none of a node daemon's.
	ClassController Class = "the controller's"
	// ClassUnsupported: slurmd or Slurm's commands act on the key, and noded does not.
	ClassUnsupported Class = "not supported here"
	// ClassUnused: noded reads the key, and it has no effect.
	ClassUnused Class = "read, not used yet"
)

// String is one line: "FILE:LINE: TEXT; REMEDY".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.File != "" {
		b.WriteString(": ")
	}
	b.WriteString(p.Text)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return b.String()
}

// problemsMax bounds the list: a binary file would fill it without end.
const problemsMax = 1000

// problems collects findings up to problemsMax.
type problems struct {
	list    []Problem
	dropped int
	unread  bool // no caller asks for them: the search for what was meant takes a step 1 ms
}

func (ps *problems) add(p Problem) {
	if len(ps.list) == problemsMax {
		ps.dropped++
		return
	}
	ps.list = append(ps.list, p)
}

// at adds a finding about a statement without naming a key.
func (ps *problems) at(s statement, sev Severity, remedy, format string, args ...any) {
	ps.add(Problem{Severity: sev, File: s.file, Line: s.line, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

// ignored adds a key that is not used, and why.
func (ps *problems) ignored(s statement, key string, class Class) {
	ps.add(Problem{Severity: SeverityIgnored, File: s.file, Line: s.line, Text: key + ": " + string(class), Key: key, Class: class})
}

// value adds a mistake in the value of a key.
func (ps *problems) value(s statement, p pair, f *flaw) {
	if f.severity == SeverityIgnored {
		ps.ignored(s, p.key, ClassUnused)
		return
	}
	text := fmt.Sprintf("cannot use %s=%.200q: %s", p.key, p.value, f.why)
	if f.severity != SeverityError {
		text = fmt.Sprintf("%s=%.200q: %s", p.key, p.value, f.why)
	}
	ps.add(Problem{Severity: f.severity, File: s.file, Line: s.line, Text: text, Remedy: f.remedy})
}

// valueOf adds a mistake in the value that a statement gives to a key.
func (ps *problems) valueOf(s statement, key string, f *flaw) {
	for _, p := range s.pairs {
		if p.is(key) {
			ps.value(s, p, f)
			return
		}
	}
	ps.value(s, s.pairs[0], f)
}

// all returns the findings file by file and line by line; the last one says how
// many are missing.
func (ps *problems) all() []Problem {
	order := map[string]int{}
	for _, p := range ps.list {
		if _, known := order[p.File]; !known {
			order[p.File] = len(order)
		}
	}
	slices.SortStableFunc(ps.list, func(a, b Problem) int {
		return cmp.Or(order[a.File]-order[b.File], a.Line-b.Line)
	})
	if ps.dropped == 0 {
		return ps.list
	}
	return append(ps.list, Problem{Severity: SeverityError, Text: fmt.Sprintf("problems that are not listed: %d", ps.dropped)})
}

// meantKey returns the key of the set that was probably meant: at most two
// letters away, and of at least six letters. "" if there is none. The answer
// is in lower case, as keys have no case.
func meantKey(key string, keys keySet) string {
	key = strings.ToLower(key)
	best, distance := "", 3
	for _, known := range slices.Sorted(maps.Keys(keys)) {
		if len(known) < 6 || len(known)-len(key) > 2 || len(key)-len(known) > 2 {
			continue
		}
		if d := nearest.Distance(key, known); d < distance {
			best, distance = known, d
		}
	}
	return best
}
