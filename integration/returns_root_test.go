package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestRootRecordOfAFailure: what the commands print of a required plugin's failure that Slurm has 0
// for, and of the same with SpankStrict=yes, is what the commands end with.
func TestRootRecordOfAFailure(t *testing.T) {
	waits(t)
	long := strings.Repeat("l", 240) + ".so"
	for _, c := range []struct {
		name, flag, fail string
		strict           bool
		args             []string
		code             int
		says             string // the command, on stderr
		record           string // state and exit code; "" is not looked at
		reason           string
	}{
		{"no task ran", "required", "user_init=3000@2", false, []string{"run", "-n4", "true"}, 0, "no task ran: plugin \"probe.so\": slurm_spank_user_init: failed with rc=3000", "COMPLETED 0", "slurm_spank_user_init: failed with rc=3000"},
		{"exit after the end", "required", "exit=-1@1", true, []string{"run", "true"}, 1, "exit() failed with rc=-1", "FAILED 1", "slurm_spank_exit: failed with rc=-1"},
		{"exit of a plugin with a long name", "required", "exit=-1@1", true, []string{"run", "true"}, 1, "exit() failed with rc=-1", "FAILED 1", long[:40]},
		{"exit after a failure of the step's own", "required", "exit=-1@1", true, []string{"run", "sh", "-c", "exit 7"}, 7, "exit() failed with rc=-1", "FAILED 7", "Exited with exit code 7"},
		{"exit of batch", "required", "exit=-1@3", true, []string{"batch", "-o", "/dev/null", "--wrap", "sleep 86399"}, 1, "exit() failed with rc=-1", "CANCELLED", "slurm_spank_exit: failed with rc=-1"},
		{"exit of batch in Slurm", "required", "exit=-1@3", false, []string{"batch", "-o", "/dev/null", "--wrap", "true"}, 0, "exit() failed with rc=-1", "COMPLETED 0", ""},
		{"an option's callback", "required", "none=0", true, []string{"run", "--preg=RFAIL", "true"}, 1, "", "FAILED 1", "plugin \"probe.so\": option callback: failed with rc=-1"},
		{"an optional option's callback", "optional", "none=0", true, []string{"run", "--preg=RFAIL", "true"}, 0, "", "COMPLETED 0", ""},
		{"an optional hook", "optional", "init=-2147483648", true, []string{"run", "-n4", "true"}, 0, "warning: spank: optional plugin probe.so: init() failed with rc=-2147483648", "COMPLETED 0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := startNode(t, site{Stepd: map[bool]string{true: "SpankStrict=yes\n"}[c.strict]})
			so := buildProbe(t, n, ownHeaders, n.recordFile(t))
			if strings.Contains(c.reason, long[:40]) {
				must(t, os.Rename(so, n.path(long)))
				so = n.path(long)
			}
			n.stack(t, fmt.Sprintf("%s %s tag=A lite fail=%s", c.flag, so, c.fail))
			r := n.do(t, call{args: c.args})
			if r.code != c.code || !strings.Contains(r.err, c.says) {
				t.Errorf("want exit code %d and %q, got %v", c.code, c.says, r)
			}
			if n := strings.Count(r.err, "warning: "); n != strings.Count(c.says, "warning: ") {
				t.Errorf("%d warnings: %q", n, r.err)
			}
			n.idle(t)
			rec := n.lastEnded(t)
			state := rec.State
			if rec.ExitCode != nil && state != "CANCELLED" {
				state += fmt.Sprintf(" %d", *rec.ExitCode)
			}
			if state != c.record || !strings.Contains(strings.ReplaceAll(rec.Reason, `\"`, `"`), c.reason) {
				t.Errorf("the record is %s: %q; want %s: %q", state, rec.Reason, c.record, c.reason)
			}
			events := strings.Split(strings.TrimSpace(n.ctlRoot(t, "events", rec.id()).out), "\n")
			if last := events[len(events)-1]; !strings.Contains(last, fmt.Sprintf("%q", rec.State)) {
				t.Errorf("the last event is %q, and the record %s", last, rec.State)
			}
			if c.reason == "" {
				return
			}
			hook, _, _ := strings.Cut(strings.TrimPrefix(c.reason, "plugin "), ":") // the event log and the record have the rest in words of their own
			if r := n.ctlRoot(t, "explain", rec.id()); !strings.Contains(strings.ReplaceAll(r.out, "\n", ""), hook) {
				t.Errorf("explain does not name %q: %v", hook, r)
			}
		})
	}
}
