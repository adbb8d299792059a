package spank

import (
	"maps"
	"testing"

	"stepd/step"
)

// TestAlone: an option of the request is called back for the environment as well, but where
// the site has options called back once.
func TestAlone(t *testing.T) {
	s := &step.Spec{Request: step.Request{SpankOptions: []step.SpankOption{{Plugin: "a-b", Name: "opt"}}}}
	if not := alone(s); len(not) != 0 {
		t.Errorf("twice: %v", not)
	}
	s.Site.Spank.OptionsOnce = true
	if not := alone(s); !maps.Equal(not, map[string]bool{"_SLURM_SPANK_OPTION_a_b_opt": true}) {
		t.Errorf("once: %v", not)
	}
}
