package task

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

// fakePlugin notes its calls, with its name before them.
type fakePlugin struct {
	r    *rig
	name string
}

func (p fakePlugin) Name() string                   { return "task/" + p.name }
func (p fakePlugin) PreSetuid() error               { return p.r.note(p.name + " pre_setuid") }
func (p fakePlugin) PreLaunch(*launch.Launch) error { return p.r.note(p.name + " pre_launch") }
func (p fakePlugin) PostStep() error                { return p.r.note(p.name + " post_step") }
func (p fakePlugin) PreLaunchPriv(rank, pid int) error {
	return p.r.note(fmt.Sprintf("%s priv %d %d", p.name, rank, pid))
}
func (p fakePlugin) PostTerm(e launch.TaskEnd) {
	_ = p.r.note(fmt.Sprintf("%s term %d", p.name, e.LocalID))
}

func pluginCalls(r *rig) []string {
	var out []string
	for _, c := range r.calls {
		if strings.HasPrefix(c, "a ") || strings.HasPrefix(c, "b ") || slices.Contains([]string{"prefork", "launch", "fork", "add 5001", "post_fork", "exit"}, c) {
			out = append(out, c)
		}
	}
	return out
}

// The points of Slurm (lifecycle 16, 27, 33, 37): the step's limits before
// anything of the user's, each task between its tracking and task_post_fork, the
// end while the exit hooks are still to come.
func TestPluginOrder(t *testing.T) {
	r := newRig(t)
	r.plugins = []Plugin{fakePlugin{r, "a"}, fakePlugin{r, "b"}}
	rec := r.run(t)
	if rec.State != step.Completed {
		t.Errorf("state %s: %s", rec.State, rec.Reason)
	}
	want := []string{
		"prefork", "a pre_setuid", "b pre_setuid", "a pre_launch", "b pre_launch", "launch",
		"fork", "add 5001", "a priv 0 5000", "a priv 1 5001", "b priv 0 5000", "b priv 1 5001", "post_fork",
		"a term 0", "b term 0", "a term 1", "b term 1", "b post_step", "a post_step", "exit",
	}
	if got := pluginCalls(r); !slices.Equal(got, want) {
		t.Errorf("calls:\n got %s\nwant %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// A plugin that fails ends the launch, and is named; every plugin whose
// PreSetuid was called has its PostStep, and no other.
func TestPluginFails(t *testing.T) {
	for _, c := range []struct {
		call string
		want []string // after the failing call
	}{
		{"a pre_setuid", []string{"a post_step", "exit"}},
		{"b pre_setuid", []string{"b post_step", "a post_step", "exit"}},
		{"a pre_launch", []string{"b pre_launch", "b post_step", "a post_step", "exit"}},
		{"a priv 1 5001", []string{"b post_step", "a post_step", "exit"}},
	} {
		t.Run(c.call, func(t *testing.T) {
			r := newRig(t)
			r.plugins = []Plugin{fakePlugin{r, "a"}, fakePlugin{r, "b"}}
			r.fail[c.call] = errors.New("no room")
			rec := r.run(t)
			if rec.State != step.Failed || !strings.Contains(rec.Reason, "task/"+c.call[:1]+": no room") {
				t.Errorf("state %s: %s", rec.State, rec.Reason)
			}
			got := pluginCalls(r)
			if i := slices.Index(got, c.call); i < 0 || !slices.Equal(got[i+1:], c.want) {
				t.Errorf("calls %s; want %q and %s after it", strings.Join(got, ", "), c.call, strings.Join(c.want, ", "))
			}
		})
	}
}

// What fails at the end is told, and ends nothing else.
func TestPluginPostStepFails(t *testing.T) {
	r := newRig(t)
	r.plugins = []Plugin{fakePlugin{r, "a"}, fakePlugin{r, "b"}}
	r.fail["b post_step"] = errors.New("busy")
	rec := r.run(t)
	if rec.State != step.Completed || !strings.Contains(rec.Reason, "task/b: busy") {
		t.Errorf("state %s: %s", rec.State, rec.Reason)
	}
	if got := pluginCalls(r); !slices.Contains(got, "a post_step") || !slices.Contains(got, "exit") {
		t.Errorf("calls %s", strings.Join(got, ", "))
	}
}
