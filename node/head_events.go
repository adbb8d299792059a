package node

import (
	"container/heap"
	"encoding/json"
	"sync"
	"time"
)

// eventLine is one line of a part's log.
type eventLine struct {
	at   time.Time
	seq  int // in the order in which they came
	json []byte
}

func newEventLine(b []byte, node string) eventLine {
	l := eventLine{json: withNode(b, node)}
	var e struct {
		Time time.Time `json:"time"`
	}
	if json.Unmarshal(b, &e) == nil {
		l.at = e.Time
	}
	return l
}

// sortMax bounds the lines that are held to bring them into the order of time, in
// bytes: what a user asks for must not cost noded a step's logs of all nodes.
const sortMax = 16 << 20

// sortLogs sends the lines of all logs by their time. A log is not quite in that
// order itself: hooks are told when their stage is over.
func sortLogs(logs []chan eventLine, send func(eventLine) error) error {
	var held eventHeap
	err := mergeLogs(logs, func(l eventLine) error {
		l.seq = held.seq
		held.seq++
		held.bytes += len(l.json)
		heap.Push(&held, l)
		for held.bytes > sortMax {
			if err := send(held.least()); err != nil {
				return err
			}
		}
		return nil
	})
	for err == nil && len(held.lines) > 0 {
		err = send(held.least())
	}
	return err
}

// eventHeap are lines of which the earliest is at hand; of those of one time, that
// which came first.
type eventHeap struct {
	lines []eventLine
	bytes int
	seq   int
}

func (h *eventHeap) least() eventLine {
	l := heap.Pop(h).(eventLine)
	h.bytes -= len(l.json)
	return l
}

// Len, Less, Swap, Push and Pop are heap.Interface.
func (h *eventHeap) Len() int { return len(h.lines) }

// Less tells which line comes first.
func (h *eventHeap) Less(i, j int) bool {
	a, b := &h.lines[i], &h.lines[j]
	if c := a.at.Compare(b.at); c != 0 {
		return c < 0
	}
	return a.seq < b.seq
}

// Swap exchanges two lines.
func (h *eventHeap) Swap(i, j int) { h.lines[i], h.lines[j] = h.lines[j], h.lines[i] }

// Push adds a line at the end.
func (h *eventHeap) Push(l any) { h.lines = append(h.lines, l.(eventLine)) }

// Pop takes the last line.
func (h *eventHeap) Pop() any {
	last := len(h.lines) - 1
	l := h.lines[last]
	h.lines[last] = eventLine{}
	h.lines = h.lines[:last]
	return l
}

// mergeLogs hands over the lines of all logs, of the next ones always the earliest,
// so that no log is far ahead of the others. It holds one line of each.
func mergeLogs(logs []chan eventLine, send func(eventLine) error) error {
	first := make([]*eventLine, len(logs))
	next := func(i int) {
		first[i] = nil
		if l, more := <-logs[i]; more {
			first[i] = &l
		}
	}
	for i := range logs {
		next(i)
	}
	for {
		least := -1
		for i, l := range first {
			if l != nil && (least < 0 || l.at.Before(first[least].at)) {
				least = i
			}
		}
		if least < 0 {
			return nil
		}
		if err := send(*first[least]); err != nil {
			return err
		}
		next(least)
	}
}

// mixLogs sends the lines of logs as they come.
func mixLogs(logs []chan eventLine, send func(eventLine) error) error {
	all := make(chan eventLine)
	stop := make(chan struct{})
	defer close(stop)
	var left sync.WaitGroup
	for _, log := range logs {
		left.Go(func() {
			for l := range log {
				select {
				case all <- l:
				case <-stop:
					return
				}
			}
		})
	}
	go func() { left.Wait(); close(all) }() // ends with the logs, or with stop
	for l := range all {
		if err := send(l); err != nil {
			return err
		}
	}
	return nil
}
