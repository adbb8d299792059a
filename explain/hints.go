package explain

import (
	_ "embed" // hints.txt
	"strings"
)

// hints are lines "KIND WORD | TEXT": what a stage of the launch does, in the launch's order; what an
// error of execve(2) usually means, and the end by a signal; and what to do about what a task has
// found out about its file, by words of that.
//
//go:embed hints.txt
var hints string

// hint is the text of the first line of a kind whose word fits, "" without one.
func hint(kind string, fits func(word string) bool) string {
	for line := range strings.Lines(hints) {
		key, text, _ := strings.Cut(line, " | ")
		if word, ours := strings.CutPrefix(key, kind+" "); ours && fits(word) {
			return strings.TrimSuffix(text, "\n")
		}
	}
	return ""
}
