package place

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"stepd/internal/testkit"
	"stepd/slurmconf"
	"stepd/step"
)

// A noded whose own cgroup was killed once cannot have children that are born
// in another (current kernels kill them): it must still run steps.
func TestRootNodedInKilledCgroup(t *testing.T) {
	testkit.RequireRoot(t)
	parent := t.TempDir()
	log := logrus.New()
	log.SetOutput(io.Discard)
	tracker, err := NewTracker(log, Config{Cgroup: slurmconf.Cgroup{IgnoreSystemd: true}, Spool: parent})
	if err != nil {
		t.Fatal(err)
	}
	ct, ok := tracker.(*cgroupTracker)
	if !ok {
		t.Fatalf("no cgroups here: %T", tracker)
	}
	if err := ct.Prepare(); err != nil {
		t.Fatal(err)
	}
	defer ct.Remove()
	ct.moved = true // what Prepare finds in such a cgroup
	id := step.ID{Job: 1, Step: 0}
	place, err := ct.MakeStep(id, nil)
	if err != nil || place.Leaf != nil {
		t.Fatalf("MakeStep: leaf %v, %v; want none", place.Leaf, err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if err := ct.AddStepd(id, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(place.Dir, "stepd", "cgroup.procs"))
	if err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(cmd.Process.Pid) {
		t.Errorf("the leaf holds %q, %v; want %d", b, err, cmd.Process.Pid)
	}
	if err := ct.EndStep(t.Context(), &step.Record{ID: id, Cgroup: place.Dir}); err != nil {
		t.Error(err)
	}
	if err := ct.EndJob(1); err != nil {
		t.Error(err)
	}
}
