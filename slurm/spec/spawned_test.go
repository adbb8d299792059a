package spec

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/slurm/wire"
	"stepd/step"
)

// spawnedStream is a stream of step 7.3 of a job on n1 to n3, with such keys of a spawn.
func spawnedStream(pairs ...wire.PMIPair) *wire.Stream {
	env := []string{
		"HOME=/", "SLURM_PMI2_SRUN_PORT=1", "SLURM_PMI2_STEP_NODES=n1", "SLURM_PMI2_PROC_MAPPING=(vector)", "SLURM_PMI2_TREE_WIDTH=4",
		"SLURM_PMI2_SPAWN_SEQ=1", "SLURM_PMI2_SPAWNER_JOBID=7.0", "SLURM_PMI2_PMI_JOBID=7.0-1", "SLURM_PMI2_SPAWNER_PORT=2",
		fmt.Sprintf("SLURM_PMI2_PREPUT_COUNT=%d", len(pairs)),
	}
	for i, p := range pairs {
		env = append(env, fmt.Sprintf("SLURM_PMI2_PPKEY%d=%s", i, p.Key), fmt.Sprintf("SLURM_PMI2_PPVAL%d=%s", i, p.Value))
	}
	return &wire.Stream{Launch: &wire.Launch{Step: wire.StepID{Job: 7, Step: 3}, Env: env, Cred: &wire.Cred{JobHosts: "n[1-3]"}}}
}

func TestSpawned(t *testing.T) {
	origin := &Origin{Node: "n2", Step: step.ID{Job: 7, Step: 1}, Spawn: 4}
	s := spawnedStream(slices.Concat(
		[]wire.PMIPair{origin.Pair(), {Key: "PARENT_ROOT_PORT_NAME", Value: "a=b;c"}, {Key: "empty", Value: ""}},
		Hints(1, "/tmp", ""), Hints(0, "", "/opt:/bin"), Hints(9, "/beyond", ""),
	)...)
	if got := OriginOf(s); got == nil || *got != *origin {
		t.Fatalf("the origin is %+v, want %+v", got, origin)
	}
	out := &step.Spec{Request: step.Request{Apps: []step.App{{NTasks: 1}, {NTasks: 2}}}}
	spawned(out, s)
	want := &step.Spec{
		Request: step.Request{Apps: []step.App{{NTasks: 1, Env: [][]byte{[]byte("PATH=/opt:/bin")}}, {NTasks: 2, Cwd: []byte("/tmp")}}},
		Parent:  &origin.Step,
		Preput:  []step.KeyValue{{Key: "PARENT_ROOT_PORT_NAME", Value: []byte("a=b;c")}, {Key: "empty", Value: []byte{}}},
	}
	if d := cmp.Diff(want, out); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if env := environment(s.Launch.Env, s); !slices.Equal(env, []string{"HOME=/", "SLURM_PMI2_TREE_WIDTH=4"}) {
		t.Errorf("the tasks have %q", env)
	}
}

// TestForgedOrigin: a user writes an srun's environment as he likes. Nothing of a spawn is
// believed that is of another job, or on a node that the job does not have.
func TestForgedOrigin(t *testing.T) {
	for _, value := range []string{"", "1", "1 7.0", "x 7.0 n1", "1 8.0 n1", "1 7.0 n4", "1 7.0 ../n1", "1 7.batch n9", "4294967296 7.0 n1", "1 7.0 "} {
		s := spawnedStream(wire.PMIPair{Key: originKey, Value: value})
		out := new(step.Spec)
		if spawned(out, s); OriginOf(s) != nil || out.Parent != nil || out.Preput != nil {
			t.Errorf("%q: got %+v, %+v", value, OriginOf(s), out)
		}
	}
	s := spawnedStream((&Origin{Node: "n1", Step: step.ID{Job: 7}}).Pair())
	for i, e := range s.Launch.Env {
		if e == "SLURM_PMI2_PREPUT_COUNT=1" {
			s.Launch.Env[i] = "SLURM_PMI2_PREPUT_COUNT=2147483647"
		}
	}
	if OriginOf(s) == nil {
		t.Error("a count beyond the keys hides them")
	}
	s.Launch.Env = slices.DeleteFunc(s.Launch.Env, func(e string) bool { return e == "SLURM_PMI2_SPAWN_SEQ=1" })
	if OriginOf(s) != nil {
		t.Error("a step that no srun has spawned has an origin")
	}
}

// FuzzOrigin: what is read of an origin is written as it was read.
func FuzzOrigin(f *testing.F) {
	f.Add("1 7.0 n1")
	f.Fuzz(func(t *testing.T, text string) {
		o, err := parseOrigin(text)
		if err != nil {
			return
		}
		if again, err := parseOrigin(o.Pair().Value); err != nil || *again != *o {
			t.Errorf("%q is %+v, and then %+v, %v", text, o, again, err)
		}
	})
}
