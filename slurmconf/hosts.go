package slurmconf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// hostsMax bounds what one expression may expand to.
const hostsMax = 65536

var errTooManyHosts = fmt.Errorf("it names more than %d hosts", hostsMax)

// ExpandHosts expands a host list expression, "n[1-3,5]x,m", in its order
// (slurm.conf(5), NodeName). Leading zeros keep their width.
func ExpandHosts(expr string) ([]string, error) {
	var out []string
	for _, part := range splitHosts(expr) {
		names, err := expandOne(part, hostsMax-len(out))
		if err != nil {
			return nil, fmt.Errorf("cannot expand host list %q: %w", expr, err)
		}
		out = append(out, names...)
	}
	return out, nil
}

// splitHosts splits at the commas outside of brackets.
func splitHosts(expr string) (parts []string) {
	depth, start := 0, 0
	for i, c := range expr {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, expr[start:i])
			start = i + 1
		}
	}
	parts = append(parts, expr[start:])
	return slices.DeleteFunc(parts, func(p string) bool { return strings.TrimSpace(p) == "" })
}

// expandOne expands one name with any number of brackets.
func expandOne(s string, room int) ([]string, error) {
	s = strings.TrimSpace(s)
	prefix, rest, ok := strings.Cut(s, "[")
	if !ok {
		if strings.Contains(s, "]") {
			return nil, errors.New("] without [")
		}
		if room < 1 {
			return nil, errTooManyHosts
		}
		return []string{s}, nil
	}
	ranges, tail, ok := strings.Cut(rest, "]")
	if !ok {
		return nil, errors.New("[ without ]")
	}
	tails, err := expandOne(tail, room)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range strings.Split(ranges, ",") {
		nums, err := expandRange(r, room/max(1, len(tails)))
		if err != nil {
			return nil, err
		}
		for _, n := range nums {
			for _, t := range tails {
				out = append(out, prefix+n+t)
			}
		}
		if len(out) > room {
			return nil, errTooManyHosts
		}
	}
	return out, nil
}

// expandRange expands "3", "03-11".
func expandRange(r string, room int) ([]string, error) {
	lo, hi, isRange := strings.Cut(r, "-")
	if !isRange {
		hi = lo
	}
	a, err1 := strconv.ParseUint(lo, 10, 32)
	b, err2 := strconv.ParseUint(hi, 10, 32)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%q is no range of numbers", r)
	}
	if b < a {
		return nil, fmt.Errorf("range %q goes down", r)
	}
	if b-a >= uint64(max(room, 0)) {
		return nil, errTooManyHosts
	}
	out := make([]string, 0, b-a+1)
	for n := a; n <= b; n++ {
		out = append(out, fmt.Sprintf("%0*d", len(lo), n))
	}
	return out, nil
}
