package eventlog

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"
	"time"

	"stepd/step/launch"
)

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
