package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

// TestStat: what runs is asked of its stepd, what has ended is in its record; the
// owner and root may ask.
func TestStat(t *testing.T) {
	tn := fresh(t)
	req := request("wait")
	req.NTasks = 2
	id := tn.run(1000, req)
	tn.until(id, step.Running)
	stat := func(uid uint32) (*step.Record, error) {
		t.Helper()
		recs, err := tn.stats(as(uid), ref(id))
		if err != nil {
			return nil, err
		}
		return recs[0], nil
	}
	for _, uid := range []uint32{1000, 0} {
		rec, err := stat(uid)
		if err != nil {
			t.Fatal(err)
		}
		if rec.Usage == nil || rec.Usage.Samples != 1 || rec.Tasks[1].CPUSeconds == nil || *rec.Tasks[1].CPUSeconds != 1 || rec.UID != 1000 {
			t.Errorf("uid %d: %+v", uid, rec)
		}
	}
	if _, err := stat(1001); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("another user: %v", err)
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
	if rec, err := stat(1000); err != nil || !rec.State.Final() {
		t.Errorf("after the end: %+v, %v", rec, err)
	}
}

// TestLeftUsage: what the cgroups know of a step whose stepd was killed.
func TestLeftUsage(t *testing.T) {
	seconds := 2.5
	tn := start(t, t.TempDir(), func(c *Config) {
		c.LeftUsage = func(rec *step.Record) (*step.StepUsage, error) {
			return &step.StepUsage{Used: step.Used{CPUSeconds: &seconds}, Time: time.Now()}, errors.New("io.stat is odd")
		}
	})
	id := tn.run(1000, request("die", "7"))
	rec := tn.wait(id)
	if rec.State != step.Failed || rec.Usage == nil || *rec.Usage.CPUSeconds != seconds || rec.Usage.Final {
		t.Errorf("%+v", rec)
	}
}

// TestAcctgFreq: who is watched for his memory may not look away.
func TestAcctgFreq(t *testing.T) {
	for _, tt := range []struct {
		kill       bool
		site, freq int
		ok         bool
	}{
		{false, 30, 0, true}, {false, 30, 60, true}, {true, 30, 30, true}, {true, 30, 1, true},
		{true, 30, 0, false}, {true, 30, 31, false}, {true, 0, 60, true},
	} {
		n := &Node{cfg: Config{Site: step.Site{Acct: step.Accounting{OverMemoryKill: tt.kill, FrequencyS: tt.site}}}}
		err := launcher{n}.checkFrequency(&step.Request{AcctgFreq: &tt.freq})
		if (err == nil) != tt.ok || (err != nil && !strings.Contains(err.Error(), "OverMemoryKill")) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
