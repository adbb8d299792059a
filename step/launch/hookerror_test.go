package launch

import (
	"testing"

	"stepd/step"
)

// TestCauseFirst: the place of a crash comes first in what a short line shows, and other texts keep their order.
func TestCauseFirst(t *testing.T) {
	rank := 1
	for _, c := range []struct{ text, ranks, first, detail string }{
		{(&HookError{Plugin: "x.so", Hook: "slurm_spank_init", Cause: "killed by SIGSEGV at x.so+0x1119 (slurm_spank_init+0x15)"}).Error(), "",
			"killed by SIGSEGV at x.so+0x1119 in slurm_spank_init", "there: slurm_spank_init+0x15"},
		{(&HookError{Plugin: "x.so", Hook: "slurm_spank_exit", Rank: &rank, Cause: "killed by SIGABRT at libc.so.6+0x8 (abort+0x3), called at x.so+0x9 (f+0x1)"}).Error(), "",
			"killed by SIGABRT at libc.so.6+0x8, called at x.so+0x9 in slurm_spank_exit, rank 1", "there: abort+0x3, called at f+0x1"},
		{(&HookError{Plugin: "x.so", Hook: "slurm_spank_task_init", Rank: &rank, Cause: HookEnd(step.SignaledBy(9))}).Error(), "ranks 0-3",
			`killed by SIGKILL in "x.so": slurm_spank_task_init, ranks 0-3`, ""},
		{(&HookError{Plugin: "x.so", Hook: "slurm_spank_init", Cause: "did not return within 5s (HookTimeout in stepd.conf)"}).Error(), "",
			`"x.so": slurm_spank_init: did not return within 5s`, "HookTimeout in stepd.conf"},
		{(&HookError{Plugin: "x.so", Hook: "init()", Cause: HookEnd(step.ExitedWith(3))}).Error(), "", `"x.so": init(): called exit(3)`, ""},
		{(&HookError{Plugin: "x.so", Hook: "slurm_spank_exit", Rank: &rank, RC: new(-1)}).Error(), "", `"x.so": slurm_spank_exit, rank 1: failed with rc=-1`, ""},
		{"task 1: Killed (core dumped)", "", "task 1: Killed (core dumped)", ""},
		{`plugin "x.so" (is late`, "", `plugin "x.so" (is late`, ""},
		{"", "", "", ""},
	} {
		if first, detail := CauseFirst(c.text, c.ranks); first != c.first || detail != c.detail {
			t.Errorf("%q: got %q and %q, want %q and %q", c.text, first, detail, c.first, c.detail)
		}
	}
}
