package step

import (
	"testing"
)

func TestOptionVariable(t *testing.T) {
	for _, c := range [][3]string{
		{"p", "opt", "_SLURM_SPANK_OPTION_p_opt"}, {"a-b", "c.d", "_SLURM_SPANK_OPTION_a_b_c_d"}, {"é", "x", "_SLURM_SPANK_OPTION____x"},
	} {
		if got := OptionVariable(c[0], c[1]); got != c[2] {
			t.Errorf("%q, %q: got %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
