package srunopt

import (
	"strings"
	"testing"

	"stepd/step"
)

// commands are what each rank runs.
func commands(apps []step.App) (out []string) {
	for _, a := range apps {
		for n := range a.NTasks {
			out = append(out, strings.Join(a.Words(step.Words(a.Argv), len(out), n), "|"))
		}
	}
	return out
}

func TestMultiProg(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		ntasks int
		want   string // of the ranks, or the error
		apps   int
	}{
		"lines":         {"0 a\n1 b c\n", 2, "a;b|c", 2},
		"a range":       {"0-2 p %t %o\n", 3, "p|0|0;p|1|1;p|2|2", 1},
		"a later one":   {"0 a\n1-2 p %t %o", 3, "a;p|1|0;p|2|1", 2},
		"a list":        {"0,2 p %o\n1 q", 3, "p|0;q;p|1", 3},
		"the rest":      {"* r %t %o\n1 q", 3, "r|0|0;q;r|2|2", 3},
		"comments":      {"# a\n\n  # b\n0 a # no\n", 1, "a|#|no", 1},
		"joined":        {"0 a \\\n  b\n1 c", 2, "a|b;c", 2},
		"quotes":        {`0 a 'b  %t' "c d" e\ f \%t %% %x %`, 1, `a|b  %t|"c|d"|e f|%t|%|%x|%`, 1},
		"an empty one":  {"0 a '' b", 1, "a||b", 1},
		"carriage":      {"0 a\r\n1 b\r\n", 2, "a;b", 2},
		"missing":       {"0 a\n3 b", 4, "f: no line is for task 1-2", 0},
		"twice":         {"0 a\n0-1 b", 2, "f:2: task 0 has its program in line 1 already", 0},
		"beyond":        {"0-5 a", 2, "f:1: there is no task 5: the step has 2", 0},
		"no ranks":      {"x a", 2, "f:1: \"x\" names no tasks: write ranks as in 0,2-5, or *", 0},
		"brackets":      {"[0-1] a", 2, "f:1: \"[0-1]\" names no tasks: write ranks as in 0,2-5, or *", 0},
		"no program":    {"0\n1 a", 2, "f:1: \"0\" has no program behind it", 0},
		"an empty name": {"0 ''\n1 a", 2, "f:1: \"0\" has no program behind it", 0},
		"backwards":     {"2-0 a", 3, "f:1: \"2-0\": 2 comes after 0", 0},
		"open quote":    {"0 a\n\n1 a 'b", 2, "f:3: the quote ' is not closed", 0},
		"two rests":     {"* a\n* b", 2, "f:2: \"*\" is in line 1 already", 0},
		"empty":         {"", 1, "f: no line is for task 0", 0},
	} {
		apps, err := ParseMultiProg("f", c.text, c.ntasks)
		got := strings.Join(commands(apps), ";")
		if err != nil {
			got = err.Error()
		}
		if got != c.want || len(apps) != c.apps {
			t.Errorf("%s: %d apps, %s", name, len(apps), got)
		}
	}
}

func FuzzMultiProg(f *testing.F) {
	f.Add("0-1 a 'b' %t\n* c \\\nd\n", 3)
	f.Fuzz(func(t *testing.T, text string, ntasks int) {
		if ntasks < 1 || ntasks > 64 {
			return
		}
		apps, err := ParseMultiProg("f", text, ntasks)
		if err != nil {
			return
		}
		total := 0
		for _, a := range apps {
			total += a.NTasks
			if len(a.Argv) == 0 || len(a.Argv[0]) == 0 {
				t.Fatalf("%q: a task without a program", text)
			}
		}
		if total != ntasks {
			t.Fatalf("%q: %d tasks", text, total)
		}
	})
}
