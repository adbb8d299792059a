package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"stepd/api"
	"stepd/step"
)

// batch submits a script for the user `nobody` (65534), who may write in dir.
func (d *private) batch(dir, script string, ntasks int) step.ID {
	d.t.Helper()
	uid := uint32(65534)
	req := &step.Request{
		Schema: 1, Name: "job.sh", NTasks: ntasks, NNodes: 1, CPUsPerTask: 1, UID: &uid,
		Argv: []string{"job.sh", "one", "two words"}, Env: []string{"PATH=/usr/bin:/bin", "MINE=yes"}, Cwd: dir,
		Stdin:  step.Stream{Kind: step.StreamNull},
		Stdout: step.Stream{Kind: step.StreamFile, Pattern: "slurm-%j.out"}, Stderr: step.Stream{Kind: step.StreamSame},
		Script: []byte(script), JobControl: [][]byte{[]byte("GIVEN=1")},
	}
	reply, err := d.client.Run(d.t.Context(), &api.RunRequest{Request: req})
	if err != nil {
		d.t.Fatalf("Run: %v", err)
	}
	return step.ID{Job: reply.JobID, Step: reply.StepID}
}

// TestRootBatch: a script runs to its end without a client, and a restart in
// the middle of it changes nothing.
func TestRootBatch(t *testing.T) {
	d := newReal(t, nil)
	dir := d.path("wd")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	id := d.batch(dir, `#!/bin/sh
echo "$0|$1|$2|$(id -u)|$SLURM_JOB_ID|$SLURM_NTASKS|$SLURM_SPANK_GIVEN|$MINE|${SLURM_STEP_ID-none}"
read line <fifo
echo "$line" >&2
exit 7
`, 2)
	if id != (step.ID{Job: 1, Step: step.BatchStep}) {
		t.Fatalf("step %s", id)
	}
	d.running(id)
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	d.start()
	d.running(id)
	if err := os.WriteFile(fifo, []byte("go on\n"), 0); err != nil {
		t.Fatal(err)
	}
	rec := d.wait(id)
	if rec.State != step.Failed || rec.ExitCode == nil || *rec.ExitCode != 7 || rec.NTasks != 1 {
		t.Errorf("record %+v", rec)
	}
	out, err := os.ReadFile(filepath.Join(dir, "slurm-1.out"))
	script := d.path("spool/scripts/job00001/slurm_script")
	want := fmt.Sprintf("%s|one|two words|65534|1|2|1|yes|none\ngo on\n", script)
	if err != nil || string(out) != want {
		t.Errorf("output %q, %v, want %q", out, err, want)
	}
	if _, err := os.Lstat(script); err == nil {
		t.Errorf("%s is left", script)
	}
	d.nothingLeft(rec)
}

// TestRootBatchCannotExec: what is wrong with a script is its step's result.
func TestRootBatchCannotExec(t *testing.T) {
	d := newReal(t, nil)
	rec := d.wait(d.batch("/", "#!/no/such/interpreter\n", 1))
	if rec.State != step.Failed || rec.ExitCode == nil || *rec.ExitCode == 0 || rec.Tasks[0].State != step.TaskFailed {
		t.Errorf("record %+v", rec)
	}
	d.nothingLeft(rec)
}
