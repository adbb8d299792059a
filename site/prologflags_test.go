package site

import (
	"testing"

	"stepd/slurmconf"
)

// TestPrologFlags: what each flag means for the scripts, and which imply Alloc.
func TestPrologFlags(t *testing.T) {
	type meaning struct{ alloc, noHold, serial bool }
	for flag, want := range map[string]meaning{
		"Alloc": {alloc: true}, "contain": {alloc: true}, "X11": {alloc: true}, "DeferBatch": {alloc: true}, "RunInJob": {alloc: true},
		"ForceRequeueOnFail": {alloc: true}, "NoHold": {noHold: true}, "Serial": {serial: true}, "": {},
	} {
		s := &Site{conf: &slurmconf.Config{PrologFlags: []string{flag}}}
		got := s.scripts()
		if is := (meaning{got.AtAlloc, got.NoHold, got.Serial}); is != want {
			t.Errorf("%s means %+v, want %+v", flag, is, want)
		}
	}
}
