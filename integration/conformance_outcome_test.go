package integration

import (
	"regexp"
	"strings"
	"testing"
)

// drainState notes the node's state and makes it idle again.
func (n *node) drainState(t testing.TB, o *outcome) {
	t.Helper()
	status := n.status(t)
	if o.node = strings.ToLower(status.State); o.node == "idle" {
		return
	}
	o.node += ": " + ourJob.ReplaceAllString(n.names().Replace(status.Reason), "job JOB")
	if r := n.ctlRoot(t, "node", "resume"); r.code != 0 {
		t.Fatalf("stepctl node resume: %v", r)
	}
}

// jobs are the numbers of the jobs that the node knows.
func (n *node) jobs(t testing.TB) map[uint32]bool {
	t.Helper()
	jobs := map[uint32]bool{}
	for _, s := range n.ps(t, "--all") {
		jobs[s.JobID] = true
	}
	return jobs
}

// lastStep is the record of the last step of the case's job, which of a batch job is the
// script's own; nil where no job came to be.
func (n *node) lastStep(t testing.TB, before map[uint32]bool) (last *stepDoc) {
	t.Helper()
	for _, s := range n.ps(t, "--all") {
		if !before[s.JobID] && (last == nil || s.StepID > last.StepID) {
			last = &s
		}
	}
	return last
}

// jobOutcome reports how the case's job has ended: by the code of its last step.
func jobOutcome(last *stepDoc) string {
	switch {
	case last == nil:
		return "none"
	case last.ExitCode != nil && *last.ExitCode == 0:
		return "completed"
	}
	return "failed"
}

var (
	ourJob    = regexp.MustCompile(`job [0-9]+`)
	ourPrefix = regexp.MustCompile(`^stepctl: `)
	ourJobID  = regexp.MustCompile(`\b(allocation|job|step) [0-9]+`)
)

// names replaces the node's own paths.
func (n *node) names() *strings.Replacer {
	return strings.NewReplacer(n.path("plug")+"/", "PLUGINS/", n.dir, "ETC", "\t", " ", "|", "/")
}

// said splits what our commands have said, and names what is ours.
func (n *node) said(text string) []string {
	var lines []string
	for _, line := range strings.Split(n.names().Replace(text), "\n") {
		if line == "" {
			continue
		}
		line = ourPrefix.ReplaceAllString(line, "[client] ")
		line = strings.Replace(line, "stepd-vm: ", "[step] ", 1)
		line = ourJobID.ReplaceAllString(line, "$1 JOB")
		lines = append(lines, line)
	}
	return lines
}
