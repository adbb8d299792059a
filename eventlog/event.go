package eventlog

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"
	"time"

	"stepd/internal/quickjson"
	"stepd/step"
	"stepd/step/launch"
)

// Event is one line of a step's event log. Fields that do not
// belong to the event are absent.
type Event struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`
	JobID  *uint32   `json:"job_id,omitempty"`
	StepID *uint32   `json:"step_id,omitempty"`
	// ID is the step as users name it: "17.batch".
	ID string `json:"id,omitempty"`
	// Phase is the stage of the launch (stage_start, stage_end).
	Phase string `json:"phase,omitempty"`
	// DurUS is a duration in microseconds (stage_end, hook_end; of a kill the time until SIGKILL).
	DurUS  *int64           `json:"dur_us,omitempty"`
	Plugin string           `json:"plugin,omitempty"`
	Hook   string           `json:"hook,omitempty"`
	RC     *int             `json:"rc,omitempty"`
	Rank   *int             `json:"rank,omitempty"`
	PID    int              `json:"pid,omitempty"`
	Status *step.ExitStatus `json:"status,omitempty"` // raw wait status
	Signal *int             `json:"signal,omitempty"`
	State  step.State       `json:"state,omitempty"`
	Stage  string           `json:"stage,omitempty"`
	Errno  int              `json:"errno,omitempty"`
	Text   string           `json:"text,omitempty"`
	// Ranks are the ranks that have come as far in MPI as MPI says, as a list (mpi); MPI
	// is absent where they are unknown.
	Ranks string            `json:"ranks,omitempty"`
	MPI   *step.MPIProgress `json:"mpi,omitempty"`
	// Usage is the step's, at its end (usage).
	Usage *step.StepUsage `json:"usage,omitempty"`
}

// LogTime is the form of times in the daemons' logs, of text and of JSON.
const LogTime = "2006-01-02T15:04:05.000Z07:00"

// The event names.
const (
	EventRequest    = "request"
	EventAccepted   = "accepted"
	EventStageStart = "stage_start"
	EventStageEnd   = "stage_end"
	EventHookStart  = "hook_start"
	EventHookEnd    = "hook_end"
	EventHookCrash  = "hook_crash" // the hook has ended its process; Text is how
	EventTaskFork   = "task_fork"
	EventTaskExec   = "task_exec"
	EventTaskExit   = "task_exit"
	EventTaskSignal = "task_signal"
	EventKill       = "kill"       // Text is why the step is ended, "" where its leftovers are killed
	EventUnkillable = "unkillable" // Text names the processes that SIGKILL does not end
	EventSuspend    = "suspend"
	EventResume     = "resume"
	EventOOM        = "oom"
	EventLimit      = "limit" // Text names a resource limit that is lower than it was passed on
	EventState      = "state"
	EventMPI        = "mpi"       // how far ranks had come, of a step that did not end well
	EventHeldOpen   = "held_open" // Text names the process that has kept a stream open after the step's end
	EventUsage      = "usage"
	EventEnd        = "end"
)

// The phases that stepd does not name by itself: noded's part of the launch, what runs in the
// tasks between the gate and their exec, and the times in which epilogs of tasks run.
const (
	PhaseProlog     = "prolog"
	PhaseTaskProlog = "task_prolog"
	PhaseTaskEpilog = "task_epilog"
)

// AppendTo appends the event as a line of the log, with its newline: what
// encoding/json makes of it. It encodes by hand what a launch is full of: that
// package's first look at so large a type takes longer than all events of a launch.
// An event that cannot be encoded, for a time after the year 9999, adds nothing.
func (e *Event) AppendTo(b []byte) []byte {
	if e.MPI != nil || e.Usage != nil || e.Time.Year() > 9999 || e.Time.Year() < 0 {
		e := *e // so that no other event is moved to the heap for this
		line, err := quickjson.Marshal(&e)
		if err != nil {
			return b
		}
		return append(append(b, line...), '\n')
	}
	b = append(b, `{"time":"`...)
	b = e.Time.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","event":`...)
	b = appendString(b, e.Event)
	b = appendNumber(b, `,"job_id":`, e.JobID)
	b = appendNumber(b, `,"step_id":`, e.StepID)
	b = appendText(b, `,"id":`, e.ID)
	b = appendText(b, `,"phase":`, e.Phase)
	b = appendNumber(b, `,"dur_us":`, e.DurUS)
	b = appendText(b, `,"plugin":`, e.Plugin)
	b = appendText(b, `,"hook":`, e.Hook)
	b = appendNumber(b, `,"rc":`, e.RC)
	b = appendNumber(b, `,"rank":`, e.Rank)
	if e.PID != 0 {
		b = appendNumber(b, `,"pid":`, &e.PID)
	}
	b = appendNumber(b, `,"status":`, e.Status)
	b = appendNumber(b, `,"signal":`, e.Signal)
	b = appendText(b, `,"state":`, string(e.State))
	b = appendText(b, `,"stage":`, e.Stage)
	if e.Errno != 0 {
		b = appendNumber(b, `,"errno":`, &e.Errno)
	}
	b = appendText(b, `,"text":`, e.Text)
	b = appendText(b, `,"ranks":`, e.Ranks)
	return append(b, "}\n"...)
}

// appendNumber appends a field unless it is absent.
func appendNumber[T ~int | ~int64 | ~uint32](b []byte, key string, v *T) []byte {
	if v == nil {
		return b
	}
	return strconv.AppendInt(append(b, key...), int64(*v), 10)
}

// appendText appends a field unless it is empty.
func appendText(b []byte, key, v string) []byte {
	if v == "" {
		return b
	}
	return appendString(append(b, key...), v)
}

// appendString appends a string of JSON. What is neither ASCII nor plain is rare.
func appendString(b []byte, v string) []byte {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, err := json.Marshal(v)
			if err != nil {
				return append(b, `""`...) // a string can be encoded
			}
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), v...), '"')
}

// A step of 20 plugins and 1,000 tasks calls 80,000 hooks. So stepd does not
// write two lines for each: one line holds many calls, as numbers, and who
// reads the log makes hook_start and hook_end of them.

// HookCalls are calls of hooks, for one line of the event log.
type HookCalls struct {
	// Base is the wall clock when CLOCK_MONOTONIC was 0, in ns since 1970.
	Base int64
	// Plugin names a plugin of the stack by its index.
	Plugin func(index int) string
	Calls  []launch.HookTime // at most HookCallsMax
	// Ranks are the tasks' ranks by local id: the log has ranks.
	Ranks []int
}

// HookCallsMax is how many calls a line may hold: a reader bounds its lines.
const HookCallsMax = 4096

// hookLine is the line. Calls has callWords numbers for each call: the places
// of the plugin's and the hook's name in Names, the rank (-1: the host), ns
// from Time to the start, ns from there to the end (-1: it never returned), rc.
type hookLine struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"`
	Names []string  `json:"names"`
	Calls []int64   `json:"calls"`
}

const callWords = 6

// AppendTo appends the line, with its newline. It encodes by hand, as it is on
// the way of a launch: 60 ns for a call.
func (h HookCalls) AppendTo(b []byte) []byte {
	if len(h.Calls) == 0 {
		return b
	}
	first := h.Calls[0].StartNS
	n := names{at: make(map[string]int)}
	plugins := make(map[int]int)
	calls := make([]byte, 0, 32*len(h.Calls))
	for i := range h.Calls {
		c := &h.Calls[i]
		plugin, ok := plugins[c.Plugin]
		if !ok {
			plugin = n.index(h.Plugin(c.Plugin))
			plugins[c.Plugin] = plugin
		}
		dur := int64(-1)
		if c.EndNS != 0 {
			dur = int64(c.EndNS - c.StartNS)
		}
		rank := -1
		if c.LocalID >= 0 && c.LocalID < len(h.Ranks) {
			rank = h.Ranks[c.LocalID]
		}
		for _, v := range [callWords]int64{int64(plugin), int64(n.index(c.Hook)), int64(rank), int64(c.StartNS - first), dur, int64(c.RC)} {
			calls = append(strconv.AppendInt(calls, v, 10), ',')
		}
	}
	head, err := json.Marshal(hookLine{Time: time.Unix(0, h.Base+int64(first)), Event: eventHooks, Names: n.list, Calls: []int64{}})
	if err != nil {
		return b // names and a time can be encoded
	}
	b = append(b, bytes.TrimSuffix(head, []byte("]}"))...)
	b = append(b, calls[:len(calls)-1]...)
	return append(b, "]}\n"...)
}

// names numbers strings.
type names struct {
	list []string
	at   map[string]int
}

func (n *names) index(s string) int {
	i, ok := n.at[s]
	if !ok {
		i = len(n.list)
		n.at[s] = i
		n.list = append(n.list, s)
	}
	return i
}

// eventHooks is the event of such a line. No reader of the log's service sees it.
const eventHooks = "hooks"

// ExpandEvent hands a line of a step's log to each, or in its place, where it
// holds calls of hooks, the events that they are. What is malformed is passed
// over: the end of stepd may have cut a line. The error is each's.
func ExpandEvent(line []byte, each func([]byte) error) error {
	h, ours := parseHooks(line)
	if !ours {
		return each(line)
	}
	for c := range h.calls() {
		for _, e := range h.events(c) {
			b, err := json.Marshal(e)
			if err != nil {
				continue // a time after the year 9999
			}
			if err := each(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseHooks reads a line of hooks, of which a malformed one is empty; ours is false of
// another line.
func parseHooks(line []byte) (h hookLine, ours bool) {
	// The event comes second, behind a time of 36 bytes at most.
	if !bytes.Contains(line[:min(len(line), 64)], []byte(`"event":"hooks"`)) {
		return h, false
	}
	if json.Unmarshal(line, &h) != nil {
		return hookLine{}, true
	}
	return h, true
}

// calls yields the calls whose names are in the line.
func (h *hookLine) calls() iter.Seq[[callWords]int64] {
	return func(yield func([callWords]int64) bool) {
		n := int64(len(h.Names))
		for c := h.Calls; len(c) >= callWords; c = c[callWords:] {
			if plugin, hook := c[0], c[1]; plugin >= 0 && plugin < n && hook >= 0 && hook < n && !yield([callWords]int64(c)) {
				return
			}
		}
	}
}

// HookCall is one call of a hook, as a log of events has it.
type HookCall struct {
	Plugin, Hook string
	Took         time.Duration
	RC           int
	// Returned is false of a call that never did.
	Returned bool
}

// EachHookCall hands the calls of a line of hooks to each, none of a malformed one; false is
// that it is another line. It costs a tenth of what ExpandEvent does, for who
// counts them.
func EachHookCall(line []byte, each func(HookCall)) bool {
	h, ours := parseHooks(line)
	for c := range h.calls() {
		dur := c[4]
		each(HookCall{Plugin: h.Names[c[0]], Hook: h.Names[c[1]], Took: time.Duration(max(dur, 0)), RC: int(c[5]), Returned: dur >= 0})
	}
	return ours
}

// events are the two events of one call, the first one alone of a hook that
// never returned.
func (h *hookLine) events(c [callWords]int64) []Event {
	plugin, hook, rank, start, dur, rc := c[0], c[1], c[2], c[3], c[4], c[5]
	from := Event{Time: h.Time.Add(time.Duration(start)), Event: EventHookStart, Plugin: h.Names[plugin], Hook: h.Names[hook]}
	if rank >= 0 {
		from.Rank = new(int(rank))
	}
	if dur < 0 {
		return []Event{from}
	}
	us, code := dur/1000, int(rc)
	to := from
	to.Time, to.Event, to.DurUS, to.RC = from.Time.Add(time.Duration(dur)), EventHookEnd, &us, &code
	return []Event{from, to}
}
