package stepapi

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CancelledBy is the reason of a step that a user has cancelled. The daemon that took the
// request writes it: by is the uid of its peer, from the kernel. note is the client's own
// words, "" for none: they are quoted, so that no note reads as another user's signature.
func CancelledBy(by uint32, note string) string {
	text := fmt.Sprintf("cancelled by uid %d", by)
	if note != "" {
		text += ": " + strconv.Quote(note)
	}
	return text
}

// reasonMax bounds the reason of a cancel: it goes into the record, the log and
// other people's terminals.
const reasonMax = 256

// CheckReason refuses the reason of a cancel that does not fit on one line.
func CheckReason(reason string) error {
	if len(reason) > reasonMax || strings.ContainsFunc(reason, unicode.IsControl) || !utf8.ValidString(reason) {
		return fmt.Errorf("cannot take the reason %.32q: want at most %d bytes on one line", reason, reasonMax)
	}
	return nil
}
