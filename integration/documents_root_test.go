package integration

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"stepd/internal/testkit"
)

// A block of commands in a document is fenced as console. A line that begins with "$ " is a command of
// an ordinary user, with "# " one of root's, with "> " the next line of that command. What follows is
// its output, of both streams: "..." stands for any text within a line, and alone on a line for any
// lines. The commands of a document run in order, in one directory, beside a noded of the test's own,
// whose files are in /etc/stepd for them. A command is to succeed; "[exit N]" on the last line of its
// output is another end. A block whose fence has norun="REASON" is not run. One whose fence has the word
// clean installs something, and is run in a container that is thrown away: TestRootFirstHour.

// documents are all that may have such blocks.
func documents(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("../docs/*.md")
	must(t, err)
	return append(all, "../README.md", "../examples/plugins/README.md")
}

// consoleBlock is a block of commands, from the given line of its document on.
type consoleBlock struct {
	line     int
	norun    string
	clean    bool
	commands []consoleCommand
}

type consoleCommand struct {
	line   int
	root   bool
	text   string
	output []string
	exit   string
}

var (
	fenceLine = regexp.MustCompile("^```(\\S*)(.*)$")
	norunInfo = regexp.MustCompile(`^ norun="([^"]+)"$`)
	exitLine  = regexp.MustCompile(`^\[exit (\d+)\]$`)
)

// bareCommand is an indented line that looks like a command: words with one blank between them, and
// perhaps a comment.
var bareCommand = regexp.MustCompile(`(?m)^    (?:\$ .*|(?:make|(?:bin/)?stepctl|(?:bin/)?noded|apt|curl|systemctl|systemd-cgls|podman|buildah|` +
	`nsenter|mkdir|gdb|update-alternatives|slurmd|go|/usr/libexec/\S+|CGO_ENABLED=0)(?: [!-~]+)+(?: +#.*)?|make(?: +#.*)?)$`)

// consoleBlocks reads a document.
func consoleBlocks(text string) (blocks []consoleBlock, err error) {
	var in *consoleBlock
	other := false // a block of another kind
	for i, line := range strings.Split(text, "\n") {
		m := fenceLine.FindStringSubmatch(line)
		switch {
		case m != nil && (in != nil || other):
			if in != nil {
				blocks = append(blocks, *in)
			}
			in, other = nil, false
		case m != nil && m[1] == "console":
			in = &consoleBlock{line: i + 1}
			if in.clean = m[2] == " clean"; m[2] != "" && !in.clean {
				reason := norunInfo.FindStringSubmatch(m[2])
				if reason == nil {
					return nil, fmt.Errorf("line %d: cannot use %q: want clean or norun=\"REASON\"", i+1, m[2])
				}
				in.norun = reason[1]
			}
		case m != nil:
			other = true
		case in == nil:
		case strings.HasPrefix(line, "$ "), strings.HasPrefix(line, "# "):
			in.commands = append(in.commands, consoleCommand{line: i + 1, root: line[0] == '#', text: line[2:]})
		case len(in.commands) == 0:
			return nil, fmt.Errorf("line %d: output without a command: %q", i+1, line)
		default:
			c := &in.commands[len(in.commands)-1]
			switch exit := exitLine.FindStringSubmatch(line); {
			case strings.HasPrefix(line, "> ") && len(c.output) == 0:
				c.text += "\n" + line[2:]
			case line == ">" && len(c.output) == 0:
				c.text += "\n"
			case exit != nil:
				c.exit = exit[1]
			case line != "" || len(c.output) > 0:
				c.output = append(c.output, line)
			}
		}
	}
	if in != nil {
		return nil, fmt.Errorf("line %d: the block has no end", in.line)
	}
	return blocks, nil
}

// pattern is what the output is to match.
func (c *consoleCommand) pattern() *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`\A`)
	for _, line := range strings.Split(strings.TrimRight(strings.Join(c.output, "\n"), "\n"), "\n") {
		switch line {
		case "":
			if len(c.output) > 0 {
				b.WriteString("\n")
			}
		case "...":
			b.WriteString(`(?:[^\n]*\n)*`)
		default:
			b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, `[^\n]*`) + ` *\n`)
		}
	}
	return regexp.MustCompile(b.String() + `\z`)
}

// TestRootDocuments runs the commands of documents, and compares their output.
func TestRootDocuments(t *testing.T) {
	ran := 0
	for _, doc := range documents(t) {
		text := readFile(t, doc)
		blocks, err := consoleBlocks(text)
		if err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		for _, bare := range bareCommand.FindAllString(text, -1) {
			t.Errorf("%s: %q stands in no console block", doc, strings.TrimSpace(bare))
		}
		norun := func(b consoleBlock) bool { return b.norun != "" || b.clean }
		if len(blocks) == 0 || !slices.ContainsFunc(blocks, func(b consoleBlock) bool { return !norun(b) }) {
			continue
		}
		t.Run(filepath.Base(doc), func(t *testing.T) {
			cpus := "CPUs=4"
			if filepath.Base(doc) == "binding.md" {
				cpus = "CPUs=2" // no more than a machine of the tests has: else nothing is bound
			}
			w := newReader(t, cpus)
			for _, b := range slices.DeleteFunc(blocks, norun) {
				for _, c := range b.commands {
					ran++
					if !w.runs(t, doc, &c) {
						return // the rest depends on it
					}
				}
			}
		})
	}
	if ran < 50 {
		t.Errorf("%d commands were run", ran)
	}
}

// reader follows the commands of one document.
type reader struct {
	n     *node
	dir   string
	names *strings.Replacer // what is so called in the document
	back  *strings.Replacer
}

func newReader(t *testing.T, cpus string) *reader {
	testkit.RequireRoot(t)
	plugins, err := os.MkdirTemp(workRoot, "stepd-it-lib-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(plugins)) })
	must(t, os.Chmod(plugins, 0o755))
	n := startNode(t, site{Node: cpus, Slurm: "PluginDir=" + plugins + "\n"})
	share, err := filepath.Abs("..")
	must(t, err)
	pairs := []string{
		"/etc/stepd", n.dir, "/etc/slurm", n.dir, "/local", n.path("local"), "/usr/libexec/stepd", filepath.Dir(n.bin), "/usr/lib/slurm", plugins, "/run/stepd/noded.sock", n.socket(),
		"/usr/share/doc/stepd-dev/examples", filepath.Join(share, "examples/plugins"), "/usr/include/stepd", filepath.Join(share, "spank/host/include"),
	}
	var turned []string
	for i := 0; i < len(pairs); i += 2 {
		turned = append(turned, pairs[i+1], pairs[i])
	}
	return &reader{n: n, dir: n.wd, names: strings.NewReplacer(pairs...), back: strings.NewReplacer(turned...)}
}

// runs runs a command, and reports whether it did what the document says.
func (w *reader) runs(t *testing.T, doc string, c *consoleCommand) bool {
	t.Helper()
	if to, ok := strings.CutPrefix(c.text, "cd "); ok {
		w.dir = filepath.Join(w.dir, to)
		return true
	}
	eventually(t, callTimeout, "the end of steps that are being ended, before a reader has typed a line", func() error {
		for _, d := range w.n.ps(t) {
			if d.State == "COMPLETING" {
				return fmt.Errorf("step %s is", d.id())
			}
		}
		return nil
	})
	path := "PATH=" + filepath.Dir(w.n.bin) + ":/usr/local/bin:/usr/bin:/bin"
	r := w.n.do(t, call{
		program: "/bin/sh", args: []string{"-c", "exec 2>&1\n" + w.names.Replace(c.text)}, root: c.root, dir: w.dir, env: []string{path, "LC_ALL=C.UTF-8"},
	})
	return c.matches(t, doc, w.back.Replace(r.out), r.code)
}

// matches reports whether the command ended and printed as the document says.
func (c *consoleCommand) matches(t *testing.T, doc, out string, code int) bool {
	t.Helper()
	want := cmp.Or(c.exit, "0")
	if fmt.Sprint(code) == want && c.pattern().MatchString(out) {
		return true
	}
	t.Errorf("%s:%d: %s\nexit code %d, want %s\n%s\nwant\n%s", doc, c.line, c.text, code, want, out, strings.Join(c.output, "\n"))
	return false
}

// TestConsoleBlocks: how blocks are read and compared.
func TestConsoleBlocks(t *testing.T) {
	const fence = "```"
	blocks, err := consoleBlocks("text\n" + fence + "sh\n$ no\n" + fence + "\n" + fence + "console\n$ a <<E\n> b\n> E\none ... two\n...\nlast\n# c\n[exit 3]\n" + fence + "\n" +
		fence + "console norun=\"needs a GPU\"\n$ nvidia-smi\n" + fence + "\n")
	if err != nil || len(blocks) != 2 || len(blocks[0].commands) != 2 || blocks[1].norun != "needs a GPU" {
		t.Fatalf("%+v, %v", blocks, err)
	}
	a, c := blocks[0].commands[0], blocks[0].commands[1]
	if a.text != "a <<E\nb\nE" || a.root || !c.root || c.exit != "3" || len(c.output) != 0 {
		t.Errorf("%+v, %+v", a, c)
	}
	for out, want := range map[string]bool{"one x two\nlast\n": true, "one x two\na\nb\nlast\n": true, "one two\nlast\n": false, "one x two\nlast\nmore\n": false} {
		if a.pattern().MatchString(out) != want {
			t.Errorf("%q: %t", out, !want)
		}
	}
	if !c.pattern().MatchString("") || c.pattern().MatchString("x\n") {
		t.Error("a command without output")
	}
	for line, want := range map[string]bool{
		"    stepctl ps --all   # all": true, "    $ x": true, "    make": true, "    make    # all": true, "$ stepctl ps": false, "    stepctl run     noded     stepd": false,
		"    stepctl run ──HTTP──▶ noded": false, "    stepctl: error: no such step": false,
	} {
		if bareCommand.MatchString(line) != want {
			t.Errorf("%q is a command: %t", line, !want)
		}
	}
	for _, bad := range []string{fence + "console\nx\n" + fence + "\n", fence + "console\n$ x\n", fence + "console norun\n" + fence + "\n"} {
		if _, err := consoleBlocks(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestUnrunBlocks: the tests that the reason of a block which is not run names are in the tree, and the
// reason says more than that it is not run.
func TestUnrunBlocks(t *testing.T) {
	tests := map[string]bool{}
	must(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(readFile(t, path), -1) {
			tests[m[1]] = true
		}
		return nil
	}))
	const most = 55 // commands that are not run: no more than now
	run, unrun := 0, 0
	for _, doc := range documents(t) {
		blocks, err := consoleBlocks(readFile(t, doc))
		must(t, err)
		for _, b := range blocks {
			if b.norun == "" {
				run += len(b.commands)
				continue
			}
			unrun += len(b.commands)
			for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(b.norun, -1) {
				if !tests[name] {
					t.Errorf("%s:%d: there is no %s", doc, b.line, name)
				}
			}
			if len(strings.Fields(b.norun)) < 4 {
				t.Errorf("%s:%d: %q is no reason", doc, b.line, b.norun)
			}
		}
	}
	if t.Logf("%d commands are run, %d are not", run, unrun); unrun > most {
		t.Errorf("%d commands are not run, and %d may be so", unrun, most)
	}
}

// TestRootDocumentedOptions: each command of stepctl and of noded that a document names, in a block or
// in its text, has that verb and those options.
func TestRootDocumentedOptions(t *testing.T) {
	n := startNode(t, site{})
	help := map[string]string{"noded": n.do(t, call{program: binary(t, "noded"), args: []string{"--help"}}).out}
	named := regexp.MustCompile("(?m)(?:^    |^[$#] |`)((?:stepctl|noded) [^`\n#]*)")
	option := regexp.MustCompile(`(?:^|[ \[])(--[a-z][a-z-]*)`)
	// The options of the plugins that the documents make.
	plugins := map[string]string{"--mine-nice": "mine", "--nice-task": "nice", "--scratch": "scratch"}
	help["mine"], help["nice"], help["scratch"] = "--"+between(readFile(t, "../docs/plugin.md"), `.name = "`, `"`), "--"+between(readFile(t, "../examples/plugins/nice.c"), `.name = "`, `"`), "--"+between(readFile(t, "../examples/plugins/scratch.c"), `.name = "`, `"`)
	checked := 0
	for _, doc := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(readFile(t, doc), -1) {
			command, _, _ := strings.Cut(m[1], " -- ")
			words := strings.Fields(command)
			of, own := words[0], words[1:]
			if of == "stepctl" {
				at := 1
				for at < len(words)-1 && strings.HasPrefix(words[at], "--socket") {
					at += 2
				}
				if of = words[at]; !regexp.MustCompile(`^[a-z]+$`).MatchString(of) {
					continue // "stepctl VERB", "stepctl ps|show"
				}
				own = words[at+1:]
				verb := []string{of}
				if of == "node" && len(own) > 0 {
					verb = append(verb, own[0])
					of, own = "node "+own[0], own[1:]
				}
				if help[of] == "" {
					r := n.ctl(t, append(verb, "--help")...)
					if r.code != 0 {
						t.Errorf("%s: %q: %s", doc, m[1], r.err)
						continue
					}
					help[of] = r.out
				}
			} else if strings.HasPrefix(words[1], "noded") || !strings.HasPrefix(words[1], "-") {
				continue // a sentence's
			}
			for i, word := range own { // what follows is the command of a step
				if !strings.HasPrefix(word, "-") && (i == 0 || !strings.HasPrefix(own[i-1], "-")) && (of == "run" || of == "alloc" || of == "batch") {
					own = own[:i]
					break
				}
			}
			for _, o := range option.FindAllStringSubmatch(strings.Join(own, " "), -1) {
				checked++
				of := cmp.Or(plugins[o[1]], of)
				whole := regexp.MustCompile(regexp.QuoteMeta(o[1]) + `(?:[^a-z-]|$)`) // not as the beginning of another one
				if !whole.MatchString(help[of]) && o[1] != "--help" {
					t.Errorf("%s: %q: %s has no %s", doc, m[1], of, o[1])
				}
			}
		}
	}
	if checked < 40 {
		t.Errorf("%d options were checked", checked)
	}
}
