package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// test is one line of a testlist of MPICH's suite.
type test struct {
	dir, program string
	np           int
	args, env    []string
	limit        time.Duration
	// want is how success looks: "" is exit code 0 and "No Errors" alone.
	want string
	// skip is why it is not run.
	skip string
}

func (t test) String() string {
	return strings.Join(append([]string{t.dir + "/" + t.program, strconv.Itoa(t.np)}, t.args...), " ")
}

// readList reads a testlist: a program, how many ranks, and words like arg=,
// env=, timeLimit=. limit is for those that name none.
func readList(path, dir string, limit time.Duration) ([]test, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []test
	sc := bufio.NewScanner(f)
	for number := 1; sc.Scan(); number++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '!' { // !dir:target is something to build
			continue
		}
		t, err := parseTest(dir, words, limit)
		if err != nil {
			return nil, fmt.Errorf("cannot read %q, line %d: %w", path, number, err)
		}
		all = append(all, t)
	}
	return all, sc.Err()
}

func parseTest(dir string, words []string, limit time.Duration) (test, error) {
	t := test{dir: dir, program: words[0], np: 2, limit: limit}
	if len(words) > 1 {
		n, err := strconv.Atoi(words[1])
		if err != nil || n < 1 {
			return t, fmt.Errorf("%q is no count of ranks", words[1])
		}
		t.np = n
	}
	for _, w := range words[min(len(words), 2):] {
		key, value, ok := strings.Cut(w, "=")
		if !ok {
			continue // pt2pt has a path there; MPICH's own runner passes over it, too
		}
		switch key {
		case "arg":
			t.args = append(t.args, value)
		case "env":
			t.env = append(t.env, value)
		case "timeLimit":
			s, err := strconv.Atoi(value)
			if err != nil {
				return t, fmt.Errorf("%q is no time", w)
			}
			t.limit = time.Duration(s) * time.Second
		case "resultTest":
			t.want = value
		case "xfail":
			t.skip = "xfail " + value
		case "mem":
			t.skip = "needs " + value + " GB"
		case "strict", "mpix", "lock": // extensions exist; nothing runs at the same time
		default:
			return t, fmt.Errorf("%q is not known", w)
		}
	}
	return t, nil
}
