package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The measured failures: what a command does when a callback fails or a plugin
// does not load. A case is a row of the raw failures.tsv, named by its first
// three cells; what a batch script's output file held is part of its case.

// outcome is what one case has done.
type outcome struct {
	code      string
	ran       string              // which of salloccmd, batch and task have run
	job       string              // completed, failed, or none: no job came to be
	record    *stepDoc            // of the job's last step
	log       string              // what noded's log has of it
	callbacks map[string][]string // A, L, J and R: in their canonical order
	options   map[string][]string // by actor: what options' callbacks were given
	second    map[string][]string // by actor: the calls of the stack's second plugin
	node      string              // "idle", or "drained: REASON"
	says      []string            // lines on the command's stderr
	output    []string            // lines in the script's output file, but for its own
}

// notRecorded is the value of what a recording has left out.
const notRecorded = "not recorded"

var letters = map[int]string{1: "L", 2: "R", 3: "A", 5: "J"}

// hookOrder is the order in which callbacks are listed.
var hookOrder = []string{"init", "opt_cb", "init_post_opt", "local_user_init", "user_init", "task_init_privileged", "task_post_fork",
	"task_init", "task_exit", "exit", "job_prolog", "job_epilog"}

// sorted puts callbacks into their canonical order: the order of the
// calls is compared by the traces, and races here.
func (o *outcome) sorted() {
	for _, list := range o.callbacks {
		slices.SortStableFunc(list, byHook)
	}
}

// facts lists an outcome's facts but for what was said; what was not recorded
// is none.
func (o *outcome) facts() map[string]string {
	state, reason, _ := strings.Cut(o.node, ": ")
	facts := map[string]string{"exit code": o.code, "ran": o.ran, "job": o.job, "node": state}
	if reason != "" {
		facts["drain reason"] = reason
	}
	for _, letter := range letters {
		switch list := o.callbacks[letter]; {
		case len(list) == 1 && list[0] == notRecorded:
		case len(list) > 0:
			facts["callbacks "+letter] = strings.Join(list, " ")
		default:
			facts["callbacks "+letter] = absent
		}
	}
	return facts
}

// wordings are what the original's lines tell beyond their wording. It says
// twice or three times what one line says here, which must hold that.
var wordings = []struct {
	line *regexp.Regexp
	tell string
}{
	{regexp.MustCompile(`^error: plugin_load_from_file: dlopen\(.*?\): (.*)$`), "$1"},
	{regexp.MustCompile(`^plugin_load_from_file: Incompatible Slurm plugin (.*) version .*$`), "$1"},
	{regexp.MustCompile(`^error: spank: (.*): (?:Dlopen of plugin file failed|Plugin name/type/version symbol missing|Incompatible plugin version)$`), "$1"},
	{regexp.MustCompile(`^error: spank: "(.*)" exports 0 symbols$`), "$1"},
	{regexp.MustCompile(`^error: spank: (.*: Failed to load plugin .* Aborting)\.$`), "$1"},
	{regexp.MustCompile(`^error: spank: Invalid option (".*")\. Must be required, optional or include$`), "$1"},
	{regexp.MustCompile(`^error: spank: Failed to open (.*): Permission denied$`), "$1"},
	{regexp.MustCompile(`^error: (?:Task launch for StepId= JOB.0 failed on node vm|Application launch failed): (.*)$`), "$1"},
	{regexp.MustCompile(`^spank: ETC/plugstack.conf:[0-9]+:(Failed to load optional plugin .* Ignored)\.$`), "$1"},
	// Lines that follow the one that names the plugin and the callback.
	{regexp.MustCompile(`^error: (?:spank_user failed\.|spank_task_init_privileged failed|Failed to invoke spank plugin stack|spank task [0-9]+ post-fork failed|spank_fini failed|slurmd initialization failed)$`), ""},
	{regexp.MustCompile(`^(?:Job step aborted|Prolog failure on node vm)$`), ""},
	{regexp.MustCompile(`^error: (?:write to unblock task [0-9]+ failed: Broken pipe|_exec_wait_child_wait_for_parent: failed: No error)$`), ""},
	{regexp.MustCompile(`^error: (.*)$`), "$1"},
}

// told is what a line of the original tells.
func told(line string) string {
	_, line = speaker(line)
	for _, w := range wordings {
		if w.line.MatchString(line) {
			return w.line.ReplaceAllString(line, w.tell)
		}
	}
	return line
}

// speaker parts a line from its speaker, "[client]", "[step]" or "".
func speaker(line string) (who, text string) {
	if strings.HasPrefix(line, "[") {
		if who, text, ok := strings.Cut(line, "] "); ok {
			return who + "]", text
		}
	}
	return "", line
}

// failedLine is our report of a step or job that has failed, or of a plugin that is optional;
// the cause behind it is the plugin's own line again.
var failedLine = regexp.MustCompile(`^(error: (?:step|batch job) JOB(?:\.0)?: (?:FAILED|no task ran)|warning: spank: optional plugin probe.so): .*$`)

// compareSaid compares what was said on a stream: ours must hold all that the
// original tells, and what else ours says is a fact as well.
func compareSaid(r *report, name, stream string, theirs, ours []string) {
	r.t.Helper()
	var parts []string
	for _, line := range theirs {
		if part := told(line); part != "" && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	for _, part := range parts {
		got := absent
		if slices.ContainsFunc(ours, func(line string) bool { return strings.Contains(line, part) }) {
			got = "said"
		}
		r.fact(name, name, stream+": "+part, "said", got)
	}
	var more []string
	for _, line := range ours {
		_, text := speaker(line)
		if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(line, part) }) {
			continue
		}
		text = failedLine.ReplaceAllString(text, "$1")
		if !slices.Contains(more, text) {
			more = append(more, text)
			r.fact(name, name, stream+", more: "+text, absent, "said")
		}
	}
	if len(parts) == 0 && len(more) == 0 {
		r.fact(name, name, stream, "nothing", "nothing")
	}
}

var (
	rawPrefix = regexp.MustCompile(`^(srun|salloc|sbatch): `)
	rawJob    = regexp.MustCompile(`\b(allocation|StepId=) ?[0-9]+`)
)

// reduceFailures makes the reduced failures of the raw ones.
func reduceFailures(t testing.TB, dir string) (names []string, outcomes map[string]*outcome) {
	t.Helper()
	outcomes = map[string]*outcome{}
	raw, lastJob := readFile(t, filepath.Join(dir, "failures.tsv")), ""
	for _, line := range strings.Split(strings.TrimSuffix(raw, "\n"), "\n")[1:] {
		cells := strings.Split(line, "\t")
		if cells[2] == "sbatch-output-file" {
			outcomes[strings.Join([]string{cells[0], cells[1], "sbatch"}, ", ")].output = said(cells[8])
			continue
		}
		o := &outcome{code: cells[3], ran: strings.Trim(cells[4], ","), callbacks: map[string][]string{}, says: said(cells[8])}
		job, info, _ := strings.Cut(cells[7], " ")
		switch { // the last job's information stays where none came to be
		case job == lastJob, lastJob == "": // nor did it in the first case
			o.job = "none"
		case strings.HasPrefix(info, "JobState=COMPLETED"):
			o.job = "completed"
		default:
			o.job = "failed"
		}
		lastJob = job
		for _, call := range strings.Fields(cells[5]) {
			letter, cb, _ := strings.Cut(call, ":")
			o.callbacks[letter] = append(o.callbacks[letter], cb)
		}
		// Of these cases the prolog and the epilog were not recorded.
		if strings.Contains(cells[0], "remote only") || strings.HasPrefix(cells[0], "option cb") ||
			strings.Contains(cells[0], " returns ") && !strings.HasPrefix(cells[0], "job_prolog") {
			o.callbacks["J"] = []string{notRecorded}
		}
		o.sorted()
		state, reason, _ := strings.Cut(cells[6], "/")
		if o.node = state; state != "idle" {
			o.node += ": " + reason
		}
		name := strings.Join(cells[:3], ", ")
		names = append(names, name)
		outcomes[name] = o
	}
	return names, outcomes
}

// said splits what the original has said, and names what is its own.
func said(text string) []string {
	var lines []string
	for _, line := range strings.Split(text, "|") {
		if line == "" {
			continue
		}
		line = rawPrefix.ReplaceAllString(line, "[client] ")
		line = strings.Replace(line, "slurmstepd-vm: ", "[step] ", 1)
		line = strings.NewReplacer("/srv/probe/plug", "PLUGINS", "/srv/probe/etc", "ETC").Replace(line)
		line = rawJob.ReplaceAllString(line, "$1 JOB")
		lines = append(lines, line)
	}
	return lines
}

const failuresFile = "testdata/traces/failures.tsv"

// contextLetters are the columns of the callbacks.
var contextLetters = []string{"A", "L", "J", "R"}

// writeFailures stores the reduced failures, a case in a row.
func writeFailures(t testing.TB, names []string, outcomes map[string]*outcome) {
	t.Helper()
	var b strings.Builder
	b.WriteString("case\texit code\tran\tjob\tnode\t" + strings.Join(contextLetters, "\t") + "\tstderr\toutput\n")
	for _, name := range names {
		o := outcomes[name]
		cells := []string{name, o.code, o.ran, o.job, o.node}
		for _, letter := range contextLetters {
			cells = append(cells, strings.Join(o.callbacks[letter], "|"))
		}
		b.WriteString(strings.Join(append(cells, strings.Join(o.says, "|"), strings.Join(o.output, "|")), "\t") + "\n")
	}
	must(t, os.WriteFile(failuresFile, []byte(b.String()), 0o644))
}

// readFailures reads what writeFailures has stored.
func readFailures(t testing.TB) (names []string, outcomes map[string]*outcome) {
	t.Helper()
	list := func(cell string) []string {
		return strings.FieldsFunc(cell, func(c rune) bool { return c == '|' })
	}
	outcomes = map[string]*outcome{}
	for _, cells := range readTSV(t, failuresFile)[1:] {
		o := &outcome{code: cells[1], ran: cells[2], job: cells[3], node: cells[4], callbacks: map[string][]string{}}
		for i, letter := range contextLetters {
			o.callbacks[letter] = list(cells[5+i])
		}
		o.says, o.output = list(cells[9]), list(cells[10])
		names = append(names, cells[0])
		outcomes[cells[0]] = o
	}
	return names, outcomes
}
