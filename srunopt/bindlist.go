package srunopt

import (
	"errors"
	"fmt"
	"stepd/step"
	"strconv"
	"strings"
)

// Limits on the list of a map or mask, which a user writes.
const (
	// BindListMax bounds its text, in bytes: the tasks are told it in a variable.
	BindListMax = step.VariableMax
	// bindItemsMax bounds its entries: no step has more tasks.
	bindItemsMax = step.TasksMax
	// numberMax bounds the number of a CPU and of a memory node.
	numberMax = 1 << 16
	// maskDigits is the longest mask: one with numberMax bits.
	maskDigits = numberMax / 4
)

// BindItem is an entry of a map or mask list, for Times tasks one after the other.
type BindItem struct {
	// Numbers are the CPUs or memory nodes, ascending: one of a map; of a mask
	// the bits that are set, which may be none.
	Numbers []int
	Times   int // at least 1
}

// BindList reads the list of a map or mask: "0,4,0x8*2". Numbers are decimal, or
// hexadecimal after 0x; masks always are hexadecimal. "*N" repeats an entry for N
// tasks. Empty entries are passed over, as by srun; a list of nothing else is an error.
func BindList(text string, masks bool) ([]BindItem, error) {
	if len(text) > BindListMax {
		return nil, fmt.Errorf("the list has %d bytes: the limit is %d", len(text), BindListMax)
	}
	var items []BindItem
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		if len(items) == bindItemsMax {
			return nil, fmt.Errorf("the list has more than %d entries", bindItemsMax)
		}
		value, times, repeated := strings.Cut(part, "*")
		item := BindItem{Times: 1}
		if repeated {
			n, err := strconv.ParseUint(times, 10, 32)
			if err != nil || n < 1 || n > step.TasksMax {
				return nil, fmt.Errorf("%.40q is repeated %.20q times: write a number from 1 to %d", value, times, step.TasksMax)
			}
			item.Times = int(n)
		}
		var err error
		if masks {
			item.Numbers, err = parseMask(value)
		} else {
			item.Numbers, err = parseNumber(value)
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	if len(items) == 0 {
		return nil, errors.New("the list is empty")
	}
	return items, nil
}

func parseNumber(s string) ([]int, error) {
	digits, base := s, 10
	if hex, ok := cutHex(s); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 32)
	if err != nil || n >= numberMax {
		return nil, fmt.Errorf("%.40q is not a number below %d", s, numberMax)
	}
	return []int{int(n)}, nil
}

// parseMask reads a hexadecimal mask of any width.
func parseMask(s string) ([]int, error) {
	digits, _ := cutHex(s)
	if digits == "" {
		return nil, fmt.Errorf("%.40q is not a hexadecimal mask", s)
	}
	digits = strings.TrimLeft(digits, "0")
	if len(digits) > maskDigits {
		return nil, fmt.Errorf("the mask %.40q... has %d digits: the limit is %d", s, len(digits), maskDigits)
	}
	var bits []int
	for i := len(digits) - 1; i >= 0; i-- {
		v, err := strconv.ParseUint(digits[i:i+1], 16, 8)
		if err != nil {
			return nil, fmt.Errorf("%.40q is not a hexadecimal mask", s)
		}
		for bit := range 4 {
			if v&(1<<bit) != 0 {
				bits = append(bits, 4*(len(digits)-1-i)+bit)
			}
		}
	}
	return bits, nil
}

// cutHex takes 0x or 0X off.
func cutHex(s string) (string, bool) {
	if len(s) > 1 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		return s[2:], true
	}
	return s, false
}

// listKind says what stands behind a type's colon.
type listKind int

const (
	listNone listKind = iota
	listNumbers
	listMasks
)

// bindWord is one word of --cpu-bind or --mem-bind, with its list.
type bindWord struct {
	name   string
	list   string
	listed bool // there was a colon
}

// bindWords parts the option's text at its commas, and gives a list back those
// that are its own: what follows it belongs to it as long as it begins like a
// number, or could be a mask.
func bindWords(option, text string) ([]bindWord, error) {
	if len(text) > BindListMax {
		return nil, fmt.Errorf("%s: %d bytes: the limit is %d", option, len(text), BindListMax)
	}
	var words []bindWord
	for part := range strings.SplitSeq(text, ",") {
		last := len(words) - 1
		name, list, listed := strings.Cut(part, ":")
		switch {
		case part == "":
		case last >= 0 && words[last].listed && !listed && isItem(part):
			words[last].list += "," + part
		default:
			words = append(words, bindWord{strings.ToLower(name), list, listed})
		}
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("%s: it is empty; %s=help lists what there is", option, option)
	}
	return words, nil
}

// isItem reports whether a word is an entry of a list: no name of a type is.
func isItem(s string) bool {
	if s[0] >= '0' && s[0] <= '9' || s[0] == '-' || s[0] == '*' {
		return true
	}
	return strings.Trim(s, "0123456789abcdefABCDEF*") == ""
}

// checkList checks that w has a list where it must and nowhere else,
// and can be read. option, if any, is named in the error.
func checkList(option string, w bindWord, kind listKind) error {
	if option != "" {
		option += ": "
	}
	switch {
	case kind == listNone && w.listed:
		return fmt.Errorf("%s%.40q takes no list", option, w.name)
	case kind == listNone:
		return nil
	}
	if _, err := BindList(w.list, kind == listMasks); err != nil {
		return fmt.Errorf("%s%s: %w (write %s:N,N,... or %s:N*TIMES)", option, w.name, err, w.name, w.name)
	}
	return nil
}
