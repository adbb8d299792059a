package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/node/state"
	"stepd/step"
)

// Who may ask for what: each verb of the server has a row here.

// authority says whose a verb is.
type authority string

const (
	anyones authority = "anyone's" // any client with credentials
	roots   authority = "root's"
	owners  authority = "owner's"    // of the step or job that it names, and root's
	joiners authority = "a joiner's" // it makes something of the owner's in the job that it names
	makers  authority = "a maker's"  // it makes something of the owner's, and names none that exists
)

const (
	ownerUID, otherUID = 1000, 1001
	allowed            = api.OK // or any other answer than a refusal of the caller
)

// matrixRow is one verb: what it is asked with, about a step.
type matrixRow struct {
	whose authority
	in    func(id step.ID) any
	// target makes what the verb is asked about in the state that it needs; nil is
	// a running step.
	target func(tn *testNode) step.ID
}

func refRow(whose authority) matrixRow {
	return matrixRow{whose: whose, in: func(id step.ID) any { return &api.RefRequest{Envelope: schema, StepRef: ref(id)} }}
}

func emptyRow(whose authority) matrixRow {
	return matrixRow{whose: whose, in: func(step.ID) any { return &api.Empty{Envelope: schema} }}
}

var schema = api.Envelope{Schema: api.Schema}

// requestRow asks for a step of the owner's, in the job where join is set.
func requestRow(whose authority) matrixRow {
	return matrixRow{whose: whose, in: func(id step.ID) any {
		req := request("exit", "0")
		req.UID = ptr(uint32(ownerUID))
		if whose == joiners {
			req.Job, req.Overcommit = &id.Job, true
		}
		return &api.RunRequest{Envelope: schema, Request: &req}
	}}
}

func matrix() map[string]matrixRow {
	return map[string]matrixRow{
		"run":       requestRow(joiners),
		"dryrun":    requestRow(joiners),
		"reserve":   requestRow(joiners),
		"willrun":   requestRow(joiners),
		"alloc":     requestRow(makers),
		"wait":      refRow(owners),
		"show":      refRow(owners),
		"stat":      refRow(owners),
		"suspend":   refRow(owners),
		"unsuspend": refRow(owners),
		"output":    refRow(owners),
		"node":      emptyRow(anyones),
		"config":    emptyRow(anyones),
		"resume":    emptyRow(roots),
		"list":      {whose: anyones, in: func(step.ID) any { return &api.ListRequest{Envelope: schema, All: true} }},
		"drain":     {whose: roots, in: func(step.ID) any { return &api.DrainRequest{Envelope: schema, Reason: "matrix"} }},
		"adopt":     {whose: roots, in: func(step.ID) any { return &api.AdoptRequest{Envelope: schema, PID: 1} }},
		"signal": {whose: owners, in: func(id step.ID) any {
			return &api.SignalRequest{Envelope: schema, StepRef: ref(id), Signal: 15}
		}},
		"cancel": {whose: owners, in: func(id step.ID) any { return &api.CancelRequest{Envelope: schema, StepRef: ref(id)} }},
		"events": {whose: owners, in: func(id step.ID) any { return &api.EventsRequest{Envelope: schema, StepRef: ref(id)} }},
		"launch": {
			whose: owners,
			in: func(id step.ID) any {
				return &api.LaunchRequest{Envelope: schema, StepRef: ref(id), Change: new(step.LaunchChange)}
			},
			target: (*testNode).reserveOwn,
		},
		"release": {
			whose:  owners,
			in:     func(id step.ID) any { return &api.ReleaseRequest{Envelope: schema, JobID: id.Job} },
			target: (*testNode).allocOwn,
		},
	}
}

// asProcess is the caller uid, in the shape of this process: allocations and
// reservations are of one.
func asProcess(uid uint32) context.Context {
	return requestOf(api.Peer{UID: uid, GID: uid, PID: int32(os.Getpid())})
}

func (tn *testNode) reserveOwn() step.ID {
	tn.t.Helper()
	r, err := tn.svc.Reserve(asProcess(ownerUID), runRequest(request("exit", "0")))
	if err != nil {
		tn.t.Fatal(err)
	}
	return step.ID{Job: r.JobID, Step: r.StepID}
}

func (tn *testNode) allocOwn() step.ID {
	tn.t.Helper()
	r, err := tn.svc.Alloc(asProcess(ownerUID), runRequest(request("-")))
	if err != nil {
		tn.t.Fatal(err)
	}
	return step.ID{Job: r.JobID}
}

// wantCode is the answer to who about a target. Only refusals are told from each
// other: what is allowed may fail for other reasons.
func wantCode(whose authority, who, target string) api.Code {
	switch {
	case who == "nobody":
		return api.Unauthenticated
	case who == "beyond the limit":
		return api.ResourceExhausted
	case whose == anyones, whose == roots && who == "root", whose == makers && who != "other":
		return allowed
	case whose == roots, whose == makers:
		return api.PermissionDenied
	case whose == joiners && who == "other":
		return api.PermissionDenied // by the uid, before any job is looked at
	case target == "unknown", whose == joiners && target == "ended":
		return api.NotFound
	case who == "other":
		return api.PermissionDenied
	}
	return allowed
}

// refusalOf is the code as far as the matrix tells them apart.
func refusalOf(err error) api.Code {
	switch c := api.CodeOf(err); c {
	case api.PermissionDenied, api.Unauthenticated:
		return c
	case api.NotFound:
		if strings.Contains(err.Error(), "no such") { // else there is nothing of what is asked for
			return c
		}
	case api.ResourceExhausted:
		if strings.Contains(err.Error(), "UserConnectionsMax") {
			return c
		}
	case api.Unimplemented, api.Unknown:
		return c // never an answer
	}
	return allowed
}

// TestMatrix: every verb of the server, asked by the step's owner, another user,
// root, a call without credentials and one beyond its user's connections; about a
// job that exists, one that has ended (a stale number), and one that never was.
func TestMatrix(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	rows, verbs := matrix(), tn.svc.Verbs()
	for name := range rows {
		if !slices.Contains(verbs, name) {
			t.Errorf("the matrix has a row for %s, which is no verb any more", name)
		}
	}
	ended := tn.run(ownerUID, request("exit", "0"))
	tn.wait(ended)
	witness := tn.run(ownerUID, request("wait"))
	tn.until(witness, step.Running)

	callers := []struct {
		who string
		ctx context.Context
	}{
		// Those first who must change nothing.
		{"nobody", context.Background()}, {"beyond the limit", asProcess(ownerUID)}, {"other", asProcess(otherUID)}, {"root", asProcess(0)}, {"owner", asProcess(ownerUID)},
	}
	for _, name := range verbs {
		row, ok := rows[name]
		if !ok {
			t.Errorf("verb %s has no row: add to this matrix whose it is", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			tn := &testNode{Node: tn.Node, svc: tn.svc, tracker: tn.tracker, containers: tn.containers, dir: tn.dir, t: t}
			for _, c := range callers {
				for _, target := range []string{"there", "ended", "unknown"} {
					tn.askCell(row, c.who, target, ended, func(id step.ID) error {
						ctx, cancel := context.WithCancel(c.ctx)
						if name == "wait" || name == "events" {
							cancel() // the refusal must come before the wait
						}
						defer cancel()
						refusal := ""
						if c.who == "beyond the limit" {
							refusal = "too many (UserConnectionsMax)"
						}
						_, err := tn.svc.send(ctx, name, marshal(t, row.in(id)), refusal)
						return err
					})
					tn.clear(witness)
				}
			}
			if name == "drain" {
				if err := tn.health.SetDrain(state.Drain{}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if rec := tn.until(witness, step.Running); rec.State != step.Running {
		t.Errorf("a step that nobody has named is %s after all this", rec.State)
	}
}

// askCell asks one thing, and looks that a refusal has left its target as it was.
func (tn *testNode) askCell(row matrixRow, who, target string, ended step.ID, call func(step.ID) error) {
	t := tn.t
	t.Helper()
	id := step.ID{Job: 99999}
	switch {
	case target == "ended" && row.target == nil:
		id = ended
	case target == "there" && row.target != nil:
		id = row.target(tn)
	case target == "there" && (row.whose == owners || row.whose == joiners):
		id = tn.run(ownerUID, request("wait"))
		tn.until(id, step.Running)
	case target == "ended" && row.target != nil:
		target = "unknown" // nothing is left of a reservation or allocation
	}
	before := fmt.Sprint(tn.reg.usage().drained, len(tn.reg.usage().jobs))
	err := call(id)
	want := wantCode(row.whose, who, target)
	if got := refusalOf(err); got != want {
		t.Errorf("by %s, about what is %s: %v, want %s", who, target, err, want)
	}
	if want != allowed {
		if now := fmt.Sprint(tn.reg.usage().drained, len(tn.reg.usage().jobs)); now != before {
			t.Errorf("by %s, about what is %s: refused, and the node went from %s to %s", who, target, before, now)
		}
	}
}

// clear ends all that a cell has left, but the step but.
func (tn *testNode) clear(but step.ID) {
	tn.t.Helper()
	for _, d := range tn.reg.usage().jobs {
		j := tn.reg.job(d.ID)
		if d.ID == but.Job || j == nil {
			continue
		}
		if j.Origin == step.OriginAlloc {
			tn.endAlloc(j, "cleared")
		} else {
			_, _ = tn.svc.Cancel(asProcess(0), &api.CancelRequest{StepRef: api.StepRef{JobID: d.ID}}) // it may have ended
		}
		select {
		case <-j.ended:
		case <-time.After(testTimeout):
			tn.t.Fatalf("job %d does not end", d.ID)
		}
	}
}
