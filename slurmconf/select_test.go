package slurmconf

import "testing"

// TestSelect: what one job has for itself, by SelectType and SelectTypeParameters.
func TestSelect(t *testing.T) {
	for _, c := range []struct {
		text, unit string
		one        bool
		says       string // the one problem
	}{
		{"", "core", false, ""},
		{"SelectType=select/cons_tres\n", "core", false, ""},
		{"SelectType=cons_res\nSelectTypeParameters=CR_CPU\n", "cpu", false, ""},
		{"SelectTypeParameters=cr_core_memory\n", "core", false, ""},
		{"SelectTypeParameters=CR_Socket\n", "socket", false, ""},
		{"SelectTypeParameters=CR_Memory\n", "cpu", false, ""},
		{"SelectTypeParameters=CR_CPU_Memory,CR_ONE_TASK_PER_CORE\n", "cpu", true, ""},
		{"SelectTypeParameters=CR_LLN,CR_Core,CR_Pack_Nodes,CR_New\n", "core", false, `warning: slurm.conf:1: SelectTypeParameters="CR_LLN,CR_Core,CR_Pack_Nodes,CR_New": flag "CR_LLN" has no effect on the choice within one node; flag "CR_Pack_Nodes" has no effect on the choice within one node; flag "CR_New" is not known and has no effect`},
		{"SelectTypeParameters=CR_Core,CR_LLN\n", "core", false, `warning: slurm.conf:1: SelectTypeParameters="CR_Core,CR_LLN": flag "CR_LLN" has no effect on the choice within one node`},
		{"SelectType=select/linear\n", "node", false, ""},
		{"SelectType=select/linear\nSelectTypeParameters=CR_Core\n", "node", false, ""},
		{"SelectType=select/bogus\n", "core", false, `error: slurm.conf:1: cannot use SelectType="select/bogus": not available; write one of linear, cons_tres, cons_res`},
	} {
		conf, probs, dir := load(t, map[string]string{"slurm.conf": c.text + "ClusterName=c\nNodeName=vm\n"})
		if conf.Unit() != c.unit || conf.OneTaskPerCore() != c.one {
			t.Errorf("%q: unit %q, one task per core %v; want %q, %v", c.text, conf.Unit(), conf.OneTaskPerCore(), c.unit, c.one)
		}
		said := lines(probs, dir)
		if c.says == "" && len(said) > 0 || c.says != "" && (len(said) != 1 || said[0] != c.says) {
			t.Errorf("%q: got %q, want %q", c.text, said, c.says)
		}
	}
}
