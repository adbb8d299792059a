package srunopt

import (
	"fmt"
	"iter"
	"strconv"
	"strings"

	"stepd/step"
)

// pathMax is PATH_MAX: a longer name cannot be opened.
const pathMax = 4096

// ExpandPattern makes a file name of srun's pattern (srun(1), IO redirection):
// %j the job id, %A its array's, %a the array task, %J "job.step", %s the step, %N the
// node's name, %n its number, %t the rank, %u the user, %x the job's name, %%.
// A number between % and the letter pads with zeros, to ten digits at most. A
// backslash anywhere keeps all of the pattern as it is, but for the backslashes: each
// makes the byte behind it an ordinary one.
func ExpandPattern(pattern string, s *step.Spec, rank int) (string, error) {
	var b strings.Builder
	if isEscaped(pattern) {
		for i := 0; i < len(pattern); i++ {
			if pattern[i] == '\\' {
				if i++; i == len(pattern) {
					break
				}
			}
			b.WriteByte(pattern[i])
		}
		return checkName(pattern, b.String())
	}
	for part, letter := range patternParts(pattern) {
		if letter != 0 {
			width, _ := strconv.Atoi(part[1 : len(part)-1])
			part = expandLetter(letter, min(width, 10), part, s, rank)
		}
		b.WriteString(part)
	}
	return checkName(pattern, b.String())
}

// patternParts yields what a pattern consists of: text with the letter 0, and each %[WIDTH]LETTER.
func patternParts(pattern string) iter.Seq2[string, byte] {
	return func(yield func(string, byte) bool) {
		for rest := pattern; rest != ""; {
			text, after, found := strings.Cut(rest, "%")
			width := len(after) - len(strings.TrimLeft(after, "0123456789"))
			if !found || width == len(after) { // no letter ends it
				yield(rest, 0)
				return
			}
			end := len(text) + 1 + width + 1
			if !yield(text, 0) || !yield(rest[len(text):end], after[width]) {
				return
			}
			rest = rest[end:]
		}
	}
}

func isEscaped(pattern string) bool { return strings.IndexByte(pattern, '\\') >= 0 }

func checkName(pattern, name string) (string, error) {
	if len(name) >= pathMax || strings.IndexByte(name, 0) >= 0 {
		return "", fmt.Errorf("cannot expand file name pattern %.64q: the name is longer than %d bytes or holds a zero byte", pattern, pathMax)
	}
	return name, nil
}

// expandLetter gives the text for one letter; whole is returned as it is for
// an unknown one.
func expandLetter(letter byte, width int, whole string, s *step.Spec, rank int) string {
	job, task := s.ID.Job, uint32(4294967294) // NO_VAL: the job is no array
	if s.Array != nil {
		job, task = s.Array.Job, s.Array.Task
	}
	numbers := map[byte]uint32{'j': s.ID.Job, 'A': job, 'a': task, 's': s.ID.Step, 'n': uint32(s.NodeID), 't': uint32(rank)}
	if n, ok := numbers[letter]; ok {
		return fmt.Sprintf("%0*d", width, n)
	}
	words := map[byte]string{'J': s.ID.String(), 'N': s.NodeName, 'u': s.User.Name, 'x': s.Name, '%': "%"}
	if word, ok := words[letter]; ok {
		return word
	}
	return whole
}

// PatternHas reports whether one of the letters occurs in a pattern: "t" makes it a
// name for each task, "tnN" one for each task or node.
func PatternHas(pattern, letters string) bool {
	if isEscaped(pattern) {
		return false
	}
	for _, letter := range patternParts(pattern) {
		if letter != 0 && strings.IndexByte(letters, letter) >= 0 {
			return true
		}
	}
	return false
}
