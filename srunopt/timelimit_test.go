package srunopt

import (
	"errors"
	"strconv"
	"testing"

	"stepd/step"
)

func TestParseTime(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
		ok   bool
	}{
		{"1", 60, true}, {"0:01", 1, true}, {"1:30", 90, true}, {"1:00:05", 3605, true}, {"90:00", 5400, true},
		{"1-2", 26 * 3600, true}, {"1-2:03", 26*3600 + 180, true}, {"0-0:0:7", 7, true},
		{"0", 0, true}, {"-1", 0, true}, {"UNLIMITED", 0, true}, {"infinite", 0, true},
		{"", 0, false}, {"x", 0, false}, {"1:", 0, false}, {":1", 0, false}, {"1:2:3:4", 0, false}, {"1-2:3:4:5", 0, false},
		{"-2", 0, false}, {"1-", 0, false}, {"366-0", 0, false}, {"99999999999", 0, false}, {"+1", 0, false}, {"1.5", 0, false},
	} {
		got, err := ParseTime(c.text)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("ParseTime(%q) = %d, %v", c.text, got, err)
		}
	}
}

func someSignal(s string) (int, error) {
	if s == "USR1" {
		return 10, nil
	}
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 65 {
		return n, nil
	}
	return 0, errors.New("no signal")
}

func TestParseWarning(t *testing.T) {
	for _, c := range []struct {
		text string
		want step.Warning
		ok   bool
	}{
		{"USR1", step.Warning{Signal: 10, BeforeS: 60}, true}, {"12@30", step.Warning{Signal: 12, BeforeS: 30}, true},
		{"B:USR1@5", step.Warning{Signal: 10, BeforeS: 5, Batch: true}, true}, {"R:USR1", step.Warning{Signal: 10, BeforeS: 60}, true},
		{"rb:USR1@0", step.Warning{Signal: 10, Batch: true}, true},
		{"USR1@65536", step.Warning{}, false}, {"X:USR1", step.Warning{}, false}, {"@5", step.Warning{}, false}, {"USR1@", step.Warning{}, false}, {"USR1@-1", step.Warning{}, false},
	} {
		got, err := ParseWarning(c.text, someSignal)
		if (err == nil) != c.ok || (c.ok && *got != c.want) {
			t.Errorf("ParseWarning(%q) = %+v, %v", c.text, got, err)
		}
	}
}

func FuzzParseTime(f *testing.F) {
	f.Add("1-2:03:04")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseTime(s); n < 0 || n > timeLimitMax || (err != nil && n != 0) {
			t.Errorf("%q: %d, %v", s, n, err)
		}
		if w, err := ParseWarning(s, someSignal); err == nil && (w.BeforeS < 0 || w.BeforeS > warnBeforeMax) {
			t.Errorf("%q: %+v", s, w)
		}
	})
}

func TestEarlier(t *testing.T) {
	if Earlier(0, 0) != 0 || Earlier(5, 0) != 5 || Earlier(0, 7) != 7 || Earlier(7, 5) != 5 {
		t.Error("wrong")
	}
}
