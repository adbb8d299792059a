package terminal

import (
	"fmt"
	"strings"
)

// DefaultDetachKeys leave an attached terminal.
const DefaultDetachKeys = "ctrl-],d"

// DetachKeys is a sequence of keys that is not typed into the terminal but ends the
// client's part in it. The first of them, typed twice, is typed once. nil is none.
type DetachKeys struct {
	keys []byte
	seen int // of keys, which were typed and are held back
}

// ParseDetachKeys reads "ctrl-],d": letters and digits, or ctrl- with a letter or one
// of @ [ \ ] ^ _; "none" or "" is none.
func ParseDetachKeys(s string) (*DetachKeys, error) {
	if s == "" || strings.EqualFold(s, "none") {
		return nil, nil
	}
	d := &DetachKeys{}
	for word := range strings.SplitSeq(s, ",") {
		key, ok := parseKey(word)
		if !ok {
			return nil, fmt.Errorf("--detach-keys=%s: %q is no key: write a letter, or ctrl- with a letter or one of @[\\]^_, parted by commas, or none", s, word)
		}
		d.keys = append(d.keys, key)
	}
	return d, nil
}

func parseKey(word string) (key byte, ok bool) {
	rest, ctrl := strings.CutPrefix(strings.ToLower(word), "ctrl-")
	switch {
	case ctrl && len(rest) == 1 && rest[0] >= 'a' && rest[0] <= 'z':
		return rest[0] & 0x1f, true
	case ctrl && len(rest) == 1 && strings.Contains("@[\\]^_", rest):
		return rest[0] & 0x1f, true
	case !ctrl && len(word) == 1 && word[0] > ' ' && word[0] < 0x7f:
		return word[0], true
	}
	return 0, false
}

// Words tells people what to type: "Ctrl-] d".
func (d *DetachKeys) Words() string {
	var words []string
	for _, k := range d.keys {
		if k < 0x20 {
			words = append(words, "Ctrl-"+string(rune(k|0x40)))
		} else {
			words = append(words, string(rune(k)))
		}
	}
	return strings.Join(words, " ")
}

// pass returns what is to be typed of data; left is true when the keys were in it, and
// what was typed behind them is lost.
func (d *DetachKeys) pass(data []byte) (typed []byte, left bool) {
	if d == nil {
		return data, false
	}
	for _, b := range data {
		switch {
		case b == d.keys[d.seen]:
			if d.seen++; d.seen == len(d.keys) {
				return typed, true
			}
		case d.seen == 1 && b == d.keys[0]:
			typed, d.seen = append(typed, b), 0
		default:
			typed = append(typed, d.keys[:d.seen]...)
			if d.seen = 0; b == d.keys[0] {
				d.seen = 1
			} else {
				typed = append(typed, b)
			}
		}
	}
	return typed, false
}
