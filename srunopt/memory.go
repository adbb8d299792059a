package srunopt

import (
	"fmt"
	"strconv"
)

// MemoryMax bounds a request for memory, in MB: 1 EB.
const MemoryMax = 1 << 40

// ParseMemory reads a size as srun's --mem takes it: a number of MB, or one with
// the suffix K, M, G or T. Kilobytes are rounded up.
func ParseMemory(s string) (mb uint64, err error) {
	digits, factor := s, uint64(1)
	kb := false
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'k', 'K':
			digits, kb = s[:n-1], true
		case 'm', 'M':
			digits = s[:n-1]
		case 'g', 'G':
			digits, factor = s[:n-1], 1<<10
		case 't', 'T':
			digits, factor = s[:n-1], 1<<20
		}
	}
	v, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || digits[0] == '+' {
		return 0, fmt.Errorf("%.40q is no size: want a number of MB, or one with K, M, G or T", s)
	}
	if v > MemoryMax/factor && !kb || kb && v>>10 >= MemoryMax {
		return 0, fmt.Errorf("%.40q is more than any machine has", s)
	}
	if kb {
		return (v + 1023) >> 10, nil
	}
	return v * factor, nil
}

// FormatMB is a number of MB for people: "23 GB", "1500 MB".
func FormatMB(mb uint64) string {
	switch {
	case mb >= 1<<20 && mb%(1<<20) == 0:
		return fmt.Sprintf("%d TB", mb>>20)
	case mb >= 1<<10 && mb%(1<<10) == 0:
		return fmt.Sprintf("%d GB", mb>>10)
	case mb >= 10<<10:
		return fmt.Sprintf("%.1f GB", float64(mb)/1024)
	}
	return fmt.Sprintf("%d MB", mb)
}
