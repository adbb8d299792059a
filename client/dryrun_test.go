package client

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/api"
	"stepd/step"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestEnvChanges: each difference is listed once, with the part that makes it.
func TestEnvChanges(t *testing.T) {
	caller := []string{"SAME=1", "GONE=1", "DROPPED=1", "PLUGGED=old", "CLEANED=1", "OURS=old", "SLURM_RLIMIT_NOFILE=1"}
	left := []string{"SAME=1", "GONE=1", "DROPPED=1", "PLUGGED=new", "NEWPLUG=1", "OURS=old"}
	asked := []string{"SAME=1", "GONE=1", "PLUGGED=new", "NEWPLUG=1", "OURS=new", "EMPTY="}
	task := []string{"SAME=1", "PLUGGED=new", "NEWPLUG=1", "OURS=new", "EMPTY=", "SLURM_PROCID=0"}
	var got []string
	for _, c := range envChanges(caller, left, asked, task) {
		value, old := "-", "-"
		if c.Value != nil {
			value = *c.Value
		}
		if c.Old != nil {
			old = *c.Old
		}
		got = append(got, c.Name+" "+c.Change+" by "+c.By+": "+old+" "+value)
	}
	want := []string{
		"CLEANED removed by plugins: 1 -", "DROPPED removed by stepctl: 1 -", "EMPTY added by stepctl: - ", "GONE removed by stepd: 1 -",
		"NEWPLUG added by plugins: - 1", "OURS changed by stepctl: old new", "PLUGGED changed by plugins: old new", "SLURM_PROCID added by stepd: - 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestShowDryRun: a limit that is lower is told with what was asked for, and no value
// moves the cursor.
func TestShowDryRun(t *testing.T) {
	d := &api.DryRun{
		ID: step.ID{Job: 1}, Node: "vm", Argv: []string{"a b"}, Mounts: []string{"/tmp: the job's own, below /x"},
		ResourceLimits: []api.ResourceLimit{{Name: "NOFILE", Hard: new(uint64(7)), Gets: new(uint64(7)), Lower: true}, {Name: "CORE", Asked: new(uint64(0)), Gets: new(uint64(0))}},
		Plugins:        []api.DryPlugin{{Path: "/p/x.so", Required: true, State: "found", Options: []string{"--image=a"}}},
		Environment:    []api.EnvChange{{Name: "X", Change: "added", By: "stepd", Value: new("1\x1b[2J")}, {Name: "Y", Change: "removed", By: "stepctl", Old: new("1")}},
	}
	var b bytes.Buffer
	if err := showDryRun(&b, d); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "dryrun.golden")
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != b.String() {
		t.Errorf("%s: %v (-update writes it)\nwant\n%s\ngot\n%s", golden, err, want, b.String())
	}
	if bytes.ContainsRune(b.Bytes(), '\x1b') {
		t.Error("an escape passes")
	}
}
