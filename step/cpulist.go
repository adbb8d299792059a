package step

import (
	"fmt"
	"strconv"
	"strings"
)

// cpuMax bounds a CPU number, so that a list cannot make us allocate without end.
const cpuMax = 1 << 16

// FormatCPUList writes ascending CPU numbers as the kernel does in its list
// format (cpuset(7)): "0-2,5". No numbers give "".
func FormatCPUList(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(cpus[j]))
		}
		i = j + 1
	}
	return b.String()
}

// ParseCPUList reads the kernel's list format. Numbers must ascend and not
// repeat; the empty string is the empty list.
func ParseCPUList(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var cpus []int
	last := -1
	for _, part := range strings.Split(s, ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		first, err := parseCPU(lo)
		if err != nil {
			return nil, fmt.Errorf("cannot parse CPU list %.80q: %w", s, err)
		}
		end := first
		if ranged {
			if end, err = parseCPU(hi); err != nil {
				return nil, fmt.Errorf("cannot parse CPU list %.80q: %w", s, err)
			}
		}
		if first <= last || end < first {
			return nil, fmt.Errorf("cannot parse CPU list %.80q: %q does not ascend", s, part)
		}
		for n := first; n <= end; n++ {
			cpus = append(cpus, n)
		}
		last = end
	}
	return cpus, nil
}

func parseCPU(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n >= cpuMax {
		return 0, fmt.Errorf("%.20q is not a CPU number", s)
	}
	return int(n), nil
}
