package affinity

import (
	"fmt"
	"math/bits"
	"strings"

	"stepd/step"
)

// CPUSet is a set of CPU numbers, or of memory nodes, as the kernel's bit mask:
// number n is bit n%64 of word n/64. The zero value is empty. It is not changed
// once others have it.
type CPUSet []uint64

// NewCPUSet makes the set of the numbers.
func NewCPUSet(numbers ...int) CPUSet {
	var s CPUSet
	for _, n := range numbers {
		s.add(n)
	}
	return s
}

func (s *CPUSet) add(n int) {
	for len(*s) <= n/64 {
		*s = append(*s, 0)
	}
	(*s)[n/64] |= 1 << (n % 64)
}

// Has reports whether n is in the set.
func (s CPUSet) Has(n int) bool { return n >= 0 && n/64 < len(s) && s[n/64]&(1<<(n%64)) != 0 }

// Len counts the numbers in it.
func (s CPUSet) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Numbers are the numbers in the set, ascending.
func (s CPUSet) Numbers() []int {
	out := make([]int, 0, s.Len())
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			out = append(out, 64*i+bits.TrailingZeros64(w))
		}
	}
	return out
}

// String is the kernel's list format: "0-2,5".
func (s CPUSet) String() string { return step.FormatCPUList(s.Numbers()) }

// Hex is the mask as srun reports it: "0x10001".
func (s CPUSet) Hex() string {
	var b strings.Builder
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case b.Len() > 0:
			fmt.Fprintf(&b, "%016x", s[i])
		case s[i] != 0 || i == 0:
			fmt.Fprintf(&b, "0x%x", s[i])
		}
	}
	if b.Len() == 0 {
		return "0x0"
	}
	return b.String()
}

// padded is the mask as SLURM_CPU_BIND_LIST has it: in capitals, and as wide as
// the machine is, of width CPUs, in whole words of 32.
func (s CPUSet) padded(width int) string {
	digits := strings.ToUpper(s.Hex()[2:])
	want := (width + 31) / 32 * 8
	return "0x" + strings.Repeat("0", max(want-len(digits), 0)) + digits
}

func (s CPUSet) and(t CPUSet) CPUSet {
	out := make(CPUSet, min(len(s), len(t)))
	for i := range out {
		out[i] = s[i] & t[i]
	}
	return out
}

func (s CPUSet) or(t CPUSet) CPUSet {
	if len(s) < len(t) {
		s, t = t, s
	}
	out := append(CPUSet(nil), s...)
	for i := range t {
		out[i] |= t[i]
	}
	return out
}

// without is what of s is not in t.
func (s CPUSet) without(t CPUSet) CPUSet {
	out := append(CPUSet(nil), s...)
	for i := range min(len(s), len(t)) {
		out[i] &^= t[i]
	}
	return out
}
