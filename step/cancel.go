package step

import (
	"fmt"
	"strconv"
)

// CancelledBy is the reason of a step that a user has cancelled. The daemon that took the
// request writes it: by is the uid of its peer, from the kernel. note is what the client
// adds, "" for nothing: it is quoted, so that no note reads as another's signature.
func CancelledBy(by uint32, note string) string {
	text := fmt.Sprintf("cancelled by uid %d", by)
	if note != "" {
		text += ": " + strconv.Quote(note)
	}
	return text
}
