package step

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseDependencies(t *testing.T) {
	for text, want := range map[string]string{
		"afterok:12":                             "afterok:12",
		"AfterAny:12:13_4,after:14+30:15":        "afterany:12,afterany:13_4,after:14+30,after:15",
		"singleton":                              "singleton",
		"afternotok:1?singleton":                 "afternotok:1?singleton",
		"aftercorr:7,afterok:7,afterok:7":        "aftercorr:7,afterok:7",
		"after:4294967295+0":                     "after:4294967295",
		"afterok:3_0:3_0:3_1":                    "afterok:3_0,afterok:3_1",
		"singleton,singleton":                    "singleton",
		fmt.Sprintf("after:1+%d", 366*24*60):     "after:1+527040",
		"afterok" + strings.Repeat(":9", 2000):   "afterok:9",
		"afterok:1,afterany:1,after:1,after:1+1": "afterok:1,afterany:1,after:1,after:1+1",
	} {
		d, err := ParseDependencies(text)
		if err != nil || d.String() != want {
			t.Errorf("%.60q: %v, %v, want %q", text, d, err, want)
		}
	}
}

func TestParseDependenciesRefuses(t *testing.T) {
	var many strings.Builder
	many.WriteString("afterok")
	for i := range DependenciesMax + 1 {
		fmt.Fprintf(&many, ":%d", i+1)
	}
	for text, words := range map[string]string{
		"":                         "no kind of dependency",
		"afterok":                  "names no job",
		"afterok:":                 "no number of a job",
		"afterok:0":                "no number of a job",
		"afterok:-1":               "no number of a job",
		"afterok:4294967296":       "no number of a job",
		"afterok:x":                "no number of a job",
		"afterok:1:":               "no number of a job",
		"afterok:1_":               "JOB_TASK",
		"afterok:1_x":              "JOB_TASK",
		"afterok:1+5":              "only after:JOB",
		"after:1+":                 "want minutes",
		"after:1++1":               "want minutes",
		"after:1+-1":               "want minutes",
		"after:1+99999999":         "want minutes",
		"singleton:1":              "names no job",
		"expand:1":                 "no kind of dependency",
		"12":                       "no kind of dependency",
		"afterok:1,afterok:2?x":    "not both",
		"afterok:1,":               "no kind of dependency",
		strings.Repeat("x", 40000): "32768 is the limit",
		many.String():              "more than 1000 jobs",
	} {
		if d, err := ParseDependencies(text); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%.60q: %v, %v, want %q", text, d, err, words)
		}
	}
}

// FuzzDependencies: what is read is written so that it reads the same.
func FuzzDependencies(f *testing.F) {
	for _, s := range []string{"afterok:12:13_4,after:14+30,singleton", "a?b", "after:1+0", "afterok:1?afterany:2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDependencies(text)
		if err != nil {
			return
		}
		again, err := ParseDependencies(d.String())
		if err != nil || again.String() != d.String() || len(again.List) != len(d.List) {
			t.Errorf("%q: %v, then %v, %v", text, d, again, err)
		}
	})
}
