package integration

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// reduce turns a recording into facts. Left out are what is
// another in each run or on each machine (times, pids, thread count of the step
// daemon, nofile, core, descriptor targets) and fields that repeat another.
func reduce(records []record, w *world) *table {
	w.learn(records)
	facts := &table{}
	options := map[int]int{}
	inits := map[int]string{} // a process's first column: where its options are told
	for i := range records {
		r := &records[i]
		if r.CB == "opt_cb" {
			options[r.PID]++
			facts.set(inits[r.PID], fmt.Sprintf("opt_cb.%d", options[r.PID]), optionCall(r))
			continue
		}
		c := r.column()
		if inits[r.PID] == "" {
			inits[r.PID] = c
		}
		facts.add(c)
		for _, field := range []string{"tag", "remote", "argv", "argv_null_terminated", "resuid", "resgid", "groups",
			"comm", "oom_score_adj", "option_register_outside_init", "remote(NULL)", "ret"} {
			if raw, ok := r.raw[field]; ok {
				facts.set(c, field, compact(raw))
			}
		}
		facts.set(c, "cwd", w.word(r.CWD))
		facts.set(c, "cmdline", w.cmdline(r))
		for name, v := range r.Counters {
			value := strconv.Itoa(v)
			if name == "first_pid" {
				value = w.pid(v)
			}
			facts.set(r.counterColumn(), "counters."+name, value)
		}
		w.processFacts(facts, c, r)
		w.stateFacts(facts, c, r)
		w.callFacts(facts, c, r)
		w.envFacts(facts, c, r)
	}
	for c, words := range sequences(records) {
		facts.set(c, "sequence", words)
	}
	orderFacts(facts, records)
	return facts
}

// cmdline is a process's title; of the original's clients their name alone.
func (w *world) cmdline(r *record) string {
	if name, _, _ := strings.Cut(r.Cmdline, " "); name == r.Status["Name"] && (r.Ctx == 1 || r.Ctx == 3) {
		return name
	}
	return w.word(strings.ReplaceAll(r.Cmdline, "["+w.job+".", "[JOB."))
}

// optionCall is one call of an option's callback.
func optionCall(r *record) string {
	return fmt.Sprintf("%s resuid=%s after init=%d init_post_opt=%d", r.option(), compact(r.raw["resuid"]), r.Inits, r.PostOpts)
}

// option is what an option's callback was given: "val=optarg remote".
func (r *record) option() string {
	arg := "NULL"
	if r.OptArg != nil {
		arg = strconv.Quote(*r.OptArg)
	}
	return fmt.Sprintf("%d=%s remote=%d", r.Val, arg, r.Remote)
}

func compact(raw json.RawMessage) string {
	return strings.NewReplacer(`"`, "", ", ", ",", "{", "", "}", "").Replace(string(raw))
}

// callFacts are the answers of the SPANK API.
func (w *world) callFacts(facts *table, c string, r *record) {
	for name, a := range r.Items {
		value := rcText(a.RC)
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

// crashed stands for an answer that the real library did not live to give.
const crashed = "SEGV"

func rcText(rc int) string {
	if rc == -9999 {
		return crashed
	}
	return strconv.Itoa(rc)
}

func (w *world) itemValue(name, v string) string {
	switch name {
	case "S_JOB_ID", "S_JOB_ARRAY_ID":
		if v == w.job {
			return "JOB"
		}
	case "S_TASK_PID":
		return w.pidText(v)
	case "S_JOB_ENV":
		// "ptr n=53 same_as_environ=0": the names are compared by jobenv.
		if f := strings.Fields(v); len(f) == 3 {
			return f[0] + " " + f[2]
		}
	}
	return w.word(v)
}

// callValue is "rc" or "rc=value" of a call like "getenv(HOME)".
func (w *world) callValue(r *record, call string, raw json.RawMessage) string {
	var answer struct {
		RC     int     `json:"rc"`
		Buf    *string `json:"buf"`
		OptArg *string `json:"optarg"`
	}
	if raw[0] != '{' || json.Unmarshal(raw, &answer) != nil {
		rc, err := strconv.Atoi(string(raw))
		if err != nil {
			return string(raw)
		}
		return rcText(rc)
	}
	value := rcText(answer.RC)
	if answer.Buf != nil && value != crashed {
		name, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(call, "getenv("), ")"), ",")
		value += "=" + w.envValue(r, name, *answer.Buf)
	}
	if answer.OptArg != nil {
		value += "=" + *answer.OptArg
	}
	return value
}

// envFacts are the job's environment, and what of the process's own concerns SPANK.
func (w *world) envFacts(facts *table, c string, r *record) {
	for _, entry := range r.JobEnv {
		name, value, _ := strings.Cut(entry, "=")
		facts.set(c, "jobenv."+name, w.envValue(r, name, value))
	}
	for _, entry := range r.Environ {
		name, value, _ := strings.Cut(entry, "=")
		for _, prefix := range []string{"SLURM", "_SLURM", "SPANK_", "PROBE_"} {
			if strings.HasPrefix(name, prefix) {
				facts.set(c, "environ."+name, w.envValue(r, name, value))
			}
		}
	}
}
