package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"stepd/api"
	"stepd/step"
)

// TestAuthorisation: every verb, by the owner, by another user, by root and by
// a call without credentials; on a running step, an ended and an unknown one.
func TestAuthorisation(t *testing.T) {
	tn := fresh(t)
	const owner, other = 1000, 1001
	ended := tn.run(owner, request("exit", "0"))
	tn.wait(ended)
	running := tn.run(owner, request("wait"))
	tn.until(running, step.Running)
	unknown := step.ID{Job: 99}

	verbs := map[string]func(context.Context, step.ID) error{
		"show": func(ctx context.Context, id step.ID) error {
			_, err := tn.shows(ctx, ref(id))
			return err
		},
		"show job": func(ctx context.Context, id step.ID) error {
			_, err := tn.shows(ctx, api.StepRef{JobID: id.Job})
			return err
		},
		"wait": func(ctx context.Context, id step.ID) error {
			if id == running { // the refusal must come before the wait
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				cancel()
			}
			_, err := tn.waits(ctx, ref(id))
			if api.CodeOf(err) == api.Canceled {
				return nil
			}
			return err
		},
		"signal": func(ctx context.Context, id step.ID) error {
			_, err := tn.svc.Signal(ctx, &api.SignalRequest{StepRef: ref(id), Signal: int(syscall.SIGCONT)})
			return err
		},
		"events": func(ctx context.Context, id step.ID) error {
			_, err := tn.svc.Events(ctx, id)
			return err
		},
		"step in its job": func(ctx context.Context, id step.ID) error {
			req := request("exit", "0")
			req.Job = &id.Job
			req.UID = ptr(uint32(owner))
			_, err := tn.svc.Run(ctx, runRequest(req))
			return err
		},
	}
	callers := map[string]context.Context{
		"owner": as(owner), "other": as(other), "root": as(0), "nobody": context.Background(),
	}
	want := func(verb, who string, id step.ID) api.Code {
		switch {
		case who == "nobody":
			return api.Unauthenticated
		case who == "other" && verb == "step in its job":
			return api.PermissionDenied // by the uid, before any job is looked at
		case id == unknown || id == ended && verb == "step in its job":
			return api.NotFound
		case who == "other":
			return api.PermissionDenied
		case id == ended && verb == "signal":
			return api.FailedPrecondition
		}
		return api.OK
	}
	for verb, call := range verbs {
		for who, ctx := range callers {
			for name, id := range map[string]step.ID{"running": running, "ended": ended, "unknown": unknown} {
				err := call(ctx, id)
				if got := api.CodeOf(err); got != want(verb, who, id) {
					t.Errorf("%s of a step that is %s, by %s: %v, want %v", verb, name, who, err, want(verb, who, id))
				}
				if who == "other" && api.CodeOf(err) == api.PermissionDenied && !strings.HasPrefix(api.MessageOf(err), "permission denied") {
					t.Errorf("%s by %s: %v", verb, who, err)
				}
			}
		}
	}
	if rec := tn.until(running, step.Running); rec.State != step.Running {
		t.Errorf("the step is %s after all this", rec.State)
	}
	if _, err := tn.shows(as(0), ref(unknown)); !strings.Contains(err.Error(), `no such step "99.0"`) {
		t.Errorf("message %q", err)
	}
}

// TestNodeVerbs: what is the node's, by a user, by root and without credentials.
func TestNodeVerbs(t *testing.T) {
	tn := fresh(t)
	for _, tc := range []struct {
		name  string
		call  func(context.Context) error
		users api.Code
	}{
		{"drain", func(ctx context.Context) error {
			_, err := tn.svc.Drain(ctx, &api.DrainRequest{Reason: "disk"})
			return err
		}, api.PermissionDenied},
		{"resume", func(ctx context.Context) error { _, err := tn.svc.Resume(ctx, &api.Empty{}); return err }, api.PermissionDenied},
		{"node", func(ctx context.Context) error { _, err := tn.svc.Node(ctx, &api.Empty{}); return err }, api.OK},
		{"config", func(ctx context.Context) error { _, err := tn.svc.Config(ctx, &api.Empty{}); return err }, api.OK},
		{"list", func(ctx context.Context) error {
			_, err := tn.lists(ctx, true)
			return err
		}, api.OK},
	} {
		if err := tc.call(as(1000)); api.CodeOf(err) != tc.users {
			t.Errorf("%s by a user: %v, want %v", tc.name, err, tc.users)
		}
		if err := tc.call(as(0)); err != nil {
			t.Errorf("%s by root: %v", tc.name, err)
		}
		if err := tc.call(context.Background()); api.CodeOf(err) != api.Unauthenticated {
			t.Errorf("%s by nobody: %v", tc.name, err)
		}
	}
}

// TestListHidesCommands: everybody sees all steps, and only own commands.
func TestListHidesCommands(t *testing.T) {
	tn := fresh(t)
	mine, theirs := tn.run(1000, request("exit", "0")), tn.run(1001, request("exit", "1"))
	tn.wait(mine)
	tn.wait(theirs)
	for uid, want := range map[uint32][]int{1000: {2, 0}, 1001: {0, 2}, 0: {2, 2}, 1002: {0, 0}} {
		recs, err := tn.lists(as(uid), true)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, rec := range recs {
			if rec.Command == nil {
				t.Fatalf("%+v", rec)
			}
			got = append(got, len(rec.Command))
		}
		if !slices.Equal(got, want) {
			t.Errorf("uid %d sees commands of %v words, want %v", uid, got, want)
		}
	}
	if recs, err := tn.lists(as(0), false); err != nil || len(recs) != 0 {
		t.Errorf("running steps: %v, %v", recs, err)
	}
}

// TestDrain refuses steps with its reason, and outlives noded.
func TestDrain(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	state := func(want string) {
		t.Helper()
		reply, err := tn.svc.Node(as(1000), &api.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		var doc api.Node
		if err := json.Unmarshal(reply.Node, &doc); err != nil || doc.State != want || doc.Name != "n1" || doc.CPUs != 4 {
			t.Errorf("%s, want state %s (%v)", reply.Node, want, err)
		}
		for _, list := range []string{`"fallbacks":[]`, `"plugins":[]`} {
			if !strings.Contains(string(reply.Node), list) {
				t.Errorf("%s lacks %s", reply.Node, list)
			}
		}
	}
	state("IDLE")
	id := tn.run(1000, request("wait"))
	state("ALLOCATED")
	if _, err := tn.svc.Drain(as(0), &api.DrainRequest{Reason: "disk is dying"}); err != nil {
		t.Fatal(err)
	}
	state("DRAINING")
	tn.until(id, step.Running)
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
	state("DRAINED")
	tn.stop()
	tn = start(t, dir, nil)
	defer func() { tn.stop() }()
	state("DRAINED")
	_, err := tn.svc.Run(as(0), runRequest(request("exit")))
	if api.CodeOf(err) != api.FailedPrecondition || !strings.Contains(err.Error(), "disk is dying") {
		t.Errorf("Run on a drained node: %v", err)
	}
	if _, err := tn.svc.Resume(as(0), &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	state("IDLE")
	if id := tn.run(1000, request("exit")); id.Job != 2 {
		t.Errorf("job %d: a refused request has spent a number", id.Job)
	} else {
		tn.wait(id)
	}
}

// TestDecode: what noded refuses names the field, and spends no number.
func TestDecode(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	raw := func(change func(map[string]any)) []byte {
		doc := map[string]any{}
		if err := json.Unmarshal(marshal(t, request("exit")), &doc); err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(doc)
		}
		return marshal(t, doc)
	}
	set := func(k string, v any) []byte { return raw(func(d map[string]any) { d[k] = v }) }
	for _, tc := range []struct {
		name string
		body []byte
		says string
	}{
		{"empty", nil, "cannot parse request"},
		{"garbage", []byte("\x00\xff{{"), "cannot parse request"},
		{"an array", []byte("[]"), "cannot parse request"},
		{"two documents", append(raw(nil), raw(nil)...), "cannot parse request"},
		{"an unknown field", set("no_such", "gpu:1"), `unknown field "no_such"`},
		{"a wrong type", set("ntasks", "many"), "ntasks"},
		{"a number beyond int", []byte(`{"schema":1,"ntasks":1e400}`), "cannot parse request"},
		{"no tasks", set("ntasks", 0), "ntasks: 0 tasks"},
		{"more than MaxTasksPerNode", set("ntasks", 60000), "ntasks: 60000 tasks: the limit is 50000 (MaxTasksPerNode)"},
		{"two nodes", set("nnodes", 2), "nnodes: 2 nodes, and this noded has one: several nodes: use Slurm (docs/slurm.md)"},
		{"unknown mpi", set("mpi", "pmix"), `mpi: no type "pmix" here: there are none, pmi2`},
		{"too large", set("env", []string{"A=" + strings.Repeat("x", api.RequestMax)}), "the limit is 16777216"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tn.cfg.MaxTasks = 50000
			doc := fmt.Appendf(nil, `{"schema":1,"request":%s}`, tc.body)
			_, err := tn.svc.send(as(1000), "run", doc, "")
			if !slices.Contains([]api.Code{api.InvalidArgument, api.FailedPrecondition}, api.CodeOf(err)) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %.300v, want %q", err, tc.says)
			}
		})
	}
	if tn.store.Knows(1) {
		t.Error("a refused request has spent a number")
	}
}

// TestShownCommand bounds what is kept.
func TestShownCommand(t *testing.T) {
	if got := shownCommand([]string{"a", "b"}); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %q", got)
	}
	long := []string{"a", strings.Repeat("x", commandMax)}
	if got := shownCommand(long); !slices.Equal(got, []string{"a", "..."}) {
		t.Errorf("got %.100q", fmt.Sprint(got))
	}
}

// TestUserFor: who may run as whom.
func TestUserFor(t *testing.T) {
	tn := fresh(t)
	for _, tc := range []struct {
		name     string
		caller   uint32
		uid, gid *uint32
		want     string // of the error
		user     step.User
	}{
		{"oneself", 1000, nil, nil, "", step.User{UID: 1000, GID: 1000}},
		{"oneself, named", 1000, ptr(uint32(1000)), ptr(uint32(1000)), "", step.User{UID: 1000, GID: 1000}},
		{"another", 1000, ptr(uint32(1001)), nil, "permission denied", step.User{}},
		{"root by a user", 1000, ptr(uint32(0)), nil, "permission denied", step.User{}},
		{"own uid, another gid", 1000, nil, ptr(uint32(0)), "permission denied", step.User{}},
		{"a user by root", 0, ptr(uint32(1000)), nil, "", step.User{UID: 1000, GID: 1000}},
		{"a user by root, another gid", 0, ptr(uint32(1000)), ptr(uint32(27)), "", step.User{UID: 1000, GID: 27}},
		{"a bare number", 0, ptr(uint32(5000)), ptr(uint32(5001)), "", step.User{UID: 5000, GID: 5001}},
		{"a bare number without gid", 0, ptr(uint32(5000)), nil, "--gid is needed", step.User{}},
		{"a caller without an entry", 5000, nil, nil, "permission denied", step.User{}},
		{"a caller without an entry, with gid", 5000, nil, ptr(uint32(0)), "permission denied", step.User{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := request("x")
			req.UID, req.GID = tc.uid, tc.gid
			u, err := launcher{tn.Node}.userFor(context.Background(), api.Peer{UID: tc.caller, GID: tc.caller}, &req)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %+v, %v; want %q", u, err, tc.want)
				}
				return
			}
			if err != nil || u.UID != tc.user.UID || u.GID != tc.user.GID || !slices.Contains(u.Groups, u.GID) {
				t.Errorf("got %+v, %v", u, err)
			}
			if tc.name == "a bare number" && !slices.Equal(u.Groups, []uint32{5001}) {
				t.Errorf("groups %v, want the gid alone", u.Groups)
			}
		})
	}
}
