package stepd

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// The dialect that the project has left behind, each phrase with its plain form: words, of
// which "a|b" stands for either. The test looks in comments, messages and documents,
// outside quoted text and code.
var plainWords = []struct{ not, but string }{
	{"tell|tells|told|telling whether", `"reports whether"`},
	{"tells why|how|what|which|where|when|who|each|every", `"reports", "says", "returns"`},
	{"tell|tells|told|telling of", `"reports", "prints", "logs"`},
	{"tells the user|client|caller|launcher that", `"reports", "prints", "logs"`},
	{"hear|hears|heard of", `"gets", "is called for"`},
	{"who asks|calls", `"the client", "the caller"`},
	{"whoever", `the noun: "the client", "the caller"`},
	{"nobody|somebody", `the noun: "no process", "another user"`},
	{"that|those of", `the noun again: "the step's CPUs"`},
	{"of those", `the noun again`},
	{"what is of", `the noun: "the step's files"`},
	{"let|lets|letting go", `"releases", "closes", "starts"`},
	{"is|are|was|were there", `"exists", "is available", "is present"`},
	{"is|are|was|were not there", `"exists", "is available", "is present"`},
	{"is|are|was|were no longer there", `"exists", "is available", "is present"`},
	{"is|are|was|were|not|be to be had", `"exists", "is available"`},
	{"what|who lacks", `"is missing", "without"`},
	{"is in the way", `"blocks"`},
	{"has|have|had|was|were come to", `"the result", or the verb`},
	{"it|they|which comes|came to", `"the result", or the verb`},
	{"seen what", `(rewrite the sentence)`},
}

// TestPlainWords holds that no phrase of plainWords stands in a comment, a message or a
// document.
func TestPlainWords(t *testing.T) {
	plain := make(map[string]string) // by each form of a phrase
	for _, w := range plainWords {
		for _, phrase := range forms(strings.Fields(w.not)) {
			plain[phrase] = w.but
		}
	}
	for _, path := range projectFiles(t) {
		for _, p := range passages(t, path) {
			text := strings.ToLower(quotedText.ReplaceAllStringFunc(p.text, blank))
			flat := strings.Join(strings.Fields(text), " ")
			for phrase, but := range plain {
				if !strings.Contains(flat, phrase) { // as nearly always: it costs less than the expression
					continue
				}
				re := regexp.MustCompile(`\b` + strings.ReplaceAll(phrase, " ", `\s+`) + `\b`)
				for _, at := range re.FindAllStringIndex(text, -1) {
					t.Errorf("%s:%d: %q: write %s", path, p.line+strings.Count(text[:at[0]], "\n"), phrase, but)
				}
			}
		}
	}
}

// forms are a phrase with each choice of its words.
func forms(words []string) (all []string) {
	if len(words) == 0 {
		return []string{""}
	}
	for _, word := range strings.Split(words[0], "|") {
		for _, rest := range forms(words[1:]) {
			all = append(all, strings.TrimSuffix(word+" "+rest, " "))
		}
	}
	return all
}

// TestNarrowDocuments holds that a document can be read in a terminal of 120 columns.
func TestNarrowDocuments(t *testing.T) {
	for _, path := range projectFiles(t) {
		if filepath.Ext(path) != ".md" || path == "CHANGELOG.md" {
			continue
		}
		for i, line := range strings.Split(readText(t, path), "\n") {
			if n := utf8.RuneCountInString(line); n > 120 {
				t.Errorf("%s:%d has %d columns", path, i+1, n)
			}
		}
	}
}

// projectFiles are the files whose words the project writes: not what a program has
// made, and not what Slurm or a kernel has printed (testdata, but for its programs).
func projectFiles(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || name == "build" || path != "." && name[0] == '.'):
			return filepath.SkipDir
		case !d.IsDir() && kindOf(path) != "":
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 300 {
		t.Fatalf("%d files: the test does not find the project", len(files))
	}
	return files
}

// kindOf names the comments that a file has: "" for a file without words of ours.
func kindOf(path string) string {
	switch ext, name := filepath.Ext(path), filepath.Base(path); {
	case ext == ".go":
		return "go"
	case ext == ".c", ext == ".h", ext == ".cc":
		return "c"
	case ext == ".md":
		return "markdown"
	case ext == ".7":
		return "roff"
	case ext == ".sh", ext == ".mk", ext == ".service", name == "Makefile", name == "Dockerfile",
		strings.HasPrefix(path, "packaging/"), strings.HasPrefix(path, "integration/vm/recipe/"):
		return "hash"
	}
	return ""
}

// passage is text that a person reads, as one piece, and the line where it begins.
type passage struct {
	line int
	text string
}

// passages are the comments and messages of a program, or the paragraphs of a document.
// A newline in them is one of the file, so that lines can be counted; the signs that begin
// a line of comment are gone.
func passages(t *testing.T, path string) []passage {
	text := readText(t, path)
	switch kindOf(path) {
	case "go":
		return goPassages(t, path, text)
	case "c":
		return cPassages(text, !strings.Contains(path, "/tests/") && !strings.Contains(path, "testdata/"))
	case "hash":
		return hashPassages(text)
	case "roff":
		return []passage{{1, text}}
	}
	if path == "CHANGELOG.md" { // a release that is out keeps its words
		if begin, rest, ok := strings.Cut(text, "\n## Unreleased\n"); ok {
			rest, _, _ = strings.Cut(rest, "\n## ")
			text = begin + "\n\n" + rest
		}
	}
	return []passage{{1, markdownText(text)}}
}

// goPassages are a file's comments, and its string literals unless it is a test.
func goPassages(t *testing.T, path, text string) (all []passage) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	line := func(p token.Pos) int { return fset.Position(p).Line }
	for _, group := range file.Comments {
		// Comments of a group stand on lines that follow each other.
		var lines []string
		for _, c := range group.List {
			lines = append(lines, strings.Split(commentSign.ReplaceAllString(c.Text, ""), "\n")...)
		}
		all = append(all, passage{line(group.Pos()), strings.Join(lines, "\n")})
	}
	if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testkit") {
		return all
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				if lit.Value[0] != '`' {
					s = strings.ReplaceAll(s, "\n", " ")
				}
				all = append(all, passage{line(lit.Pos()), s})
			}
		}
		return true
	})
	return all
}

var (
	commentSign = regexp.MustCompile(`(?m)^\s*(//|/\*+|\*/|\*)|\*/$`)
	quotedText  = regexp.MustCompile("`[^`\n]*`|\"[^\"]*\"|“[^”]*”")
	cToken      = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'`)
	hashComment = regexp.MustCompile(`(?:^|\s)#(.*)`)
	codeBlock   = regexp.MustCompile("(?ms)^```.*?^```$|^    .*?$")
	linkTarget  = regexp.MustCompile(`\]\([^)\n]*\)`)
)

// cPassages are a C file's comments and, of a program that is no test, its string literals.
// Literals that stand beside each other are one to the compiler, and here.
func cPassages(text string, messages bool) (all []passage) {
	last := -1 // where the last token, a literal, has ended
	for _, at := range cToken.FindAllStringIndex(text, -1) {
		found, line := text[at[0]:at[1]], 1+strings.Count(text[:at[0]], "\n")
		switch {
		case found[0] == '\'':
			continue
		case found[0] == '/':
			all = append(all, passage{line, commentSign.ReplaceAllString(found, "")})
			last = -1
			continue
		case !messages:
			continue
		case last >= 0 && strings.TrimSpace(text[last:at[0]]) == "":
			all[len(all)-1].text += text[last:at[0]] + found[1:len(found)-1]
		default:
			all = append(all, passage{line, found[1 : len(found)-1]})
		}
		last = at[1]
	}
	return all
}

// hashPassages are the comments of a shell script, a Makefile or a configuration file;
// comments on lines that follow each other are one.
func hashPassages(text string) (all []passage) {
	last := 0
	for i, line := range strings.Split(text, "\n") {
		m := hashComment.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if last == i && len(all) > 0 {
			all[len(all)-1].text += "\n" + m[1]
		} else {
			all = append(all, passage{i + 1, m[1]})
		}
		last = i + 1
	}
	return all
}

// markdownText is a document with its code and its links' targets blanked out.
func markdownText(text string) string {
	return linkTarget.ReplaceAllStringFunc(codeBlock.ReplaceAllStringFunc(text, blank), blank)
}

// blank keeps a text's length and lines, and nothing else of it.
func blank(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return '-'
	}, text) + strings.Repeat("-", len(text)-utf8.RuneCountInString(text))
}

// TestPassages: what is read of each kind of file.
func TestPassages(t *testing.T) {
	const source = "package x\n\n// F is one\n// and two.\nvar f = \"text\" /* end */\n"
	for _, c := range []struct {
		name string
		got  []passage
		want []passage
	}{
		{"go", goPassages(t, "x.go", source), []passage{{3, " F is one\n and two."}, {5, " end "}, {5, "text"}}},
		{"go test", goPassages(t, "x_test.go", source), []passage{{3, " F is one\n and two."}, {5, " end "}}},
		{"c", cPassages("/* a\n * b */\nchar *s = \"c \"\n\t\"d\"; // e\nchar q = '\"';\n", true), []passage{{1, " a\n b "}, {3, "c \n\td"}, {4, " e"}}},
		{"c test", cPassages("/* a */ char *s = \"c\";\n", false), []passage{{1, " a "}}},
		{"hash", hashPassages("x # a\n# b\n\ny=$#\n# c\n"), []passage{{1, " a\n b"}, {5, " c"}}},
		{"markdown", []passage{{1, markdownText("a [b](c d)\n\n    code\n")}}, []passage{{1, "a [b------\n\n--------\n"}}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, c.got, c.want)
		}
	}
}
