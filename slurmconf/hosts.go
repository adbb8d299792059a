package slurmconf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of a host list. hostsMax is Slurm's own for one range.
const (
	hostsMax    = 65536   // names of one list
	hostNameMax = 255     // bytes of one name
	hostListMax = 1 << 20 // bytes of the list
	rangeDigits = 18      // of a number in a range: fits an int64
	bracketsMax = 5       // brackets in one item: the dimensions of Slurm's largest torus
)

// ExpandHosts writes out a host list: "n[1-3,5],m" is n1 n2 n3 n5 m. Items are
// parted by commas or blanks. Numbers keep the width of a range's first one:
// "n[08-10]" is n08 n09 n10. Several brackets in one item give all
// combinations, and text may follow a bracket (which Slurm refuses). The order
// and repeated names are kept. More than 65,536 names are an error.
func ExpandHosts(list string) ([]string, error) {
	if len(list) > hostListMax {
		return nil, fmt.Errorf("cannot expand host list of %d bytes: the limit is %d", len(list), hostListMax)
	}
	var out []string
	for rest := list; rest != ""; {
		item, left, err := cutItem(rest)
		if err != nil {
			return nil, fmt.Errorf("cannot expand host list %.80q: %w", list, err)
		}
		rest = left
		if item == "" {
			continue
		}
		if out, err = expandItem(out, item); err != nil {
			return nil, fmt.Errorf("cannot expand host list %.80q: %w", list, err)
		}
	}
	return out, nil
}

// cutItem cuts at the first comma or blank outside brackets.
func cutItem(s string) (item, rest string, err error) {
	open := false
	for i := range len(s) {
		switch c := s[i]; {
		case c == '[' && open:
			return "", "", errors.New("a bracket within a bracket")
		case c == '[':
			open = true
		case c == ']' && !open:
			return "", "", errors.New("a closing bracket without an opening one")
		case c == ']':
			open = false
		case !open && (c == ',' || strings.IndexByte(blanks, c) >= 0):
			return s[:i], s[i+1:], nil
		}
	}
	if open {
		return "", "", errors.New("a bracket is not closed")
	}
	return s, "", nil
}

// expandItem appends the names of one item to out.
func expandItem(out []string, item string) ([]string, error) {
	names := []string{""}
	if strings.Count(item, "[") > bracketsMax {
		return nil, fmt.Errorf("more than %d brackets in %.40q", bracketsMax, item)
	}
	for rest := item; rest != ""; {
		head, after, bracket := strings.Cut(rest, "[")
		numbers := []string{""}
		rest = ""
		if bracket {
			inside, tail, _ := strings.Cut(after, "]")
			var err error
			if numbers, err = expandRanges(inside); err != nil {
				return nil, err
			}
			rest = tail
		}
		// Before the product is made: "[1-9][1-9]…" would double with each byte.
		if len(out)+len(names)*len(numbers) > hostsMax {
			return nil, fmt.Errorf("more than %d names", hostsMax)
		}
		if len(names[0])+len(head)+rangeDigits > hostNameMax {
			return nil, fmt.Errorf("a name has more than %d bytes", hostNameMax-rangeDigits)
		}
		names = product(names, head, numbers)
	}
	return append(out, names...), nil
}

func product(names []string, head string, numbers []string) []string {
	out := make([]string, 0, len(names)*len(numbers))
	for _, n := range names {
		for _, x := range numbers {
			out = append(out, n+head+x)
		}
	}
	return out
}

// expandRanges writes out what stands in one bracket: "1-3,5".
func expandRanges(s string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, err1 := rangeNumber(lo)
		last, err2 := rangeNumber(hi)
		if err := errors.Join(err1, err2); err != nil || last < first {
			return nil, fmt.Errorf("%.40q is no range of numbers", part)
		}
		if last-first >= uint64(hostsMax-len(out)) {
			return nil, fmt.Errorf("more than %d names", hostsMax)
		}
		for n := first; n <= last; n++ {
			out = append(out, fmt.Sprintf("%0*d", len(lo), n))
		}
	}
	return out, nil
}

func rangeNumber(s string) (uint64, error) {
	if len(s) > rangeDigits {
		return 0, errors.New("too many digits")
	}
	return strconv.ParseUint(s, 10, 64)
}

// CompressHosts is the short form of names, as Slurm writes it:
// "n[1-3,5],m". The order and repeated names are kept, so that ExpandHosts
// gives the same names back.
func CompressHosts(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		j := sameHead(names, i)
		if j == i+1 {
			out = append(out, names[i])
		} else {
			head, _ := splitNumber(names[i])
			out = append(out, head+"["+ranges(names[i:j])+"]")
		}
		i = j
	}
	return strings.Join(out, ",")
}

// sameHead returns the end of the run of names from i on that differ in their
// number alone.
func sameHead(names []string, i int) int {
	head, number := splitNumber(names[i])
	j := i + 1
	for ; number != "" && j < len(names); j++ {
		if h, n := splitNumber(names[j]); h != head || n == "" {
			break
		}
	}
	return j
}

// splitNumber cuts the digits at a name's end off; a number too long for a
// range counts as text.
func splitNumber(name string) (head, number string) {
	n := len(name)
	for n > 0 && name[n-1] >= '0' && name[n-1] <= '9' {
		n--
	}
	if len(name)-n > rangeDigits {
		return name, ""
	}
	return name[:n], name[n:]
}

// ranges are the numbers of names of one head: "1-3,5".
func ranges(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		_, text := splitNumber(names[i])
		first, _ := strconv.ParseUint(text, 10, 64)
		width, j := len(text), i+1
		for ; j < len(names); j++ {
			if _, n := splitNumber(names[j]); n != fmt.Sprintf("%0*d", width, first+uint64(j-i)) {
				break
			}
		}
		if j > i+1 {
			_, last := splitNumber(names[j-1])
			text += "-" + last
		}
		out = append(out, text)
		i = j
	}
	return strings.Join(out, ",")
}
