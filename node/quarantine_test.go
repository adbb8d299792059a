package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

// TestQuarantine: crashes in a row count, by file, over restarts.
func TestQuarantine(t *testing.T) {
	dir := t.TempDir()
	so := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, b := so("a.so"), so("b.so")
	change := func(c *Config) {
		c.QuarantineAfter = 2
		c.Plugins = func(context.Context) []Plugin {
			return []Plugin{{Path: a, State: "loads"}, {Path: b, Required: true, State: "loads"}}
		}
	}
	tn := start(t, filepath.Join(dir, "node"), change)
	t.Cleanup(func() { tn.stop() })
	crash := func(path string, required bool) {
		tn.health.Plugins.Step(&step.Record{PluginCrash: &step.PluginCrash{Path: path, Hook: "slurm_spank_init", Required: required}})
	}
	fine := func() { now := time.Now(); tn.health.Plugins.Step(&step.Record{Started: &now}) }
	out := func(want ...string) {
		t.Helper()
		var got []string
		for _, q := range tn.health.Plugins.List() {
			got = append(got, filepath.Base(q.Path))
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("left out %q, want %q", got, want)
		}
	}
	crash(a, false)
	fine()
	crash(a, false)
	out()
	tn.health.Plugins.Step(&step.Record{}) // it did not come so far
	crash(a, false)
	out("a.so")
	fine()
	out("a.so")
	if d := tn.doc(); d.Plugins[0].State != "quarantined" || !strings.HasPrefix(d.Plugins[0].Problem, "crashed 2 times in a row, last in slurm_spank_init; ") || d.Plugins[1].State != "loads" {
		t.Errorf("node document %+v", d.Plugins)
	}
	id := tn.run(1000, request("quarantined"))
	if rec := tn.wait(id); rec.Reason != a {
		t.Errorf("stepd was told %q", rec.Reason)
	}
	tn.stop()
	tn = start(t, filepath.Join(dir, "node"), change)
	out("a.so")
	if err := os.Chtimes(a, time.Now(), time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	out()
	crash(a, false)
	out()
	crash(a, false)
	out("a.so")
	crash(b, true)
	crash(b, true)
	out("a.so")
	if d := tn.doc(); d.State != "DRAINED" || d.Reason != `required plugin "b.so" crashed 2 times in a row, last in slurm_spank_init` {
		t.Errorf("node %s: %q", d.State, d.Reason)
	}
	if _, err := tn.svc.Resume(as(0), &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	out()
	crash(b, true)
	if d := tn.doc(); d.State != "IDLE" {
		t.Errorf("node %s: %q", d.State, d.Reason)
	}
}
