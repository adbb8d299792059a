package integration

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

var updateScreens = flag.Bool("update-screens", false, "write testdata/screens anew")

// escapes are those that stepctl writes.
var escapes = regexp.MustCompile(`\x1b\[[?0-9;]*[a-zA-Z]`)

// TestRootSeeing: what one sees of a node with a step that runs and one that has
// failed: every verb's document, the screens of two terminals, top and its keys.
func TestRootSeeing(t *testing.T) {
	// With a hard limit below any client's.
	n := startNode(t, site{Before: []string{"sh", "-c", `ulimit -n 900; exec "$@"`, "sh"}})
	if r := n.ctl(t, "run", "-J", "bad", "sh", "-c", "exit 3"); r.code != 3 {
		t.Fatal(r)
	}
	if r := n.ctl(t, "explain", n.lastEnded(t).id()); !strings.Contains(r.out, "the limit NOFILE is 900 and not ") {
		t.Errorf("a limit that is lower: %v", r)
	}
	if r := n.ctl(t, "run", "--propagate=NONE", "-J", "bad", "/no/such/program"); r.code != 2 {
		t.Fatal(r)
	}
	failed := n.lastEnded(t).id()
	p := n.start(t, call{args: []string{"run", "-J", "sleeper", "-n2", "sleep", "1000"}})
	runs := n.running(t).id()
	t.Run("json", func(t *testing.T) { jsonOfAll(t, n, runs, failed) })
	t.Run("plan", func(t *testing.T) { planOf(t, n) })
	t.Run("svg", func(t *testing.T) { pictureOf(t, n, failed) })
	t.Run("screens", func(t *testing.T) { screensOf(t, n, runs, failed) })
	t.Run("top", func(t *testing.T) { topOf(t, n, runs) })
	// top has sent SIGTERM to the tasks.
	if r := p.wait(t); r.code != 143 {
		t.Errorf("the step ends with %v", r)
	}
}

// jsonOfAll: each verb that has --json prints a document, or a line each, with the
// number of the schema.
func jsonOfAll(t *testing.T, n *node, runs, failed string) {
	verbs := map[string][]string{
		"ps": {"ps"}, "show": {"show", failed}, "stat": {"stat", runs}, "explain": {"explain", failed}, "timeline": {"timeline", failed},
		"events": {"events", failed}, "top": {"top"}, "node status": {"node", "status"}, "plugins": {"plugins"}, "run": {"run", "--dry-run", "true"},
	}
	help := n.ctlRoot(t, "--help").out
	for verb := range strings.Lines(between(help, "Commands:\n", "\n\n")) {
		verb, _, _ = strings.Cut(strings.TrimSpace(verb), " ")
		if verb == "node" || verb == "adopt" || verb == "" {
			continue // adopt moves a process: TestRootAdopt reads what it prints
		}
		if _, listed := verbs[verb]; !listed && strings.Contains(n.ctlRoot(t, verb, "--help").out, "      --json ") {
			t.Errorf("%s has --json, and this test does not know it", verb)
		}
	}
	for verb, args := range verbs {
		at := 1 + strings.Count(verb, " ")
		args = append(append(append([]string{}, args[:at]...), "--json"), args[at:]...)
		r := n.ctlRoot(t, args...)
		lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
		if r.code != 0 || verb != "events" && len(lines) != 1 {
			t.Errorf("%s --json: %d lines, %v", verb, len(lines), r)
		}
		for _, line := range lines {
			var doc struct{ Schema int }
			if err := json.Unmarshal([]byte(line), &doc); err != nil || doc.Schema != 1 {
				t.Errorf("%s --json: schema %d, %v: %q", verb, doc.Schema, err, line)
			}
		}
	}
}

// planOf: a dry run reports what the tasks would see, and who makes it so.
func planOf(t *testing.T, n *node) {
	r := n.do(t, call{args: []string{"run", "--dry-run", "--json", "-n2", "--export=KEPT,NEW=1", "true"}, env: []string{"KEPT=1", "LOST=1"}})
	var doc struct {
		Plan struct {
			Environment []struct {
				Name, Change, By string
				Value, Old       *string
			}
			Limits []struct {
				Name  string
				Gets  *uint64
				Lower bool
			} `json:"resource_limits"`
			Mounts, Plugins []any
		}
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	told := map[string]string{}
	for _, c := range doc.Plan.Environment {
		told[c.Name] = c.Change + " by " + c.By
	}
	for name, want := range map[string]string{"NEW": "added by stepctl", "LOST": "removed by stepctl", "SLURM_PROCID": "added by stepd", "SLURM_NTASKS": "added by stepd", "KEPT": ""} {
		if told[name] != want {
			t.Errorf("%s is %q, want %q", name, told[name], want)
		}
	}
	lower := false
	for _, l := range doc.Plan.Limits {
		lower = lower || l.Name == "NOFILE" && l.Lower && l.Gets != nil && *l.Gets == 900
	}
	if !lower {
		t.Errorf("the limits are %+v", doc.Plan.Limits)
	}
	if r := n.ctl(t, "run", "--dry-run", "true"); r.code != 0 || !strings.Contains(r.out, "rlimit     NOFILE 900: ") || !strings.Contains(r.out, "+ SLURM_PROCID=0  (stepd)") {
		t.Error(r)
	}
}

func between(text, from, to string) string {
	_, text, _ = strings.Cut(text, from)
	text, _, _ = strings.Cut(text, to)
	return text
}

// pictureOf: timeline --svg is XML.
func pictureOf(t *testing.T, n *node, failed string) {
	file := filepath.Join(n.wd, "launch.svg")
	if r := n.ctl(t, "timeline", "--svg", file, failed); r.code != 0 || r.out != "" {
		t.Fatal(r)
	}
	d := xml.NewDecoder(strings.NewReader(readFile(t, file)))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if r := n.ctl(t, "timeline", "--svg", "/no/such/dir/x", failed); r.code != 1 || !strings.Contains(r.err, "cannot write the picture") {
		t.Error(r)
	}
}

// on runs stepctl as root on a terminal.
func (n *node) on(t *testing.T, columns, rows uint16, args ...string) *onTerminal {
	t.Helper()
	cmd := exec.Command(n.bin, args...)
	cmd.Env = []string{"NODED_SOCKET=" + n.socket()}
	return terminal(t, cmd, columns, rows)
}

// screensOf holds what two terminals show against testdata/screens, but for numbers
// and the lengths of bars.
func screensOf(t *testing.T, n *node, runs, failed string) {
	if r := n.ctlRoot(t, "node", "drain", "the disk is full"); r.code != 0 {
		t.Fatal(r)
	}
	defer n.ctlRoot(t, "node", "resume")
	// From these lines on screens have figures of the run and the machine.
	until := map[string]*regexp.Regexp{
		"show": regexp.MustCompile(`^  used |^ +RANK `), "stat": regexp.MustCompile(`^ +RANK `), "node-status": regexp.MustCompile(`^  drained `),
	}
	for name, args := range map[string][]string{
		"help": {"--help"}, "run-help": {"run", "--help"}, "top-help": {"top", "--help"}, "explain": {"explain", failed}, "timeline": {"timeline", failed},
		"ps": {"ps", "--all"}, "ps-help": {"ps", "--help"}, "timeline-help": {"timeline", "--help"},
		"show": {"show", failed}, "stat": {"stat", failed}, "node-status": {"node", "status"},
	} {
		for _, size := range [][2]uint16{{80, 24}, {200, 50}} {
			s := n.on(t, size[0], size[1], args...)
			s.ends(t, 0)
			s.slave.Close()
			<-s.done // all is read
			var out []string
			for line := range strings.Lines(strings.ReplaceAll(escapes.ReplaceAllString(s.text(), ""), "\r", "")) {
				line = strings.TrimRight(line, "\n")
				if until[name] != nil && until[name].MatchString(line) {
					break
				}
				if utf8.RuneCountInString(line) > int(size[0]) {
					t.Errorf("%s: a line of %d columns: %q", name, utf8.RuneCountInString(line), line)
				}
				// Of the screens that grow with the options, only the headings.
				if name != "help" && name != "run-help" || strings.HasSuffix(line, ":") && !strings.HasPrefix(line, " ") {
					out = append(out, n.normal(name, line))
				}
			}
			screenIs(t, fmt.Sprintf("%s-%dx%d", name, size[0], size[1]), strings.Join(out, "\n")+"\n")
		}
	}
	_ = runs
	checkOf(t)
}

// checkOf holds what noded --check-config shows on a terminal of a typical site's files of 60 keys.
func checkOf(t *testing.T) {
	dir := fmt.Sprintf("/tmp/%05d", os.Getpid()%100000) // as long as /etc/slurm: lines break by it
	must(t, os.Mkdir(dir, 0o755))
	defer os.RemoveAll(dir)
	must(t, os.CopyFS(dir, os.DirFS("../site/testdata/site60")))
	s := terminal(t, exec.Command(binary(t, "noded"), "--check-config", "-N", "n1", "-f", filepath.Join(dir, "slurm.conf")), 80, 24)
	s.ends(t, 78)
	s.slave.Close()
	<-s.done // all is read
	screenIs(t, "check-80x24", strings.ReplaceAll(strings.ReplaceAll(s.text(), "\r", ""), dir, "/etc/slurm"))
}

// TestRootProgress: what a launch waits for is told on a terminal, in a line that goes
// again, and nowhere else.
func TestRootProgress(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	n.stack(t, fmt.Sprintf("required %s hook=user_init do=hang", buildRude(t, n)))
	quiet := n.on(t, 80, 24, "run", "-Q", "true")
	piped := n.start(t, call{args: []string{"run", "true"}, root: true})
	told := n.on(t, 80, 24, "run", "true")
	told.shows(t, `plugin "rude.so": slurm_spank_user_init for `)
	told.press(t, "\x03")
	eventually(t, callTimeout, "what Ctrl-C interrupts", func() error {
		_, said, _ := strings.Cut(told.text(), "interrupt (one more within 1 sec to abort)\r\n")
		if !regexp.MustCompile(`\nstepctl: step \d+\.0: plugin "rude.so": slurm_spank_user_init for \d+s\r\n(?s:.*)user_init for \d+s\r$`).MatchString(said) {
			return fmt.Errorf("it says %q", told.text())
		}
		return nil
	})
	eventually(t, callTimeout, "three steps", func() error {
		if got := len(n.ps(t)); got != 3 {
			return fmt.Errorf("there are %d", got)
		}
		return nil
	})
	for _, d := range n.ps(t) {
		if r := n.ctlRoot(t, "cancel", d.id()); r.code != 0 {
			t.Error(r)
		}
	}
	told.ends(t, -1)
	quiet.ends(t, -1)
	eventually(t, callTimeout, "the line's end", func() error { // what it said last is still on its way
		if said := told.text(); !strings.Contains(said[strings.LastIndex(said, "user_init for"):], "\r\x1b[K") {
			return fmt.Errorf("it says %q", said)
		}
		return nil
	})
	if r := piped.wait(t); strings.Contains(r.err+quiet.text(), "user_init for") {
		t.Errorf("it is told to what is no terminal, or in spite of -Q: %v, %q", r, quiet.text())
	}
	prologOf(t, n)
}

// prologOf: what waits for a TaskProlog that nothing bounds says so, and can be ended.
func prologOf(t *testing.T, n *node) {
	n.stack(t, "# none")
	s := n.on(t, 80, 24, "run", "-n2", "--task-prolog="+n.userFile(t, "hang", "#!/bin/sh\nexec sleep 1000\n", 0o755), "true")
	s.shows(t, "TaskProlog of tasks 0-1 runs for ")
	id := n.running(t).id()
	contains(t, "explain", n.ctlRoot(t, "explain", id).out, "TaskProlog or --task-prolog has not ended")
	if r := n.ctlRoot(t, "cancel", id); r.code != 0 {
		t.Error(r)
	}
	s.ends(t, 143)
}

var (
	bars    = regexp.MustCompile(`[▏▎▍▌▋▊▉█]+`)
	lengths = regexp.MustCompile(`[0-9.]+ ?(µs|ms|s)\b`)
	figures = regexp.MustCompile(` *[0-9]+\.[0-9]{3}`)
	numbers = regexp.MustCompile(`[0-9]`)
)

// normal takes what differs from run to run out of a line, and leaves what stands
// where it stood.
func (n *node) normal(name, line string) string {
	switch {
	case strings.HasSuffix(name, "help"):
		return strings.ReplaceAll(line, n.socket(), "SOCKET")
	case name == "timeline" && strings.HasPrefix(line, "  stepctl explain "):
		return "  stepctl explain 0.0; launch TIME" // and the stage that has taken the most of it
	case name == "timeline":
		line = figures.ReplaceAllStringFunc(line, func(s string) string { return strings.Repeat(" ", len(s)-1) + "T" })
		line, _, _ = strings.Cut(line, " 0  ") // the scale
		return bars.ReplaceAllString(regexp.MustCompile(` +([▏▎▍▌▋▊▉█])`).ReplaceAllString(line, " $1"), "#")
	}
	return numbers.ReplaceAllString(lengths.ReplaceAllString(strings.ReplaceAll(line, n.dir, "DIR"), "TIME"), "0")
}

func screenIs(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", "screens", name+".txt")
	if *updateScreens {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	if want := readFile(t, path); want != text {
		t.Errorf("%s (go test -run TestRootSeeing ./integration -update-screens writes it): want\n%s\ngot\n%s", path, want, text)
	}
}

// topOf drives top on terminals of two sizes, ends it by key and by signals, and
// looks at the terminal afterwards.
func topOf(t *testing.T, n *node, runs string) {
	for _, size := range [][2]uint16{{80, 24}, {200, 50}} {
		s := n.on(t, size[0], size[1], "top", "-d", "0.2")
		lines := s.shows(t, "sleeper")
		if len(lines) != int(size[1]) {
			t.Errorf("%d lines on a terminal of %d", len(lines), size[1])
		}
		for _, l := range lines {
			if utf8.RuneCountInString(strings.TrimRight(l, " ")) > int(size[0]) {
				t.Errorf("a line of %d columns: %q", utf8.RuneCountInString(l), l)
			}
		}
		s.press(t, "t")
		s.shows(t, "running") // the tasks
		s.press(t, "h")
		s.shows(t, "any key goes back")
		s.press(t, " ")
		s.press(t, "z")
		s.shows(t, "is suspended")
		s.press(t, "r")
		s.shows(t, "goes on")
		s.press(t, "sNOSUCH\r")
		s.shows(t, `there is no signal "NOSUCH"`)
		s.press(t, "q")
		s.ends(t, 0)
		eventually(t, callTimeout, "the screen to be given back", func() error {
			if said := s.text(); !strings.HasSuffix(said, "\x1b[?7h\x1b[?25h\x1b[?1049l") {
				return fmt.Errorf("it ends with %q", said[max(0, len(said)-80):])
			}
			return nil
		})
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		s := n.on(t, 80, 24, "top")
		s.shows(t, "sleeper")
		must(t, s.cmd.Process.Signal(sig))
		s.ends(t, 128+int(sig))
	}
	// What is no terminal gets one look.
	r := n.ctlRoot(t, "top")
	if r.code != 0 || !strings.Contains(r.out, "sleeper") || strings.Contains(r.out, "\x1b") || !strings.Contains(r.err, "no terminal") {
		t.Error(r)
	}
	if r := n.ctlRoot(t, "top", "--delay=0"); r.code != 1 {
		t.Error(r)
	}
	s := n.on(t, 80, 24, "top", runs)
	s.shows(t, "sleeper")
	s.press(t, "e")
	s.reads(t, "enter goes back to top")
	s.press(t, "\r")
	s.shows(t, "sleeper")
	// Ctrl-C is for attach, and not for top as well.
	s.press(t, "a")
	eventually(t, callTimeout, "attach", func() error { return s.runs("attach") })
	s.press(t, "\x03")
	s.reads(t, "enter goes back to top")
	s.press(t, "\r")
	s.shows(t, "sleeper")
	s.press(t, "s\r")
	s.shows(t, "got TERM")
	s.press(t, "\x03")
	s.ends(t, 0)
}
