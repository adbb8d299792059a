package step

import (
	"testing"
	"time"
)

func TestParseBegin(t *testing.T) {
	now := time.Date(2026, 11, 22, 15, 30, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"now": "2026-11-22T15:30:00", "now+60": "2026-11-22T15:31:00", "now+2hours": "2026-11-22T17:30:00", "now+1Week": "2026-11-29T15:30:00",
		"16:00": "2026-11-22T16:00:00", "15:29:59": "2026-11-23T15:29:59", "midnight": "2026-11-23T00:00:00", "noon": "2026-11-23T12:00:00",
		"teatime": "2026-11-22T16:00:00", "tomorrow": "2026-11-23T00:00:00", "2027-01-02": "2027-01-02T00:00:00", "2027-01-02T03:04": "2027-01-02T03:04:00",
	} {
		got, err := ParseBegin(text, now)
		if err != nil || got.Format("2006-01-02T15:04:05") != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "soon", "now-1", "now+", "now+1fortnight", "now+99999999weeks", "25:00", "2027-13-01", "nowadays"} {
		if got, err := ParseBegin(text, now); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func FuzzParseBegin(f *testing.F) {
	for _, s := range []string{"now+60", "16:00", "2027-01-02T03:04:05"} {
		f.Add(s)
	}
	now := time.Date(2026, 11, 22, 15, 30, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := ParseBegin(s, now); err == nil && got.IsZero() && s[0] != '0' {
			t.Fatalf("%q is no time", s)
		}
	})
}
