package main_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"stepd/internal/testkit"
	"stepd/step"
)

// All tasks write to one file, which is emptied once: a task that is slow to open
// it takes nothing away from the others.
func TestRootCommonFile(t *testing.T) {
	testkit.RequireRoot(t)
	for _, slow := range []int{0, 3} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			const n = 8
			spec := rootSpec(t, "sh", "-c", "echo $SLURM_PROCID; echo $SLURM_PROCID >&2")
			spec.NTasks = n
			file := everybodys(t) + "/out"
			if err := os.WriteFile(file, []byte("of yesterday\n"), 0o666); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(file, 0o666); err != nil {
				t.Fatal(err)
			}
			spec.Stdout = step.Stream{Kind: step.StreamFile, Pattern: file}
			spec.Stderr = step.Stream{Kind: step.StreamSame}
			spec.Spank.Plugstack = idsPlugin(t, fmt.Sprintf("slow=%d", slow))
			if rec, said := start(t, spec).result(t); *rec.ExitCode != 0 {
				t.Fatalf("%+v, said %q", rec, said)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Fields(string(b))
			slices.Sort(got)
			var want []string
			for rank := range n {
				want = append(want, fmt.Sprint(rank), fmt.Sprint(rank))
			}
			if !slices.Equal(got, want) {
				t.Errorf("the file has %q, want %q", got, want)
			}
		})
	}
}

// A first task that never opens its files keeps no other waiting.
func TestRootCommonFileFirstFails(t *testing.T) {
	testkit.RequireRoot(t)
	spec := rootSpec(t, "true")
	spec.NTasks = 3
	spec.Stdout = step.Stream{Kind: step.StreamFile, Pattern: "/no/such/folder/out"}
	rec, said := start(t, spec).result(t)
	for _, task := range rec.Tasks {
		if task.State != step.TaskFailed || task.Stage != "stdio" {
			t.Errorf("task %+v; said %q", task, said)
		}
	}
}
