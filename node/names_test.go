package node

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"stepd/api/stepapi"
	"stepd/step"
)

// askOf asks as the stepd of a step does.
func (tn *testNode) askOf(id step.ID, ask *stepapi.Ask) (*stepapi.Answer, error) {
	tn.t.Helper()
	f := tn.reg.follower(id)
	if f == nil {
		tn.t.Fatalf("step %s is not followed", id)
	}
	return launcher{tn.Node}.answer(context.Background(), f, ask)
}

func (tn *testNode) wantRefusal(id step.ID, ask *stepapi.Ask, words string) {
	tn.t.Helper()
	if _, err := tn.askOf(id, ask); err == nil || !strings.Contains(err.Error(), words) {
		tn.t.Errorf("%+v: %v, want %q", ask, err, words)
	}
}

// spawnOf is what a stepd of user 1000 asks for its tasks.
func spawnOf(t *testing.T, job, uid uint32, argv ...string) *stepapi.Ask {
	req := request(argv...)
	req.Job, req.UID, req.GID, req.Overcommit, req.NTasks = &job, &uid, &uid, true, 6
	return &stepapi.Ask{Do: stepapi.AskSpawn, Request: marshal(t, req), Preput: []step.KeyValue{{Key: "k", Value: []byte("\xff")}}}
}

// TestSpawnStep: a step of the same job and user, beyond the job's CPUs, that says
// who has made it.
func TestSpawnStep(t *testing.T) {
	tn := start(t, t.TempDir(), func(c *Config) { c.SpawnMax = 2 })
	t.Cleanup(tn.stop)
	parent := tn.run(1000, request("wait"))
	tn.until(parent, step.Running)
	child := func() step.ID {
		answer, err := tn.askOf(parent, spawnOf(t, parent.Job, 1000, "wait"))
		if err != nil {
			t.Fatal(err)
		}
		if answer.ID == nil || answer.ID.Job != parent.Job || answer.SocketDir == "" || answer.SocketName == "" {
			t.Fatalf("answer %+v", answer)
		}
		return *answer.ID
	}
	first := child()
	rec := tn.until(first, step.Running)
	if rec.Parent == nil || *rec.Parent != parent || rec.UID != 1000 || rec.NTasks != 6 {
		t.Errorf("record %+v", rec)
	}
	child()
	tn.wantRefusal(parent, spawnOf(t, parent.Job, 1000, "wait"), "runs 2 spawned steps, and 2 is the limit (SpawnStepsMax)")
	if err := tn.cancel(first); err != nil {
		t.Fatal(err)
	}
	tn.wait(first)
	child()

	// stepd is root's, yet it speaks for its own step alone.
	other := parent.Job + 1
	tn.wantRefusal(parent, spawnOf(t, other, 1000, "wait"), "another job or user")
	tn.wantRefusal(parent, spawnOf(t, parent.Job, 0, "wait"), "another job or user")
	tn.wantRefusal(parent, &stepapi.Ask{Do: stepapi.AskSpawn, Request: json.RawMessage(`{`)}, "cannot parse")
	tn.wantRefusal(parent, nil, "empty request")
	tn.wantRefusal(parent, &stepapi.Ask{Do: "dance"}, `cannot do "dance"`)

	// The end of the step that the job was made for ends all.
	if err := tn.cancel(parent); err != nil {
		t.Fatal(err)
	}
	tn.wait(parent)
	if steps := tn.reg.followers(); len(steps) > 0 {
		for _, f := range steps {
			tn.wait(f.id)
		}
	}
}

func (tn *testNode) cancel(id step.ID) error {
	_, err := tn.reg.follower(id).cancel(context.Background(), "")
	return err
}

// TestPublishedNames: names are the job's, within limits, and a noded that comes
// later knows them.
func TestPublishedNames(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, func(c *Config) { c.NamesMax = 2 })
	a, b := tn.run(1000, request("wait")), tn.run(1000, request("wait"))
	tn.until(a, step.Running)
	tn.until(b, step.Running)
	name := func(do, name, port string) *stepapi.Ask {
		return &stepapi.Ask{Do: do, Name: []byte(name), Port: []byte(port)}
	}
	lookup := func(id step.ID, of, want string, found bool) {
		t.Helper()
		answer, err := tn.askOf(id, name(stepapi.AskLookup, of, ""))
		if err != nil || answer.Found != found || string(answer.Port) != want {
			t.Errorf("lookup of %q: %+v, %v", of, answer, err)
		}
	}
	for _, n := range []string{"ocean", "\xff\x00"} {
		if _, err := tn.askOf(a, name(stepapi.AskPublish, n, "port\n"+n)); err != nil {
			t.Fatal(err)
		}
	}
	lookup(a, "ocean", "port\nocean", true)
	lookup(b, "ocean", "", false) // another job's
	tn.wantRefusal(a, name(stepapi.AskPublish, "ocean", "x"), "published in job 1 already")
	tn.wantRefusal(a, name(stepapi.AskPublish, "third", "x"), "has 2 names, the limit (PublishedNamesMax)")
	tn.wantRefusal(a, name(stepapi.AskPublish, "", "x"), "want 1 to 1024")
	tn.wantRefusal(a, name(stepapi.AskPublish, strings.Repeat("n", 1024+1), "x"), "want 1 to 1024")
	tn.wantRefusal(a, name(stepapi.AskPublish, "n", strings.Repeat("p", 4096+1)), "4096 is the limit")
	tn.wantRefusal(b, name(stepapi.AskUnpublish, "ocean", ""), "not published in job 2")
	if _, err := tn.askOf(a, name(stepapi.AskUnpublish, "ocean", "")); err != nil {
		t.Error(err)
	}
	lookup(a, "ocean", "", false)

	tn.stop()
	tn = start(t, dir, nil)
	t.Cleanup(tn.stop)
	lookup(a, "\xff\x00", "port\n\xff\x00", true)
	for _, id := range []step.ID{a, b} {
		if err := tn.cancel(id); err != nil {
			t.Error(err)
		}
		tn.wait(id)
	}
}
