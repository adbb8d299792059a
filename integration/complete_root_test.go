package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"stepd/api"
)

// completer asks a real shell what it would complete a line to.
type completer struct {
	shell string
	run   func(ctx context.Context, script, line string) *exec.Cmd
}

// completers: bash with the functions of bash-completion, which every system has;
// fish, which prints it; zsh, whose function of lists prints them here.
func completers() []completer {
	return []completer{
		{"bash", func(ctx context.Context, script, line string) *exec.Cmd {
			return exec.CommandContext(ctx, "bash", "--norc", "-c", `
. /usr/share/bash-completion/bash_completion
. "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_TYPE=63 COMP_KEY=9
read -ra COMP_WORDS <<<"$2"
[[ $2 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
__start_stepctl
printf '%s\n' "${COMPREPLY[@]}"`, "bash", script, line)
		}},
		{"fish", func(ctx context.Context, script, line string) *exec.Cmd {
			return exec.CommandContext(ctx, "fish", "--no-config", "-c", `source $argv[1]; complete -C "$argv[2]"`, script, line)
		}},
		{"zsh", func(ctx context.Context, script, line string) *exec.Cmd {
			return exec.CommandContext(ctx, "zsh", "-f", "-c", `
compdef() { :; }
_describe() { print -rl -- "${completions[@]}"; }
. $1
words=(${=2})
[[ $2 == *' ' ]] && words+=('')
CURRENT=$#words
_stepctl`, "zsh", script, line)
		}},
	}
}

// TestRootCompletion: real shells complete verbs, options, plugins' options, and the
// numbers of steps: what can be cancelled is running, and the caller's own.
func TestRootCompletion(t *testing.T) {
	n := startNode(t, site{})
	n.stack(t, "optional "+buildClient(t, n))
	if r := n.ctl(t, "run", "true"); r.code != 0 {
		t.Fatal(r)
	}
	over := n.lastEnded(t).id()
	step := n.start(t, call{args: []string{"run", "-J", "mine", "sleep", "60"}})
	id := fmt.Sprintf("%d.0", n.running(t).JobID)
	holds := n.start(t, call{args: []string{"alloc", "sleep", "60"}})
	alone := n.allocation(t)
	for _, verb := range []string{"cancel", "signal", "suspend", "attach", "show"} {
		args := []string{"__complete", verb, ""} // what the shells' scripts call
		own, others := n.ctl(t, args...), n.do(t, call{args: args, uid: bob.uid})
		if !strings.Contains(own.out, id+"\t") || strings.Contains(own.out, over+"\t") != (verb == "show") {
			t.Errorf("%s: %s runs, %s has ended: %v", verb, id, over, own)
		}
		if strings.Contains(others.out, id) || strings.Contains(others.out, fmt.Sprint(alone)+"\t") {
			t.Errorf("%s: another user's: %v", verb, others)
		}
	}
	for _, c := range completers() {
		t.Run(c.shell, func(t *testing.T) {
			if _, err := exec.LookPath(c.shell); err != nil {
				missing(t, c.shell+" is not installed")
			}
			r := n.ctl(t, "completion", c.shell)
			if r.code != 0 || r.out == "" {
				t.Fatal(r)
			}
			script := n.write(t, "completion."+c.shell, r.out)
			for _, l := range []struct{ line, want string }{
				{"stepctl ti", "timeline"},
				{"stepctl run --nta", "--ntasks"},
				{"stepctl run --bo", "--both"},
				{"stepctl show ", id},
				{"stepctl run -n2 stdb", "stdbuf"},
				{"stepctl cancel ", fmt.Sprint(alone)},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
				defer cancel()
				cmd := c.run(ctx, script, l.line)
				cmd.Dir = n.wd
				cmd.Env = append(os.Environ(), "NODED_SOCKET="+n.socket(), "PATH="+filepath.Dir(n.bin)+":"+os.Getenv("PATH"), "HOME="+n.wd)
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), l.want) {
					t.Errorf("%q: %v: want %q in %q", l.line, err, l.want, out)
				}
			}
		})
	}
	if r := n.ctlRoot(t, "cancel", id); r.code != 0 {
		t.Error(r)
	}
	if r := n.ctlRoot(t, "cancel", fmt.Sprint(alone)); r.code != 0 {
		t.Error(r)
	}
	step.wait(t)
	holds.wait(t)
}

// allocation waits for a job that has no step, and returns its number.
func (n *node) allocation(t testing.TB) (job uint32) {
	t.Helper()
	eventually(t, callTimeout, "a job without a step", func() error {
		var doc struct{ Node api.Node }
		r := n.ctlRoot(t, "node", "status", "--json")
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
			return err
		}
		for _, j := range doc.Node.Jobs {
			if len(j.Steps) == 0 {
				job = j.ID
				return nil
			}
		}
		return fmt.Errorf("the node has %+v", doc.Node.Jobs)
	})
	return job
}
