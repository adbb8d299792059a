package srunopt

import (
	"fmt"
	"strconv"
	"strings"

	"stepd/step"
)

// progLine is one line of the file: a program and its arguments.
type progLine struct {
	number int
	words  []string
}

// ParseMultiProg gives every task its program, of the text of a file of --multi-prog
// (srun(1)). path names the file: errors name it, and the line.
func ParseMultiProg(path, text string, ntasks int) ([]step.App, error) {
	p := multiProg{path: path, of: make([]int, ntasks), offset: make([]int, ntasks), rest: -1}
	for number, line := range logicalLines(text) {
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.add(number, line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
	}
	return p.apps()
}

// logicalLines are the lines with their numbers; a backslash at the end of one
// joins the next to it.
func logicalLines(text string) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		number, first, joined := 0, 1, ""
		for line := range strings.Lines(text) {
			number++
			line = strings.TrimRight(line, "\r\n")
			if before, more := strings.CutSuffix(line, "\\"); more {
				joined += before
				continue
			}
			if !yield(first, joined+line) {
				return
			}
			first, joined = number+1, ""
		}
		if joined != "" {
			yield(first, joined)
		}
	}
}

// multiProg is the file as far as it was read.
type multiProg struct {
	path   string
	lines  []progLine
	of     []int // of a rank: its line, from 1; 0 is none yet
	offset []int // of a rank: its place in the line
	rest   int   // the line that has "*", -1 without one
}

func (p *multiProg) add(number int, line string) error {
	ranks, command := line, ""
	if at := strings.IndexAny(line, " \t"); at >= 0 {
		ranks, command = line[:at], line[at:]
	}
	words, err := programWords(command)
	if err != nil {
		return err
	}
	if len(words) == 0 || words[0] == "" {
		return fmt.Errorf("%q has no program behind it", ranks)
	}
	p.lines = append(p.lines, progLine{number: number, words: words})
	if ranks == "*" {
		if p.rest >= 0 {
			return fmt.Errorf("\"*\" is in line %d already", p.lines[p.rest].number)
		}
		p.rest = len(p.lines) - 1
		return nil
	}
	return p.name(ranks)
}

// name makes the last line the line of the ranks of a list: "0", "1-3", "0,2-5".
func (p *multiProg) name(list string) error {
	offset := 0
	for _, item := range strings.Split(list, ",") {
		from, to, ranged := strings.Cut(item, "-")
		first, err1 := strconv.ParseUint(from, 10, 31)
		last, err2 := first, error(nil)
		if ranged {
			last, err2 = strconv.ParseUint(to, 10, 31)
		}
		switch {
		case err1 != nil || err2 != nil:
			return fmt.Errorf("%q names no tasks: write ranks as in 0,2-5, or *", list)
		case last < first:
			return fmt.Errorf("%q: %d comes after %d", item, first, last)
		case last >= uint64(len(p.of)):
			return fmt.Errorf("there is no task %d: the step has %d", last, len(p.of))
		}
		for r := first; r <= last; r++ {
			if at := p.of[r]; at > 0 {
				return fmt.Errorf("task %d has its program in line %d already", r, p.lines[at-1].number)
			}
			p.of[r], p.offset[r] = len(p.lines), offset
			offset++
		}
	}
	return nil
}

// apps are the programs by rank: tasks of one line that follow each other are one.
func (p *multiProg) apps() ([]step.App, error) {
	var missing []int
	for r := range p.of {
		if p.of[r] > 0 {
			continue
		}
		if p.rest < 0 {
			missing = append(missing, r)
			continue
		}
		p.of[r], p.offset[r] = p.rest+1, r // as measured: of "*" the place is the rank
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s: no line is for task %s", p.path, step.FormatCPUList(missing))
	}
	var apps []step.App
	for r := range p.of {
		if r > 0 && p.of[r] == p.of[r-1] && p.offset[r] == p.offset[r-1]+1 {
			apps[len(apps)-1].NTasks++
			continue
		}
		apps = append(apps, step.App{NTasks: 1, Argv: step.Raw(p.lines[p.of[r]-1].words), Offset: new(p.offset[r])})
	}
	return apps, nil
}

// programWords splits a command as srun does: blanks part words, single quotes
// keep what is in them as it is, a backslash keeps the next character. Double
// quotes mean nothing. A % that was kept so is doubled: %t and %o are for the rest.
func programWords(s string) (words []string, err error) {
	var word strings.Builder
	in, quoted := false, false
	keep := func(c byte) {
		if c == '%' {
			word.WriteByte('%')
		}
		word.WriteByte(c)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\'':
			quoted, in = !quoted, true
		case quoted:
			keep(c)
		case c == '\\' && i+1 < len(s):
			i++
			keep(s[i])
			in = true
		case c == ' ' || c == '\t':
			if in {
				words = append(words, word.String())
			}
			word.Reset()
			in = false
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if quoted {
		return nil, fmt.Errorf("the quote ' is not closed")
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}
