package proctrack

import (
	"testing"

	"stepd/step"
)

// TestRootProcesses lists the processes of stepd's leaf, by number and name, and no
// zombies.
func TestRootProcesses(t *testing.T) {
	r, id, _ := testStep(t)
	want := func(pids ...int) {
		t.Helper()
		got, err := r.Processes(id)
		if err != nil || len(got) != len(pids) {
			t.Fatalf("Processes() = %+v, %v; want %v", got, err, pids)
		}
		for i, p := range got {
			if p.PID != pids[i] || p.Comm != "sleep" {
				t.Errorf("Processes()[%d] = %+v, want pid %d", i, p, pids[i])
			}
		}
	}
	want()
	cmd := spawn(t, nil, `exec 2>&1; echo ready; exec sleep 1000`)
	if err := r.AddStepd(id, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	for { // it says ready before its exec
		if got, err := r.Processes(id); err != nil || (len(got) == 1 && got[0].Comm == "sleep") {
			break
		}
	}
	want(cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for { // a zombie, until the test's end reaps it
		if got, err := r.Processes(id); err != nil || len(got) == 0 {
			break
		}
	}
	want()
	if got, err := r.Processes(step.ID{Job: 999}); err != nil || got != nil {
		t.Errorf("a step without a place: %+v, %v", got, err)
	}
}
