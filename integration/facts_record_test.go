package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// record is one line of the recording plugin (testdata/probe/probe.c).
type record struct {
	Tag        string                     `json:"tag"`
	CB         string                     `json:"cb"`
	Ctx        int                        `json:"ctx"`
	T          float64                    `json:"t"`
	PID        int                        `json:"pid"`
	PPID       int                        `json:"ppid"`
	TID        int                        `json:"tid"`
	PGID       int                        `json:"pgid"`
	SID        int                        `json:"sid"`
	CWD        string                     `json:"cwd"`
	Cmdline    string                     `json:"cmdline"`
	Counters   map[string]int             `json:"counters"`
	Status     map[string]string          `json:"status"`
	Rlimit     map[string]string          `json:"rlimit"`
	FDs        map[string]string          `json:"fds"`
	Items      map[string]itemAnswer      `json:"items"`
	Env        map[string]json.RawMessage `json:"env"`
	JobControl map[string]json.RawMessage `json:"jobcontrol"`
	Getopt     map[string]json.RawMessage `json:"getopt"`
	Symbols    map[string]int             `json:"symbol_supported"`
	Register   map[string]int             `json:"register"`
	JobEnv     []string                   `json:"jobenv"`
	Environ    []string                   `json:"environ"`
	// Of an option's callback.
	Val      int     `json:"val"`
	OptArg   *string `json:"optarg"`
	Remote   int     `json:"remote"`
	Inits    int     `json:"init_count"`
	PostOpts int     `json:"post_opt_count"`

	raw   map[string]json.RawMessage
	actor string // whose callback it is: see actors
	rank  int    // of the task, -1 in callbacks of no task
}

type itemAnswer struct {
	RC int     `json:"rc"`
	V  *string `json:"v"`
}

// actors are the programs that call plugins, by context. A batch script's own
// step is an actor of its own: one recording has it and another step.
var actors = map[int]string{1: "local", 2: "remote", 3: "allocator", 4: "slurmd", 5: "job_script"}

const (
	batchActor = "batch"
	batchStep  = "4294967291" // its number
)

// readRecords reads a record file, in the order of the calls.
func readRecords(t testing.TB, path string) []record {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	var records []record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("cannot parse record %q: %v", lines.Text(), err)
		}
		must(t, json.Unmarshal(lines.Bytes(), &r.raw))
		records = append(records, r)
	}
	must(t, lines.Err())
	assign(records)
	return records
}

// assign says of each record whose it is, and of which task.
func assign(records []record) {
	batch := map[int]bool{}
	children := map[string][]int{} // of an actor, in the order of their forks
	for i := range records {
		r := &records[i]
		if step := r.Items["S_JOB_STEPID"].V; step != nil && *step == batchStep || strings.HasSuffix(r.Cmdline, ".batch]") {
			batch[r.PID] = true
		}
		if r.actor = actors[r.Ctx]; batch[r.PID] {
			r.actor = batchActor
		}
		if r.inChild() && !slices.Contains(children[r.actor], r.PID) {
			children[r.actor] = append(children[r.actor], r.PID)
		}
	}
	nth := map[string]int{}
	for i := range records {
		r := &records[i]
		r.rank = -1
		switch a := r.Items["S_TASK_ID"]; {
		case a.RC == 0 && a.V != nil:
			_, _ = fmt.Sscan(*a.V, &r.rank) // else it is the host's
		case r.inChild(): // a lite record does not tell; ranks are forked in their order
			slices.Sort(children[r.actor])
			r.rank = slices.Index(children[r.actor], r.PID)
		case r.CB == "task_post_fork" || r.CB == "task_exit":
			key := r.actor + r.CB + r.Tag
			r.rank = nth[key]
			nth[key]++
		}
	}
}

// inChild reports whether a callback runs in the task's own process.
func (r *record) inChild() bool { return r.CB == "task_init_privileged" || r.CB == "task_init" }

// column names a record in the table of facts: "remote:task_init.2", and with
// several plugins "remote:task_init.2/B".
func (r *record) column() string {
	c := r.actor + ":" + r.CB
	if r.rank >= 0 {
		c += fmt.Sprintf(".%d", r.rank)
	}
	if r.Tag != "A" {
		c += "/" + r.Tag
	}
	return c
}

// counterColumn is where the counters of a record belong: tasks end in any
// order, so the counters of task_exit are named by how many ended before.
func (r *record) counterColumn() string {
	if r.CB == "task_exit" {
		c := *r
		c.rank = r.Counters["task_exit"] - 1
		return c.column()
	}
	return r.column()
}

// callback is a column without its task and its plugin: what differences.tsv
// names.
func callback(column string) string {
	c, _, _ := strings.Cut(column, "/")
	if i := strings.LastIndexByte(c, '.'); i > 0 {
		c = c[:i]
	}
	return c
}

// jobID is the number of the recording's job.
func jobID(records []record) string {
	for i := range records {
		if a := records[i].Items["S_JOB_ID"]; a.RC == 0 && a.V != nil {
			return *a.V
		}
	}
	for i := range records { // a lite record has it in the process's title
		if _, step, ok := strings.Cut(records[i].Cmdline, ": ["); ok && records[i].Ctx == 2 {
			id, _, _ := strings.Cut(step, ".")
			return id
		}
	}
	return "?"
}

// sequences reports in which order each actor's own process calls its plugins;
// tasks end in any order, so the ranks of task_exit are left out.
func sequences(records []record) map[string]string {
	out := map[string][]string{}
	first := map[string]string{}
	for i := range records {
		r := &records[i]
		if r.inChild() {
			continue
		}
		key := fmt.Sprint(r.actor, r.PID)
		if r.CB != "opt_cb" && first[key] == "" {
			first[key] = r.column()
		}
		word := strings.TrimPrefix(r.column(), r.actor+":")
		if r.CB == "task_exit" || r.CB == "opt_cb" {
			word = r.CB
			if r.Tag != "A" {
				word += "/" + r.Tag
			}
		}
		out[key] = append(out[key], word)
	}
	named := map[string]string{}
	for key, words := range out {
		named[first[key]] = strings.Join(words, " ")
	}
	return named
}
