package srunopt

import (
	"fmt"
	"strings"
	"testing"

	"stepd/step"
)

// What a user gives to plugins is bounded before anybody of root's works on it.
func TestSpankLimits(t *testing.T) {
	entries := func(n int, format string) [][]byte {
		out := make([][]byte, n)
		for i := range out {
			out[i] = fmt.Appendf(nil, format, i)
		}
		return out
	}
	options := func(n int) []step.SpankOption {
		out := make([]step.SpankOption, n)
		for i := range out {
			out[i] = step.SpankOption{Plugin: "p", Name: fmt.Sprint("o", i)}
		}
		return out
	}
	for _, c := range []struct {
		name   string
		change func(*step.Request)
		want   string // "" is legal
	}{
		{"options", func(r *step.Request) { r.SpankOptions = options(OptionsMax) }, ""},
		{"too many options", func(r *step.Request) { r.SpankOptions = options(OptionsMax + 1) }, "spank_options: 1025 options"},
		{"an option twice", func(r *step.Request) {
			r.SpankOptions = []step.SpankOption{{Plugin: "p", Name: "o", Value: nil}, {Plugin: "p", Name: "o", Value: nil}}
		}, "is given twice"},
		{"an option without a name", func(r *step.Request) { r.SpankOptions = []step.SpankOption{{Plugin: "p"}} }, "spank_options: option 0"},
		{"a name with =", func(r *step.Request) { r.SpankOptions = []step.SpankOption{{Plugin: "p", Name: "a=b", Value: nil}} }, "no plugin can have"},
		{"a long value", func(r *step.Request) {
			r.SpankOptions = []step.SpankOption{{Plugin: "p", Name: "o", Value: make([]byte, OptionMax+1)}}
		}, "has 1048577 bytes"},
		{"a NUL byte", func(r *step.Request) {
			r.SpankOptions = []step.SpankOption{{Plugin: "p", Name: "o", Value: []byte("a\x00b")}}
		}, "NUL byte"},
		{"job control", func(r *step.Request) { r.JobControl = entries(jobControlEntries, "A%d=") }, ""},
		{"too many variables", func(r *step.Request) { r.JobControl = entries(jobControlEntries+1, "A%d=") }, "job_control: 4097 variables"},
		{"too many options of it", func(r *step.Request) { r.JobControl = entries(OptionsMax+1, OptionPrefix+"x%d=") }, "job_control: 1025 options"},
		{"too many bytes", func(r *step.Request) { r.JobControl = entries(40, "A%d="+strings.Repeat("x", 110<<10)) }, "job_control: "},
		{"no variable", func(r *step.Request) { r.JobControl = [][]byte{[]byte("=x")} }, "is not NAME=VALUE"},
		{"a long script", func(r *step.Request) { r.Script = make([]byte, ScriptMax+1) }, "script: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := goodRequest()
			c.change(&r)
			err := Validate(&r)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestOptionVariable(t *testing.T) {
	for _, c := range [][3]string{
		{"p", "opt", "_SLURM_SPANK_OPTION_p_opt"}, {"a-b", "c.d", "_SLURM_SPANK_OPTION_a_b_c_d"}, {"é", "x", "_SLURM_SPANK_OPTION____x"},
	} {
		if got := OptionVariable(c[0], c[1]); got != c[2] {
			t.Errorf("%q, %q: got %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
