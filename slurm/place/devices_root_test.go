package place

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"stepd/step"
	"stepd/step/launch"
	"stepd/task/cgroup"
	"stepd/task/confine"
	"stepd/task/device"
)

// TestRootMakeDenies: no process of a job opens what is not the job's, none of a step what is
// not the step's, and so with tasks; by v1 and by programs of v2. Devices of memory play GPUs.
func TestRootMakeDenies(t *testing.T) {
	null := func(minor uint32) step.Device { return step.Device{Type: "c", Major: 1, Minor: minor} }
	full, zero, random, urandom := null(7), null(5), null(8), null(9)
	for name, conf := range map[string]string{"as detected": "ConstrainDevices=yes", "v2": "ConstrainDevices=yes\nCgroupPlugin=cgroup/v2"} {
		t.Run(name, func(t *testing.T) {
			cfg := node(t, "TaskPlugin=task/cgroup", conf)
			cfg.Denied = func(constrained bool) (confine.Denied, error) {
				if !constrained {
					t.Error("devices are not constrained")
				}
				return confine.Denied{Job: []step.Device{full}, Step: []step.Device{full, zero}, Tasks: [][]step.Device{{full, zero, random}, {full, zero, urandom}}}, nil
			}
			s := spec(9, 0)
			p := mustMake(t, cfg, s)
			defer mustRemove(t, p)
			if v1 := s.Confine.V1["devices"]; name == "v2" && v1 != "" {
				t.Errorf("v1 is used: %q", v1)
			}
			plugin := cgroup.New(s.Confine, s.Proctrack.Tasks, []int{0, 1}, device.Attach)
			defer func() {
				if err := plugin.PostStep(); err != nil {
					t.Error(err)
				}
			}()
			for local, want := range []string{"random", "urandom"} {
				if got := opens(t, s, plugin, local); got != "full zero "+want+" \n" {
					t.Errorf("task %d is refused %q", local, got)
				}
			}
		})
	}
}

// opens runs a task of the step and returns the devices that it is refused.
func opens(t *testing.T, s *step.Spec, plugin *cgroup.Plugin, local int) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", `read go; for d in full zero random urandom null; do (: < /dev/$d) 2>/dev/null || printf "$d "; done; echo`)
	gate, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if s.Confine.V1["devices"] == "" { // the tracker's part
		dir := filepath.Join(s.Proctrack.Tasks, launch.TaskName(local))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(dir)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := plugin.PreLaunchPriv(local, cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	fmt.Fprintln(gate)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	return out.String()
}
