package step

import (
	"fmt"
	"strings"
	"testing"
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
	options := func(n int) []SpankOption {
		out := make([]SpankOption, n)
		for i := range out {
			out[i] = SpankOption{Plugin: "p", Name: fmt.Sprint("o", i)}
		}
		return out
	}
	for _, c := range []struct {
		name   string
		change func(*Request)
		want   string // "" is legal
	}{
		{"options", func(r *Request) { r.SpankOptions = options(OptionsMax) }, ""},
		{"too many options", func(r *Request) { r.SpankOptions = options(OptionsMax + 1) }, "spank_options: 1025 options"},
		{"an option twice", func(r *Request) { r.SpankOptions = []SpankOption{{"p", "o", nil}, {"p", "o", nil}} }, "is given twice"},
		{"an option without a name", func(r *Request) { r.SpankOptions = []SpankOption{{Plugin: "p"}} }, "spank_options: option 0"},
		{"a name with =", func(r *Request) { r.SpankOptions = []SpankOption{{"p", "a=b", nil}} }, "no plugin can have"},
		{"a long value", func(r *Request) { r.SpankOptions = []SpankOption{{"p", "o", make([]byte, OptionMax+1)}} }, "has 1048577 bytes"},
		{"a NUL byte", func(r *Request) { r.SpankOptions = []SpankOption{{"p", "o", []byte("a\x00b")}} }, "NUL byte"},
		{"job control", func(r *Request) { r.JobControl = entries(JobControlEntries, "A%d=") }, ""},
		{"too many variables", func(r *Request) { r.JobControl = entries(JobControlEntries+1, "A%d=") }, "job_control: 4097 variables"},
		{"too many options of it", func(r *Request) { r.JobControl = entries(OptionsMax+1, OptionPrefix+"x%d=") }, "job_control: 1025 options"},
		{"too many bytes", func(r *Request) { r.JobControl = entries(40, "A%d="+strings.Repeat("x", 110<<10)) }, "job_control: "},
		{"no variable", func(r *Request) { r.JobControl = [][]byte{[]byte("=x")} }, "is not NAME=VALUE"},
		{"a long script", func(r *Request) { r.Script = make([]byte, ScriptMax+1) }, "script: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := goodRequest()
			c.change(&r)
			err := r.Validate()
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
