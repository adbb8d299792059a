package node

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// logsOf makes the logs of parts whose lines say at which second they were.
func logsOf(seconds ...[]int) []chan eventLine {
	logs := make([]chan eventLine, len(seconds))
	for i, list := range seconds {
		logs[i] = make(chan eventLine)
		go func() {
			defer close(logs[i])
			for _, s := range list {
				logs[i] <- eventLine{at: time.Unix(int64(s), 0), json: []byte{byte('0' + s)}}
			}
		}()
	}
	return logs
}

func TestMergeLogs(t *testing.T) {
	var got string
	err := mergeLogs(logsOf([]int{1, 4, 6}, nil, []int{2, 3, 5}, []int{4}), func(l eventLine) error {
		got += string(l.json)
		return nil
	})
	if err != nil || got != "1234456" {
		t.Errorf("got %q, %v", got, err)
	}
	full := errors.New("gone")
	if err := mergeLogs(logsOf([]int{1}, []int{2}), func(eventLine) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

// A log that is not quite in order comes out in order, with the others.
func TestSortLogs(t *testing.T) {
	var got string
	err := sortLogs(logsOf([]int{1, 6, 2, 3}, []int{5, 4}), func(l eventLine) error {
		got += string(l.json)
		return nil
	})
	if err != nil || got != "123456" {
		t.Errorf("got %q, %v", got, err)
	}
	// Beyond the limit they come before all are there.
	big, sent := make(chan eventLine), 0
	var early atomic.Int32
	go func() {
		defer close(big)
		for i := range 64 {
			big <- eventLine{at: time.Unix(int64(i), 0), json: make([]byte, 1<<20)}
			if i > sortMax>>20+2 && early.Load() == 0 {
				t.Error("all is held")
			}
		}
	}()
	if err := sortLogs([]chan eventLine{big}, func(eventLine) error { sent++; early.Add(1); return nil }); err != nil || sent != 64 {
		t.Errorf("%d sent, %v", sent, err)
	}
}

func TestMixLogs(t *testing.T) {
	var got []byte
	err := mixLogs(logsOf([]int{1, 4}, []int{2}), func(l eventLine) error {
		got = append(got, l.json...)
		return nil
	})
	slices.Sort(got)
	if err != nil || string(got) != "124" {
		t.Errorf("got %q, %v", got, err)
	}
}
