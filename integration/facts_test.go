package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// absent is the value of a field that a record does not have.
const absent = "(absent)"

// record is one line of the recording plugin (testdata/probe/probe.c).
type record struct {
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
	raw        map[string]json.RawMessage
}

type itemAnswer struct {
	RC int     `json:"rc"`
	V  *string `json:"v"`
}

// readRecords reads the remote part (context 2) of a record file.
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
		if r.Ctx == 2 && r.CB != "opt_cb" {
			records = append(records, r)
		}
	}
	must(t, lines.Err())
	return records
}

// rank is the task that a record is about, "" in the host's own callbacks.
func (r *record) rank() string {
	if a := r.Items["S_TASK_ID"]; a.RC == 0 && a.V != nil {
		return *a.V
	}
	return ""
}

// column names a record in the table of facts: "task_init.2".
func (r *record) column() string {
	if rank := r.rank(); rank != "" {
		return r.CB + "." + rank
	}
	return r.CB
}

// world says what the names and numbers of one recording stand for, so that
// two recordings can be compared.
type world struct {
	words  map[string]string // whole values
	soft   map[string]string // SLURM_RLIMIT_NAME: the caller's soft limit
	daemon map[string]string // rlimit: the daemon's own
	capBnd string
	cpus   string
	pids   map[int]string
	host   record // the first record: the host in init
	last   string // rank of the last task_exit
}

// word replaces a value by what it stands for.
func (w *world) word(v string) string {
	if to, ok := w.words[v]; ok {
		return to
	}
	return v
}

func (w *world) pid(pid int) string {
	if name, ok := w.pids[pid]; ok {
		return name
	}
	return strconv.Itoa(pid)
}

// learn names the processes and groups of the recording.
func (w *world) learn(records []record) {
	w.host = records[0]
	w.pids = map[int]string{w.host.PGID: "HOSTGROUP", w.host.SID: "HOSTSESSION", w.host.PID: "HOST"}
	for _, r := range records {
		if r.CB == "task_init_privileged" {
			w.pids[r.PID] = "TASK" + r.rank()
		}
		if r.CB == "task_exit" {
			w.last = r.rank()
		}
	}
}

// table holds facts: column (callback and rank), field, value.
type table struct {
	columns []string
	fields  map[string]map[string]string // field, column
}

func (f *table) set(column, field, value string) {
	if f.fields == nil {
		f.fields = map[string]map[string]string{}
	}
	if f.fields[field] == nil {
		f.fields[field] = map[string]string{}
	}
	f.fields[field][column] = value
}

func (f *table) get(column, field string) string {
	if v, ok := f.fields[field][column]; ok {
		return v
	}
	return absent
}

// reduce turns a recording into facts. Left out are what rulings 37 excludes
// (times, pids, thread count of the daemon, nofile, core, descriptor targets)
// and fields that repeat another.
func reduce(records []record, w *world) *table {
	w.learn(records)
	facts := &table{}
	seen := map[string]int{}
	for i := range records {
		r := &records[i]
		c := r.column()
		facts.columns = append(facts.columns, c)
		facts.set(c, "sequence", strconv.Itoa(i))
		for _, field := range []string{"tag", "remote", "argv", "argv_null_terminated", "resuid", "resgid", "groups",
			"comm", "oom_score_adj", "option_register_outside_init", "remote(NULL)", "ret"} {
			if raw, ok := r.raw[field]; ok {
				facts.set(c, field, compact(raw))
			}
		}
		facts.set(c, "cwd", w.word(r.CWD))
		facts.set(c, "cmdline", strings.ReplaceAll(r.Cmdline, "["+r.jobID()+".", "[JOB."))
		w.processFacts(facts, c, r)
		w.stateFacts(facts, c, r)
		w.callFacts(facts, c, r)
		w.envFacts(facts, c, r)
		// How often a callback ran before: by occurrence, since tasks end in any order.
		seen[r.CB]++
		occurrence := fmt.Sprintf("%s#%d", r.CB, seen[r.CB])
		for name, v := range r.Counters {
			value := strconv.Itoa(v)
			if name == "first_pid" {
				value = w.pid(v)
			}
			facts.set(occurrence, "counters."+name, value)
		}
	}
	return facts
}

func (r *record) jobID() string {
	if a := r.Items["S_JOB_ID"]; a.V != nil {
		return *a.V
	}
	return "?"
}

func compact(raw json.RawMessage) string {
	return strings.NewReplacer(`"`, "", ", ", ",", "{", "", "}", "").Replace(string(raw))
}

// processFacts are relations between pids, groups and sessions.
func (w *world) processFacts(facts *table, c string, r *record) {
	facts.set(c, "tid", map[bool]string{true: "main thread", false: "other thread"}[r.TID == r.PID])
	facts.set(c, "sid", w.pid(r.SID))
	inChild := r.PID != w.host.PID
	switch {
	case r.CB == "task_init_privileged":
		// A race in the original: the parent's setpgid may have come first.
		if name := w.pid(r.PGID); name == w.pid(w.host.PGID) || strings.HasPrefix(name, "TASK") {
			facts.set(c, "pgid", "the host's or TASK0's")
		} else {
			facts.set(c, "pgid", name)
		}
	case inChild:
		facts.set(c, "pgid", w.pid(r.PGID))
	default:
		facts.set(c, "pgid", map[bool]string{true: "as in init", false: "changed"}[r.PGID == w.host.PGID])
	}
	if inChild {
		facts.set(c, "ppid", w.pid(r.PPID))
		facts.set(c, "Threads", r.Status["Threads"])
	} else {
		facts.set(c, "pid", w.pid(r.PID))
	}
}

// stateFacts are the masks, capabilities, limits and descriptors.
func (w *world) stateFacts(facts *table, c string, r *record) {
	for _, name := range []string{"Name", "Umask", "TracerPid", "Uid", "Gid", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt",
		"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"} {
		value := r.Status[name]
		if strings.HasPrefix(name, "Cap") && value == w.capBnd {
			value = "FULL"
		}
		facts.set(c, "status."+name, value)
	}
	facts.set(c, "status.Cpus_allowed_list", map[bool]string{true: "ALL", false: r.Status["Cpus_allowed_list"]}[r.Status["Cpus_allowed_list"] == w.cpus])
	for _, name := range []string{"stack", "memlock", "nproc", "as"} {
		value := r.Rlimit[name]
		if value == w.daemon[name] {
			value = "the daemon's"
		}
		facts.set(c, "rlimit."+name, value)
	}
	others := []string{}
	for fd, target := range r.FDs {
		kind := strings.TrimSuffix(target, " [CX]")
		if i := strings.IndexByte(kind, ':'); i > 0 {
			kind = kind[:i]
		}
		if fd == "0" || fd == "1" || fd == "2" {
			facts.set(c, "fds."+fd, kind)
		} else if !strings.HasSuffix(target, " [CX]") {
			others = append(others, fd)
		}
	}
	slices.Sort(others)
	facts.set(c, "fds.others", "all but these closed by exec:"+strings.Join(others, ","))
}

// callFacts are the answers of the SPANK API.
func (w *world) callFacts(facts *table, c string, r *record) {
	for name, a := range r.Items {
		value := strconv.Itoa(a.RC)
		if a.RC == 0 && a.V != nil {
			value += "=" + w.itemValue(name, *a.V)
		}
		facts.set(c, "items."+name, value)
	}
	for prefix, calls := range map[string]map[string]json.RawMessage{"env.": r.Env, "jobcontrol.": r.JobControl, "getopt.": r.Getopt} {
		for name, raw := range calls {
			facts.set(c, prefix+name, w.callValue(r, name, raw))
		}
	}
	for name, rc := range r.Symbols {
		facts.set(c, "symbol_supported."+name, strconv.Itoa(rc))
	}
	for name, rc := range r.Register {
		facts.set(c, "register."+name, strconv.Itoa(rc))
	}
}

func (w *world) itemValue(name, v string) string {
	switch name {
	case "S_JOB_ID", "S_JOB_ARRAY_ID":
		return map[bool]string{true: "JOB", false: v}[v == w.host.jobID()]
	case "S_TASK_PID":
		if pid, err := strconv.Atoi(v); err == nil {
			return w.pid(pid)
		}
	case "S_JOB_ENV":
		// "ptr n=53 same_as_environ=0": the names are compared by jobenv.
		if f := strings.Fields(v); len(f) == 3 {
			return f[0] + " " + f[2]
		}
	}
	return v
}

// callValue is "rc" or "rc=value" of a call like "getenv(HOME)".
func (w *world) callValue(r *record, call string, raw json.RawMessage) string {
	var answer struct {
		RC     int     `json:"rc"`
		Buf    *string `json:"buf"`
		OptArg *string `json:"optarg"`
	}
	if raw[0] != '{' || json.Unmarshal(raw, &answer) != nil {
		return string(raw)
	}
	value := strconv.Itoa(answer.RC)
	if answer.Buf != nil {
		name, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(call, "getenv("), ")"), ",")
		value += "=" + w.envValue(r, name, *answer.Buf)
	}
	if answer.OptArg != nil {
		value += "=" + *answer.OptArg
	}
	return value
}

// envFacts are the job's environment, and what of the daemon's own concerns SPANK.
func (w *world) envFacts(facts *table, c string, r *record) {
	for _, entry := range r.JobEnv {
		name, value, _ := strings.Cut(entry, "=")
		facts.set(c, "jobenv."+name, w.envValue(r, name, value))
	}
	for _, entry := range r.Environ {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "SLURM") || strings.HasPrefix(name, "PROBE_") {
			facts.set(c, "environ."+name, w.envValue(r, name, value))
		}
	}
}

func (w *world) envValue(r *record, name, value string) string {
	if limit, ok := w.soft[strings.TrimPrefix(name, "SLURM_RLIMIT_")]; ok && strings.HasPrefix(name, "SLURM_RLIMIT_") {
		return map[bool]string{true: "the caller's", false: value}[value == limit]
	}
	switch {
	case name == "SLURM_RLIMIT_CORE" || name == "SLURM_RLIMIT_NOFILE":
		return "not compared"
	case name == "SLURM_JOB_ID" || name == "SLURM_JOBID":
		return map[bool]string{true: "JOB", false: value}[value == w.host.jobID()]
	case name == "SLURM_TASK_PID":
		if pid, err := strconv.Atoi(value); err == nil {
			return w.pid(pid)
		}
	case r.CB == "exit" && (name == "SLURM_PROCID" || name == "SLURM_LOCALID"):
		return map[bool]string{true: "that of the last exit", false: w.word(value)}[value == w.last]
	case strings.HasPrefix(value, "pid"):
		if pid, err := strconv.Atoi(value[3:]); err == nil {
			return "pid of " + w.pid(pid)
		}
	}
	return w.word(value)
}

// write stores the table: a row is a field, a column a callback.
func (f *table) write(t testing.TB, path string) {
	t.Helper()
	columns := f.allColumns()
	var b strings.Builder
	b.WriteString("field\t" + strings.Join(columns, "\t") + "\n")
	for _, field := range f.allFields() {
		b.WriteString(field)
		for _, c := range columns {
			b.WriteString("\t" + f.get(c, field))
		}
		b.WriteString("\n")
	}
	must(t, os.WriteFile(path, []byte(b.String()), 0o644))
}

// readTable reads what write has stored.
func readTable(t testing.TB, path string) *table {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	f := &table{}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	columns := strings.Split(lines[0], "\t")[1:]
	for _, line := range lines[1:] {
		cells := strings.Split(line, "\t")
		if len(cells) != len(columns)+1 {
			t.Fatalf("%s: row %q has %d cells, want %d", path, cells[0], len(cells), len(columns)+1)
		}
		for i, v := range cells[1:] {
			if v != absent {
				f.set(columns[i], cells[0], v)
			}
		}
	}
	for _, c := range columns {
		if f.get(c, "sequence") != absent {
			f.columns = append(f.columns, c)
		}
	}
	sort.SliceStable(f.columns, func(i, j int) bool { return f.sequence(f.columns[i]) < f.sequence(f.columns[j]) })
	return f
}

func (f *table) sequence(column string) int {
	n, err := strconv.Atoi(f.get(column, "sequence"))
	if err != nil {
		return -1
	}
	return n
}

func (f *table) allFields() []string {
	var fields []string
	for field := range f.fields {
		fields = append(fields, field)
	}
	slices.Sort(fields)
	return fields
}

func (f *table) allColumns() []string {
	columns := slices.Clone(f.columns)
	extra := map[string]bool{}
	for _, row := range f.fields {
		for c := range row {
			if !slices.Contains(f.columns, c) {
				extra[c] = true
			}
		}
	}
	var more []string
	for c := range extra {
		more = append(more, c)
	}
	slices.Sort(more)
	return append(columns, more...)
}
