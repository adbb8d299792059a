package srunopt

import (
	"fmt"
	"stepd/step"
	"strconv"
	"strings"
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
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		if c != '%' || i+1 == len(pattern) {
			b.WriteByte(c)
			continue
		}
		j := i + 1
		for j < len(pattern) && pattern[j] >= '0' && pattern[j] <= '9' {
			j++
		}
		if j == len(pattern) {
			b.WriteString(pattern[i:])
			break
		}
		width, _ := strconv.Atoi(pattern[i+1 : j])
		b.WriteString(expandLetter(pattern[j], min(width, 10), pattern[i:j+1], s, rank))
		i = j
	}
	return checkName(pattern, b.String())
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
	num := func(n uint64) string { return fmt.Sprintf("%0*d", width, n) }
	switch letter {
	case 'j':
		return num(uint64(s.ID.Job))
	case 'A':
		if s.Array != nil {
			return num(uint64(s.Array.Job))
		}
		return num(uint64(s.ID.Job))
	case 'a':
		if s.Array != nil {
			return num(uint64(s.Array.Task))
		}
		return num(4294967294) // NO_VAL: the job is no array
	case 'J':
		return s.ID.String()
	case 's':
		return num(uint64(s.ID.Step))
	case 'N':
		return s.NodeName
	case 'n':
		return num(uint64(s.NodeID))
	case 't':
		return num(uint64(rank))
	case 'u':
		return s.User.Name
	case 'x':
		return s.Name
	case '%':
		return "%"
	}
	return whole
}

// PatternHas reports whether one of the letters occurs in a pattern: "t" makes it a
// name for each task, "tnN" one for each task or node.
func PatternHas(pattern, letters string) bool {
	if isEscaped(pattern) {
		return false
	}
	for i := 0; i+1 < len(pattern); i++ {
		if pattern[i] != '%' {
			continue
		}
		j := i + 1
		for j < len(pattern) && pattern[j] >= '0' && pattern[j] <= '9' {
			j++
		}
		if j < len(pattern) && strings.IndexByte(letters, pattern[j]) >= 0 {
			return true
		}
		i = j
	}
	return false
}
