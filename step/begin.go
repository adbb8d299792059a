package step

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

var errBegin = errors.New("write HH:MM[:SS], YYYY-MM-DD[THH:MM[:SS]], now[+N[seconds|minutes|hours|days|weeks]], midnight, noon, today or tomorrow")

// ParseBegin reads the times of sbatch's --begin, as seen at now. A time of the day that is
// over is tomorrow's.
func ParseBegin(text string, now time.Time) (time.Time, error) {
	word := strings.ToLower(text)
	if rest, ok := strings.CutPrefix(word, "now"); ok {
		d, err := beginAfter(rest)
		return now.Add(d), err
	}
	day := func(days, hour int) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+days, hour, 0, 0, 0, now.Location())
	}
	next := func(t time.Time) time.Time {
		if t.Before(now) {
			t = t.AddDate(0, 0, 1)
		}
		return t
	}
	switch word {
	case "today":
		return now, nil
	case "tomorrow", "midnight":
		return day(1, 0), nil
	case "noon":
		return next(day(0, 12)), nil
	case "teatime":
		return next(day(0, 16)), nil
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return next(time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())), nil
		}
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errBegin
}

// beginAfter reads what stands behind "now": "+10minutes".
func beginAfter(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	rest, ok := strings.CutPrefix(text, "+")
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	n, err := strconv.ParseUint(rest[:digits], 10, 31)
	if !ok || err != nil {
		return 0, errBegin
	}
	units := map[string]time.Duration{
		"": time.Second, "second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
	}
	unit, ok := units[strings.TrimSuffix(rest[digits:], "s")]
	if !ok || n > uint64(10*365*24*time.Hour/unit) {
		return 0, errBegin
	}
	return time.Duration(n) * unit, nil
}
