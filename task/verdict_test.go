package task

import (
	"errors"
	"fmt"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

func ptr[T any](v T) *T { return &v }

// TestHookVerdict is the failure table of spank(8), row by row, with the rows
// that were measured, SpankStrict and the crashes.
func TestHookVerdict(t *testing.T) {
	yes, no := blame{1, true}, blame{1, false}
	fine := blame{0, false}
	for _, c := range []struct {
		hook                      string
		run, alloc, batch, strict blame
	}{
		{"init", fine, no, yes, no},
		{"init_post_opt", fine, no, yes, no},
		{"user_init", fine, no, yes, no},
		{"task_init_privileged", no, no, no, no},
		{"task_post_fork", fine, no, yes, no},
		{"task_init", no, no, no, no},
	} {
		specs := map[string]*step.Spec{
			"run": {Origin: step.OriginRun}, "alloc": {Origin: step.OriginAlloc},
			"batch":          {Origin: step.OriginBatch, ID: step.ID{Job: 1, Step: step.BatchStep}},
			"run in a batch": {Origin: step.OriginBatch, ID: step.ID{Job: 1}},
			"strict":         {Origin: step.OriginRun, Site: step.Site{Spank: step.SpankConf{Strict: true}}},
		}
		for name, want := range map[string]blame{
			"run": c.run, "alloc": c.alloc, "batch": c.batch, "run in a batch": c.alloc, "strict": c.strict,
		} {
			h := &launch.HookError{Plugin: "x.so", Hook: "slurm_spank_" + c.hook, Required: true, RC: ptr(-1)}
			if got := hookBlame(h, specs[name]); got != want {
				t.Errorf("%s in %s: %+v, want %+v", c.hook, name, got, want)
			}
			h.RC, h.Cause = nil, "killed by SIGSEGV"
			want.code = 1
			if got := hookBlame(h, specs[name]); got != want {
				t.Errorf("crash of %s in %s: %+v, want %+v", c.hook, name, got, want)
			}
			h.Required = false
			if got := hookBlame(h, specs[name]); got != no {
				t.Errorf("crash of an optional %s in %s: %+v", c.hook, name, got)
			}
			if c.hook != "init" {
				continue
			}
			h.Required = true
			for mode, want := range map[int]blame{blameNode: yes, blameJob: no} {
				h.RC = ptr(mode)
				if got := hookBlame(h, specs[name]); got != want {
					t.Errorf("failure mode %d in %s: %+v, want %+v", mode, name, got, want)
				}
			}
		}
	}
}

func TestDrainReason(t *testing.T) {
	batch := &step.Spec{ID: step.ID{Job: 7, Step: step.BatchStep}}
	hook := &launch.HookError{Plugin: "x.so", Hook: "slurm_spank_user_init", Required: true, RC: ptr(-1)}
	if got, want := drainReason(hook, batch), "batch job complete failure: required plugin x.so: user_init() failed with rc=-1, job 7"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	load := fmt.Errorf("load: %w", errLoad{errors.New("no such file")})
	if v := launchBlame(load, batch); v != (blame{1, true}) {
		t.Errorf("a batch step that cannot load its plugins: %+v", v)
	}
	if v := launchBlame(load, &step.Spec{}); v != (blame{1, false}) {
		t.Errorf("another step that cannot load its plugins: %+v", v)
	}
	if got, want := drainReason(load, batch), "batch job complete failure: load: no such file, job 7"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestStrictLateFailures: task_exit and exit change nothing, unless SpankStrict does.
func TestStrictLateFailures(t *testing.T) {
	for _, call := range []string{"wait", "exit"} {
		for _, strict := range []bool{false, true} {
			r := newRig(t)
			r.spec.Spank.Strict = strict
			hook := map[string]string{"wait": "slurm_spank_task_exit", "exit": "slurm_spank_exit"}[call]
			r.fail[call] = &launch.HookError{Plugin: "x.so", Hook: hook, Required: true, RC: ptr(-1), Rank: ptr(0)}
			rec := r.run(t)
			want, code := step.Completed, 0
			if strict {
				want, code = step.Failed, 1
			}
			if rec.State != want || *rec.ExitCode != code || rec.Drain != "" {
				t.Errorf("%s, strict %v: state %s, exit code %d", call, strict, rec.State, *rec.ExitCode)
			}
		}
	}
}
