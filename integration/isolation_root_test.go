package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// misdeed is something that rude.so does in a hook, and what may come of it.
type misdeed struct {
	do string
	in []string // hooks; nil is every one of the remote context
	// kills: the process that called the hook is at its end, and this is told.
	kills string
	// told: the step goes on, and noded's log names plugin, hook and this, but
	// for the hooks where nothing has to be taken back.
	told  string
	quiet []string
	// inherit: from these hooks the tasks have what was done, as they should.
	inherit []string
	// ends checks the end instead of all this.
	ends func(t *testing.T, c *rudeStep)
	rank int  // in whose hooks
	slow bool // it takes longer than the tasks
}

// rudeStep is one step with one misdeed: rank 0 exits with 3 at once, and rank
// 1 with 0 after a while.
type rudeStep struct {
	misdeed
	hook, flag string
	result     result
	doc        stepDoc
	log        string // noded's, of this step
}

// endsEarly: the end of rank 0 ends the step, while rank 1 runs.
func (c *rudeStep) endsEarly() bool {
	return c.kills != "" && c.flag == "required" && c.hook == "task_exit" && c.rank == 0 && !c.slow
}

func (c *rudeStep) String() string { return fmt.Sprintf("%s in %s, %s", c.do, c.hook, c.flag) }

// rudeTask reports what a task has from its birth, on one line.
const rudeTask = `
s=
while read k v; do case $k in Umask:|Uid:|Gid:|Groups:|CapEff:|SigBlk:|SigIgn:) s="$s $k$v";; esac; done </proc/$$/status
while read a b c d e f; do case "$a $b $c" in "Max open files"|"Max core file"|"Max processes "*) s="$s $d $e $f";; esac; done </proc/$$/limits
for f in /proc/$$/fd/*; do s="$s ${f##*/}"; done
echo "rank $SLURM_PROCID in $PWD$s"
test $SLURM_PROCID = 0 && exit 3
sleep ${LATE-0.2}
echo late
`

// stepsOf makes a step of every hook of a misdeed, for both flags.
func stepsOf(misdeeds []misdeed) []*rudeStep {
	var steps []*rudeStep
	for _, m := range misdeeds {
		hooks := m.in
		if hooks == nil {
			hooks = remoteHooks
		}
		for _, hook := range hooks {
			for _, flag := range []string{"required", "optional"} {
				steps = append(steps, &rudeStep{misdeed: m, hook: hook, flag: flag})
			}
		}
	}
	return steps
}

// rudeStack has one plugin of each kind; the steps say what they do.
func rudeStack(t *testing.T, n *node) {
	t.Helper()
	so := buildRude(t, n)
	n.stack(t, "required "+so+" order=RUDE_REQUIRED option", "optional "+so+" order=RUDE_OPTIONAL")
	n.userFile(t, "rude.sh", rudeTask, 0o644)
}

var jobLine = regexp.MustCompile(`(?m)^stepctl: job (\d+) step (\d+)\n`)

// run runs one step.
func (c *rudeStep) run(t testing.TB, n *node) (id string) {
	late := "0.2"
	switch {
	case c.endsEarly():
		late = "100"
	case c.do == "thread-crash":
		late = "1" // the thread crashes after 0.3 s
	}
	r := n.do(t, call{
		args: []string{"run", "-v", "-n", "2", "sh", filepath.Join(n.wd, "rude.sh")},
		env:  []string{"SCRIBBLE=over=this", "LATE=" + late, fmt.Sprintf("RUDE_%s=hook=%s do=%s rank=%d", strings.ToUpper(c.flag), c.hook, c.do, c.rank)},
	})
	m := jobLine.FindStringSubmatch(r.err)
	if m == nil {
		t.Errorf("%v: no step was made: %v", c, r)
		return "" // its judge has nothing to see
	}
	r.err = strings.Replace(r.err, m[0], "", 1)
	c.result = r
	return m[1] + "." + m[2]
}

// runSteps runs them, width at a time, and learns how they ended.
func runSteps(t *testing.T, n *node, steps []*rudeStep, width int) {
	t.Helper()
	ids := make([]string, len(steps))
	var wg sync.WaitGroup
	next := make(chan int)
	for range width {
		wg.Go(func() {
			for i := range next {
				ids[i] = steps[i].run(t, n)
			}
		})
	}
	for i := range steps {
		next <- i
	}
	close(next)
	wg.Wait()
	n.checkClean(t) // noded knows of every end then
	docs := make(map[string]stepDoc)
	for _, doc := range n.ps(t, "--all") {
		docs[doc.id()] = doc
	}
	logs := make(map[string]string)
	step := regexp.MustCompile(`step=(\S+)`)
	for line := range strings.Lines(n.wholeLog(t)) {
		if m := step.FindStringSubmatch(line); m != nil {
			logs[m[1]] += strings.ReplaceAll(line, `\"`, `"`)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	for i, c := range steps {
		c.doc, c.log = docs[ids[i]], logs[ids[i]]
	}
}

// judge checks the end of one step. asEver is what its tasks print when nothing
// was done.
func (c *rudeStep) judge(t *testing.T, asEver []string) {
	t.Helper()
	onlyOurLines(t, c.result)
	switch {
	case c.ends != nil:
		c.ends(t, c)
	case c.kills != "":
		c.judgeKilled(t)
	default:
		c.judgeHarmless(t, asEver)
	}
}

// judgeKilled: before the gate no task execs; after it a
// required plugin ends the step and an optional one does not.
func (c *rudeStep) judgeKilled(t *testing.T) {
	t.Helper()
	r, doc := c.result, c.doc
	where := "slurm_spank_" + c.hook
	if strings.HasPrefix(c.hook, "task_") {
		where += fmt.Sprintf(" (rank %d)", c.rank)
	}
	want := fmt.Sprintf("plugin %q: %s: %s", "rude.so", where, c.kills)
	if !strings.Contains(r.err, want) {
		t.Errorf("stderr: want %q, got %v", want, r)
	}
	if !strings.Contains(doc.Reason, want) {
		t.Errorf("reason: want %q, got %q", want, doc.Reason)
	}
	ran := func(rank int) bool { return strings.Contains(r.out, fmt.Sprintf("rank %d in ", rank)) }
	late := strings.Contains(r.out, "late\n")
	switch {
	case beforeGate(c.hook):
		if r.code != 1 || r.out != "" || doc.State != "FAILED" {
			t.Errorf("want FAILED, exit code 1 and no task: state %s, %v", doc.State, r)
		}
	case inChild(c.hook):
		other, code, state := 1-c.rank, 1, "FAILED"
		_, _ = fmt.Sscanf(c.kills, "called exit(%d)", &code) // another end counts as 1
		if code = max(code, 3*c.rank); code == 0 {
			state = "COMPLETED"
		}
		if r.code != code || !ran(other) || ran(c.rank) || late != (other == 1) || doc.State != state {
			t.Errorf("want %s, exit code %d and rank %d alone: state %s, %v", state, code, other, doc.State, r)
		}
	case c.flag == "required":
		if r.code != 1 || doc.State != "FAILED" || (c.endsEarly() && late) {
			t.Errorf("want FAILED, exit code 1 and the tasks killed: state %s, %v", doc.State, r)
		}
	default:
		if r.code != 3 || !late || !ran(0) || !ran(1) {
			t.Errorf("want the tasks' own end, exit code 3: state %s, %v", doc.State, r)
		}
	}
}

// judgeHarmless: the step ends as its tasks do, and they were none the wiser.
func (c *rudeStep) judgeHarmless(t *testing.T, asEver []string) {
	t.Helper()
	r := c.result
	out := sortedLines(r.out)
	if r.code != 3 || len(out) != len(asEver) || r.err != "stepctl: error: vm: task 0: Exited with exit code 3\n" {
		t.Errorf("want the tasks' own end, exit code 3: state %s, %q, %v", c.doc.State, c.doc.Reason, r)
	} else if inherits := slices.Contains(c.inherit, c.hook); slices.Equal(out, asEver) == inherits {
		t.Errorf("the tasks have what was done: want %v\n got %q\nwant %q", inherits, out, asEver)
	}
	blames := regexp.MustCompile(fmt.Sprintf(`plugin "rude.so": slurm_spank_%s: [^"]*`, c.hook)).FindString(c.log)
	told := c.told
	if slices.Contains(c.quiet, c.hook) {
		told = ""
	}
	if (told == "") != (blames == "") || !strings.Contains(blames, told) {
		t.Errorf("noded's log: want %q of the plugin, got %q", told, blames)
	}
}

// runMisdeeds runs every misdeed and judges it.
func runMisdeeds(t *testing.T, n *node, misdeeds []misdeed, width int) {
	t.Helper()
	rudeStack(t, n)
	plain := &rudeStep{misdeed: misdeed{do: "nothing"}, hook: "none", flag: "required"}
	steps := append([]*rudeStep{plain}, stepsOf(misdeeds)...)
	runSteps(t, n, steps, width)
	asEver := sortedLines(plain.result.out)
	if len(asEver) != 3 || plain.result.code != 3 {
		t.Fatalf("without a misdeed: %v", plain.result)
	}
	for _, c := range steps[1:] {
		if only := os.Getenv("ONLY"); only != "" && !strings.Contains(c.String(), only) {
			continue
		}
		t.Run(c.String(), func(t *testing.T) { c.judge(t, asEver) })
	}
	n.serves(t)
}
