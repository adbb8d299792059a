package node

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"stepd/api"
	"stepd/step"
)

func batch(script string, argv ...string) step.Request {
	req := request(append([]string{"job.sh"}, argv...)...)
	req.Script = []byte("#!" + script)
	return req
}

// batch makes a batch job of this process's own user.
func (tn *testNode) batch(script string) step.ID {
	tn.t.Helper()
	return tn.run(uint32(os.Getuid()), batch(script))
}

func (tn *testNode) cancelJob(id step.ID) {
	tn.t.Helper()
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: api.StepRef{JobID: id.Job}}); err != nil {
		tn.t.Fatal(err)
	}
}

// TestBatch: the script is the job's first step, and the job's last.
func TestBatch(t *testing.T) {
	tn := fresh(t)
	uid := uint32(os.Getuid()) // whose file the script can be made without root
	req := batch("script", "an argument")
	req.NTasks = 3
	id := tn.run(uid, req)
	if id != (step.ID{Job: 1, Step: step.BatchStep}) {
		t.Fatalf("step %s", id)
	}
	rec := tn.wait(id)
	path := tn.spool.Script(1)
	if want := "batch " + path + " an argument of 3 tasks, 0 bytes of script"; rec.Reason != want {
		t.Errorf("reason %q, want %q", rec.Reason, want)
	}
	if rec.NTasks != 1 || len(rec.Tasks) != 1 || rec.CPUs != "0-2" || strings.Join(rec.Command, " ") != "job.sh an argument" {
		t.Errorf("record %+v", rec)
	}
	tn.nothingLeft(id)
	if _, err := os.Lstat(path); err == nil {
		t.Errorf("%s is left", path)
	}
	tn.idle()

	id = tn.run(uid, batch("wait"))
	tn.until(id, step.Running)
	st, err := os.Stat(tn.spool.Script(id.Job))
	if err != nil || st.Mode() != 0o700 || st.Sys().(*syscall.Stat_t).Uid != uid {
		t.Errorf("script %v, %v", st, err)
	}
	for _, dir := range []string{tn.spool.Dir, tn.spool.ScriptsDir()} {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o711 {
			t.Errorf("%s has mode %v: users must reach their scripts", dir, st.Mode())
		}
	}
	first := tn.stepOf(id.Job, uid, "wait")
	if first != (step.ID{Job: id.Job}) {
		t.Errorf("the first step in the script is %s", first)
	}
	tn.until(first, step.Running)
	if _, err := tn.svc.Cancel(as(uid), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(first); rec.State != step.Cancelled || rec.Reason != jobEnded {
		t.Errorf("record %+v", rec)
	}
	tn.wait(id)
	tn.idle()
}

func TestBatchRefusals(t *testing.T) {
	tn := fresh(t)
	lead := tn.run(1000, request("wait"))
	tn.until(lead, step.Running)
	for field, change := range map[string]func(*step.Request){
		"script": func(r *step.Request) { r.Job = &lead.Job },
		"stdin":  func(r *step.Request) { r.Stdin.Kind = step.StreamClient },
		"stdout": func(r *step.Request) { r.Stdout.Kind = step.StreamClient },
		"stderr": func(r *step.Request) { r.Stderr.Kind = step.StreamClient },
	} {
		req := batch("exit 0")
		change(&req)
		_, err := tn.svc.Run(as(1000), runRequest(req))
		if api.CodeOf(err) != api.InvalidArgument || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(lead)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(lead)
}
