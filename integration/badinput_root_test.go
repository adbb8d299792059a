package integration

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestRootBadInput: the verbs that look back on a step refuse what names none in one line, print a
// user's words clean, and say so where noded is gone, before its reply and in the middle of it.
func TestRootBadInput(t *testing.T) {
	n := startNode(t, site{})
	refused(t, "a name with an escape", n.ctl(t, "run", "-J", "a\x1b[2J", "true"), "control character")
	if r := n.ctl(t, "run", "-J", "日本", "sh", "-c", "exit 3", "\x1b]0;title\a\u202e日本"); r.code != 3 {
		t.Fatal(r)
	}
	verbs := []string{"explain", "timeline", "output", "events", "show", "stat", "ps"}
	for _, verb := range verbs {
		for id, want := range map[string]string{
			"99": `no such job "99"`, "99.0": `no such step "99.0"`, "1.7": `no such step "1.7"`, "1.batch": `no such step "1.batch"`,
			"1.4294967291": `no such step "1.batch"`, "0": `cannot parse "0"`, "0.0": `cannot parse step id "0.0"`, "1.": `cannot parse step id "1."`,
			"1.x": `cannot parse step id "1.x"`, "x": `cannot parse "x"`, "1.0.0": `cannot parse step id "1.0.0"`,
			"99999999999": `cannot parse "99999999999"`, "\x1b[2J": `cannot parse "\x1b[2J"`,
		} {
			if r := n.ctl(t, verb, id); r.code != 1 || r.out != "" && verb != "ps" || !strings.HasPrefix(r.err, "stepctl: error: "+want) || strings.Count(r.err, "\n") != 1 {
				t.Errorf("%s %q: %v, want %s", verb, id, r, want)
			}
		}
		if verb != "ps" && verb != "show" { // whose lists are for all users
			refused(t, "another user's "+verb, n.do(t, call{args: []string{verb, "1.0"}, uid: bob.uid}), "permission denied")
		}
	}
	for _, verb := range []string{"explain", "timeline", "show", "ps", "stat"} {
		r := n.ctl(t, verb, "1.0")
		if r.code != 0 || strings.ContainsAny(r.out, "\x1b\a\u202e") {
			t.Errorf("%s: %d, %q", verb, r.code, r.out)
		}
	}
	contains(t, "timeline", n.ctl(t, "timeline", "1").out, "step 1.0  FAILED", "\n  task 0: Exited with exit code 3\n  stepctl explain 1.0; launch ")
	picture := n.ctl(t, "timeline", "--svg", "-", "1").out
	contains(t, "the picture", picture, "<title>step 1.0  FAILED  ", "task 0: Exited with exit code 3")
	if strings.ContainsAny(picture, "\x1b\a") {
		t.Errorf("the picture has control characters: %q", picture)
	}
	for verb, words := range map[string]string{
		"cancel 1.0": "step 1.0 has ended", "cancel 1": "step 1.0 has ended", "signal 1.0": "step 1.0 has ended", "suspend 1.0": "step 1.0 has ended",
		"suspend 1": "job 1 has ended", "resume 1.0": "step 1.0 has ended", "resume 1": "job 1 has ended", "attach 1.0": "step 1.0 has ended (FAILED): `stepctl output 1.0` shows ",
	} {
		args := strings.Fields(verb)
		refused(t, verb+" of an ended step", n.ctl(t, args...), "stepctl: error: "+words)
		refused(t, verb+" of another user", n.do(t, call{args: args, uid: bob.uid}), "permission denied")
	}
	refused(t, "a step of an ended job", n.ctl(t, "run", "--jobid=1", "true"), `no such job "1"`)
	pathsOf(t, n)
	for name, reply := range map[string]string{
		"before the reply":           "",
		"in the middle of the reply": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"schema\":1,\"rec",
	} {
		socket := filepath.Join(t.TempDir(), "noded.sock")
		l, err := net.Listen("unix", socket)
		must(t, err)
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				c, err := l.Accept()
				if err != nil {
					return // it is closed
				}
				_, _ = c.Read(make([]byte, 64<<10)) // the request, or the client's end
				fmt.Fprint(c, reply)
				c.Close()
			}
		}()
		for _, args := range [][]string{
			{"cancel", "1.0"}, {"signal", "-s", "USR1", "1.0"}, {"suspend", "1"}, {"resume", "1"}, {"top", "--batch", "-n1"}, {"attach", "1.0"},
			{"node", "status"}, {"node", "drain", "x"}, {"node", "resume"}, {"show", "1"}, {"ps"}, {"ps", "--all"}, {"stat", "1"}, {"explain"}, {"alloc", "true"}, {"batch", "--wrap=true"},
		} {
			want := fmt.Sprintf("cannot hear noded at %q: the connection ended ", socket)
			if r := n.ctlRoot(t, append([]string{"--socket", socket}, args...)...); r.code != 1 || r.out != "" || !strings.HasPrefix(r.err, "stepctl: error: ") || !strings.Contains(r.err, want) || strings.Count(r.err, "\n") != 1 {
				t.Errorf("%q, noded gone %s: %v", args, name, r)
			}
		}
		for _, verb := range verbs {
			want := fmt.Sprintf("stepctl: error: cannot hear noded at %q: the connection ended ", socket)
			if r := n.ctlRoot(t, "--socket", socket, verb, "1.0"); r.code != 1 || r.out != "" && verb != "ps" || !strings.HasPrefix(r.err, want) || strings.Count(r.err, "\n") != 1 {
				t.Errorf("%s, noded gone %s: %v", verb, name, r)
			}
		}
		l.Close()
		<-served
	}
}

// pathsOf: paths of a user's in the errors of a launch, with escapes and characters of two columns,
// move no terminal, in the client's words, in the record and in explain's.
func pathsOf(t *testing.T, n *node) {
	const bad = "no\x1b[2J\x1b]0;title\a\u202e日本\nx"
	looked := false
	for _, args := range [][]string{
		{"run", "/" + bad}, {"run", "./" + bad}, {"run", bad}, {"run", "-o", "/" + bad + "/x", "true"}, {"run", "-i", bad, "true"}, {"run", "-D", "/" + bad, "true"},
		{"run", "--task-prolog=/" + bad, "true"}, {"run", "--multi-prog", bad}, {"batch", "-W", bad}, {"batch", "-W", "-o", "/" + bad + "/x", "--wrap=true"},
	} {
		before := len(n.ps(t, "--all"))
		r := n.ctl(t, args...)
		if r.code == 0 && args[1] != "-D" && !strings.HasPrefix(args[1], "--task-prolog") || strings.ContainsAny(r.err, "\x1b\a\u202e") || r.code != 0 && !strings.Contains(r.err, "日本") {
			t.Errorf("%q: %v", args, r)
		}
		if len(n.ps(t, "--all")) == before {
			continue // it was refused before it had a number
		}
		id := n.lastEnded(t).id()
		for _, verb := range []string{"explain", "show", "timeline", "ps"} {
			if r := n.ctl(t, verb, id); r.code != 0 || strings.ContainsAny(r.out, "\x1b\a\u202e") {
				t.Errorf("%q, %s: %q", args, verb, r.out)
			}
		}
		if args[1] != "-o" { // one of the steps is enough for all screens
			continue
		}
		looked = true
		for _, columns := range []int{40, 200} {
			for _, args := range [][]string{{"explain", id}, {"timeline", id}, {"show", id}, {"ps", id}, {"ps", "--all"}, {"stat", id}, {"node", "status"}} {
				n.fitsOn(t, columns, args...)
			}
		}
	}
	if !looked {
		t.Error("no step with such a path had screens")
	}
}

// fitsOn reports lines that are wider than the terminal on which stepctl writes them, but for a word
// that is, and what moves its cursor.
func (n *node) fitsOn(t *testing.T, columns int, args ...string) {
	t.Helper()
	s := n.on(t, uint16(columns), 24, args...)
	s.ends(t, 0)
	s.slave.Close()
	<-s.done // all is read
	text := strings.ReplaceAll(regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(s.text(), ""), "\r\n", "\n")
	if strings.ContainsAny(text, "\x1b\a\u202e\r") || !strings.Contains(text, "\n") {
		t.Errorf("%q on %d columns: %q", args, columns, text)
	}
	for line := range strings.Lines(text) {
		width := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
		for _, r := range line {
			if unicode.Is(unicode.Han, r) { // of two columns
				width++
			}
		}
		if width > columns && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("%q on %d columns: a line of %d: %q", args, columns, width, line)
		}
	}
}

// TestRootExplainWaits: of what waits, explain says for what, and when that comes free: for the CPUs of a
// job that another step has, and for a prolog, with a number and without a step.
func TestRootExplainWaits(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	alloc := n.start(t, call{args: []string{"alloc", "-n2", "sh", "-c", "until [ -e over ]; do sleep 0.01; done"}})
	eventually(t, callTimeout, "the allocation", func() error {
		if r := n.ctl(t, "explain", "1"); r.out != "job 1  has no step yet\n  stepctl run --jobid 1 COMMAND starts one\n" {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	has := n.start(t, call{args: []string{"run", "--jobid=1", "-n2", "-t1", "sh", "-c", "until [ -e go ]; do sleep 0.01; done"}})
	n.running(t)
	waits := n.start(t, call{args: []string{"run", "--jobid=1", "-n2", "-J", "second", "true"}})
	want := regexp.MustCompile(`(?m)^  waits: for 2 CPUs of job 1\b.*free at \d\d:\d\d.*\n    stepctl ps 1 shows who has them; second, 2 tasks, waits for \d+s$`)
	eventually(t, callTimeout, "what waits", func() error {
		if r := n.ctl(t, "explain", "1"); !want.MatchString(r.out) {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	// One that has no job, and no number, is explained by its user and root.
	room := n.start(t, call{args: []string{"run", "--immediate=inf", "-n63", "-J", "big", "true"}})
	request := regexp.MustCompile(`^request big of \S+, 63 tasks: WAITING for \d+s, without a number yet\n  waits: for room: it needs 63 CPUs on this node.*job 1 has no time limit\n    stepctl ps shows who has it; Ctrl-C in its terminal gives up\n$`)
	eventually(t, callTimeout, "the request for room", func() error {
		r := n.ctl(t, "explain")
		if small := regexp.MustCompile(`(?m)^request second of .*\n.*\n.*\n`); !request.MatchString(small.ReplaceAllString(r.out, "")) || !small.MatchString(r.out) {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	if r := n.ctlRoot(t, "explain", "--json"); strings.Count(r.out, `"for":`) != 2 {
		t.Errorf("root: %v", r)
	}
	if r := n.do(t, call{args: []string{"explain"}, uid: 65534}); r.code != 0 || r.out != "no request waits: stepctl explain JOB[.STEP] explains a step\n" {
		t.Errorf("another user: %v", r)
	}
	if r := n.ctl(t, "ps"); !regexp.MustCompile(`(?m)^- +big +\S+ +WAITING +63 +\d:\d\d +\(room: it needs 63 CPUs`).MatchString(r.out) {
		t.Errorf("ps: %v", r)
	}
	n.userFile(t, "go", "", 0o644)
	for _, p := range []*process{has, waits, alloc, room} {
		if p == alloc {
			n.userFile(t, "over", "", 0o644)
		}
		if r := p.wait(t); r.code != 0 {
			t.Error(r)
		}
	}
	n.script(t, "slow.sh", n.path("marks"), "until [ -e "+n.path("end")+" ]; do sleep 0.01; done")
	n.restartWith(t, "Prolog=slow.sh\nPrologFlags=Alloc\n")
	run := n.start(t, call{args: []string{"run", "true"}})
	alloc = n.start(t, call{args: []string{"alloc", "true"}})
	for what, want := range map[string]string{
		"prolog of a run":    `^step (3|4)\.0  STARTING: the step is being launched: it is at stage prolog for .*\n  stage: for .* the launch is at its stage prolog: the job's prolog runs\n    PrologEpilogTimeout in slurm\.conf bounds it; stepctl cancel (3|4)\.0 ends it\n$`,
		"prolog of an alloc": `^job (3|4)  has no step yet\n  prolog: the job waits for its prolog, which runs for \d+s\n    PrologEpilogTimeout in slurm\.conf bounds it; stepctl cancel (3|4) ends it\n$`,
	} {
		eventually(t, callTimeout, what, func() error {
			three, four := n.ctl(t, "explain", "3"), n.ctl(t, "explain", "4")
			if re := regexp.MustCompile(want); !re.MatchString(three.out) && !re.MatchString(four.out) {
				return fmt.Errorf("%v, %v", three, four)
			}
			return nil
		})
	}
	n.write(t, "end", "")
	for _, p := range []*process{run, alloc} {
		if r := p.wait(t); r.code != 0 {
			t.Error(r)
		}
	}
}
