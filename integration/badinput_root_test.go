package integration

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
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
	contains(t, "timeline", n.ctl(t, "timeline", "1").out, "step 1.0  FAILED", "task 0: Exited with exit code 3 (stepctl explain 1.0)")
	picture := n.ctl(t, "timeline", "--svg", "-", "1").out
	contains(t, "the picture", picture, "<title>step 1.0  FAILED  ", "task 0: Exited with exit code 3")
	if strings.ContainsAny(picture, "\x1b\a") {
		t.Errorf("the picture has control characters: %q", picture)
	}
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
