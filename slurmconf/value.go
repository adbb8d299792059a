package slurmconf

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// flaw is what is wrong with a value, and what to write instead.
type flaw struct {
	severity    Severity
	why, remedy string
}

func wrong(remedy, format string, args ...any) *flaw {
	return &flaw{SeverityError, fmt.Sprintf(format, args...), remedy}
}

// setter puts a value into its field, or says why it cannot; then the field
// keeps what it had.
type setter func(value string) *flaw

// secondsMax is the longest interval that Slurm's 16-bit fields hold.
const secondsMax = 65533

func text(field *string) setter {
	return func(v string) *flaw { *field = v; return nil }
}

// number reads a whole number. A leading zero means octal to Slurm, which
// no site wants, so it is refused.
func number(v string, low, high uint64) (uint64, *flaw) {
	remedy := fmt.Sprintf("write a number from %d to %d", low, high)
	if len(v) > 1 && v[0] == '0' && !strings.HasPrefix(strings.ToLower(v), "0x") {
		return 0, wrong(remedy, "a leading zero makes it an octal number for Slurm")
	}
	n, err := strconv.ParseUint(v, 0, 64)
	if err != nil || strings.ContainsAny(v, "_oObB") && !strings.HasPrefix(strings.ToLower(v), "0x") {
		return 0, wrong(remedy, "not a whole number")
	}
	if n < low || n > high {
		return 0, wrong(remedy, "out of range")
	}
	return n, nil
}

// parsed puts what parse makes of a value into its field, unless parse finds an error.
func parsed[T any](field *T, parse func(string) (T, *flaw)) setter {
	return func(v string) *flaw {
		x, f := parse(v)
		if f == nil || f.severity != SeverityError {
			*field = x
		}
		return f
	}
}

// optional is for a field that is nil where its key is not set.
func optional[T any](field **T, set func(*T) setter) setter {
	return parsed(field, func(v string) (*T, *flaw) {
		x := new(T)
		return x, set(x)(v)
	})
}

// hostList takes "n[01-16],login", or "ALL", as it is written.
func hostList(field *string) setter {
	return func(v string) *flaw {
		if _, err := ExpandHosts(v); err != nil {
			// The names may be of other nodes alone, whose matter it is.
			return &flaw{SeverityWarning, err.Error(), "write a list such as n[1-3,5],m"}
		}
		*field = v
		return nil
	}
}

func count[T int | int64 | uint64](field *T, low, high uint64) setter {
	return times(field, 1, low, high)
}

// times takes a number of units.
func times[T ~int | ~int64 | ~uint64](field *T, unit T, low, high uint64) setter {
	return parsed(field, func(v string) (T, *flaw) {
		n, f := number(v, low, high)
		return T(n) * unit, f
	})
}

func seconds(field *time.Duration) setter { return times(field, time.Second, 0, secondsMax) }

// secondsFrom1 is for a wait that must not be none.
func secondsFrom1(field *time.Duration) setter { return times(field, time.Second, 1, secondsMax) }

// orUnlimited takes Slurm's words for "no limit" too, which is 0 here.
func orUnlimited[T int | uint64 | time.Duration](field *T, set setter) setter {
	return func(v string) *flaw {
		if strings.EqualFold(v, "INFINITE") || strings.EqualFold(v, "UNLIMITED") {
			*field = 0
			return nil
		}
		return set(v)
	}
}

func boolean(field *bool) setter { return parsed(field, parseBool) }

// notBoolean takes the same words for a field that says the opposite of its key.
func notBoolean(field *bool) setter {
	return parsed(field, func(v string) (bool, *flaw) {
		yes, f := parseBool(v)
		return !yes, f
	})
}

func parseBool(v string) (bool, *flaw) {
	switch strings.ToLower(v) {
	case "yes", "true", "up", "1":
		return true, nil
	case "no", "false", "down", "0":
		return false, nil
	}
	return false, wrong("write yes or no", "neither yes nor no")
}

// words splits at commas; empty items vanish.
func words(v string) []string {
	return slices.DeleteFunc(strings.Split(v, ","), func(s string) bool { return s == "" })
}

func list(field *[]string) setter {
	return func(v string) *flaw { *field = words(v); return nil }
}

// oneOf takes one of the allowed words, with or without one of the prefixes
// ("proctrack/"), in any case, and returns the word alone.
func oneOf(prefixes []string, allowed ...string) func(string) (string, *flaw) {
	return func(v string) (string, *flaw) {
		word := bare(v, prefixes...)
		if !slices.Contains(allowed, word) {
			return "", wrong("write one of "+strings.Join(allowed, ", "), "not available")
		}
		return word, nil
	}
}

// bare lowers a plugin's name and cuts its kind off.
func bare(v string, prefixes ...string) string {
	v = strings.ToLower(v)
	for _, p := range prefixes {
		if word, ok := strings.CutPrefix(v, p); ok {
			return word
		}
	}
	return v
}

func absolute(v string) (string, *flaw) {
	if !filepath.IsAbs(v) {
		return "", wrong("write a path that begins with /", "not an absolute path")
	}
	return filepath.Clean(v), nil
}

// beside takes a path; a relative one is beneath dir.
func beside(field *string, dir string) setter {
	return func(v string) *flaw {
		*field = joinDir(dir, v)
		return nil
	}
}

func joinDir(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// absoluteList splits at sep; every item must be an absolute path.
func absoluteList(field *[]string, sep string) setter {
	return parsed(field, func(v string) (out []string, _ *flaw) {
		for item := range strings.SplitSeq(v, sep) {
			switch {
			case item == "":
			case !filepath.IsAbs(item):
				return nil, wrong("write paths that begin with /", "%q is not an absolute path", item)
			default:
				out = append(out, filepath.Clean(item))
			}
		}
		return out, nil
	})
}

// memory reads a size in MiB; 0 and Slurm's words for it are no limit.
func memory(field *uint64) setter { return orUnlimited(field, count(field, 0, memoryMax)) }
