package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"stepd/api"
	"stepd/step"
)

// Who may ask for what: each method of the service's descriptor has a row here.

// authority says whose a method is.
type authority string

const (
	anyones authority = "anyone's" // whoever has credentials
	roots   authority = "root's"
	owners  authority = "owner's"    // of the step or job that it names, and root's
	joiners authority = "a joiner's" // it makes something of the owner's in the job that it names
	makers  authority = "a maker's"  // it makes something of the owner's, and names none that is there
)

const (
	ownerUID, otherUID = 1000, 1001
	allowed            = api.OK // or any other answer than a refusal for who asks
)

// matrixRow is one method: what it is asked with, about a step.
type matrixRow struct {
	whose authority
	in    func(t *testing.T, id step.ID) proto.Message
	// target makes what the method is asked about in the state that it needs; nil is
	// a running step.
	target func(tn *testNode) step.ID
}

func refRow(whose authority) matrixRow {
	return matrixRow{whose: whose, in: func(_ *testing.T, id step.ID) proto.Message { return ref(id) }}
}

func emptyRow(whose authority) matrixRow {
	return matrixRow{whose: whose, in: func(*testing.T, step.ID) proto.Message { return &api.Empty{} }}
}

// requestRow asks for a step of the owner's, in the job where join is set.
func requestRow(whose authority) matrixRow {
	return matrixRow{whose: whose, in: func(t *testing.T, id step.ID) proto.Message {
		req := request("exit", "0")
		req.UID = ptr(uint32(ownerUID))
		if whose == joiners {
			req.Job, req.Overcommit = &id.Job, true
		}
		return &api.RunRequest{Request: marshal(t, req)}
	}}
}

func matrix() map[string]matrixRow {
	return map[string]matrixRow{
		"Run":          requestRow(joiners),
		"DryRun":       requestRow(joiners),
		"Reserve":      requestRow(joiners),
		"Alloc":        requestRow(makers),
		"Wait":         refRow(owners),
		"Show":         refRow(owners),
		"Stat":         refRow(owners),
		"Suspend":      refRow(owners),
		"Unsuspend":    refRow(owners),
		"Output":       refRow(owners),
		"NodeStatus":   emptyRow(anyones),
		"ClientConfig": emptyRow(anyones),
		"Resume":       emptyRow(roots),
		"List":         {whose: anyones, in: func(*testing.T, step.ID) proto.Message { return &api.ListRequest{All: true} }},
		"Drain":        {whose: roots, in: func(*testing.T, step.ID) proto.Message { return &api.DrainRequest{Reason: "matrix"} }},
		"Adopt":        {whose: roots, in: func(*testing.T, step.ID) proto.Message { return &api.AdoptRequest{Pid: 1} }},
		"Signal": {whose: owners, in: func(_ *testing.T, id step.ID) proto.Message {
			return &api.SignalRequest{Step: ref(id), Signal: 15}
		}},
		"Cancel": {whose: owners, in: func(_ *testing.T, id step.ID) proto.Message { return &api.CancelRequest{Step: ref(id)} }},
		"Events": {whose: owners, in: func(_ *testing.T, id step.ID) proto.Message { return &api.EventsRequest{Step: ref(id)} }},
		"Launch": {
			whose: owners,
			in: func(_ *testing.T, id step.ID) proto.Message {
				return &api.LaunchRequest{Step: ref(id), Change: []byte(`{"env":[]}`)}
			},
			target: (*testNode).reserveOwn,
		},
		"Release": {
			whose:  owners,
			in:     func(_ *testing.T, id step.ID) proto.Message { return &api.ReleaseRequest{JobId: id.Job} },
			target: (*testNode).allocOwn,
		},
	}
}

// asProcess is the caller uid, in the shape of this process: allocations and
// reservations are of one.
func asProcess(uid uint32) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: api.Peer{UID: uid, GID: uid, PID: int32(os.Getpid())}})
}

func (tn *testNode) reserveOwn() step.ID {
	tn.t.Helper()
	r, err := tn.svc.Reserve(asProcess(ownerUID), &api.RunRequest{Request: marshal(tn.t, request("exit", "0"))})
	if err != nil {
		tn.t.Fatal(err)
	}
	return step.ID{Job: r.JobId, Step: r.StepId}
}

func (tn *testNode) allocOwn() step.ID {
	tn.t.Helper()
	r, err := tn.svc.Alloc(asProcess(ownerUID), &api.RunRequest{Request: marshal(tn.t, request("-"))})
	if err != nil {
		tn.t.Fatal(err)
	}
	return step.ID{Job: r.JobId}
}

// methods are those of the service, each as a call that is given its request.
func (tn *testNode) methods() map[string]func(context.Context, proto.Message) error {
	all := map[string]func(context.Context, proto.Message) error{}
	for _, m := range api.Node_ServiceDesc.Methods {
		all[m.MethodName] = func(ctx context.Context, in proto.Message) error {
			_, err := m.Handler(tn.svc, ctx, func(v any) error { proto.Merge(v.(proto.Message), in); return nil }, nil)
			return err
		}
	}
	for _, s := range api.Node_ServiceDesc.Streams {
		all[s.StreamName] = func(ctx context.Context, in proto.Message) error {
			return s.Handler(tn.svc, &matrixStream{ctx: ctx, in: in})
		}
	}
	return all
}

// matrixStream is the server's end of a stream whose client sends one message.
type matrixStream struct {
	grpc.ServerStream
	ctx context.Context
	in  proto.Message
}

func (s *matrixStream) Context() context.Context     { return s.ctx }
func (s *matrixStream) SetHeader(metadata.MD) error  { return nil }
func (s *matrixStream) SendHeader(metadata.MD) error { return nil }
func (s *matrixStream) SetTrailer(metadata.MD)       {}
func (s *matrixStream) SendMsg(any) error            { return nil }
func (s *matrixStream) RecvMsg(v any) error {
	if s.in == nil {
		return io.EOF
	}
	proto.Merge(v.(proto.Message), s.in)
	s.in = nil
	return nil
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

// TestMatrix: every method of the service, asked by the step's owner, another user,
// root, a call without credentials and one beyond its user's connections; about what
// is there, a job that has ended (a stale number), and one that never was.
func TestMatrix(t *testing.T) {
	tn := fresh(t)
	rows, methods := matrix(), tn.methods()
	for name := range rows {
		if methods[name] == nil {
			t.Errorf("the matrix has a row for %s, which is no method any more", name)
		}
	}
	ended := tn.run(ownerUID, request("exit", "0"))
	tn.wait(ended)
	witness := tn.run(ownerUID, request("wait"))
	tn.until(witness, step.Running)

	over := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: api.Peer{UID: ownerUID, Refusal: "too many (UserConnectionsMax)"}})
	callers := []struct {
		who string
		ctx context.Context
	}{
		// Those first who must change nothing.
		{"nobody", context.Background()}, {"beyond the limit", over}, {"other", asProcess(otherUID)}, {"root", asProcess(0)}, {"owner", asProcess(ownerUID)},
	}
	for name, call := range methods {
		row, ok := rows[name]
		if !ok {
			t.Errorf("method %s has no row: add to this matrix whose it is", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			tn := &testNode{Node: tn.Node, svc: tn.svc, tracker: tn.tracker, containers: tn.containers, dir: tn.dir, t: t}
			for _, c := range callers {
				for _, target := range []string{"there", "ended", "unknown"} {
					tn.askCell(row, c.who, target, ended, func(id step.ID) error {
						ctx, cancel := context.WithCancel(c.ctx)
						if name == "Wait" || name == "Events" {
							cancel() // the refusal must come before the wait
						}
						defer cancel()
						return call(ctx, row.in(t, id))
					})
					tn.clear(witness)
				}
			}
			if name == "Drain" {
				if err := tn.setDrain(drainRecord{}); err != nil {
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
			_, _ = tn.svc.Cancel(asProcess(0), &api.CancelRequest{Step: &api.StepRef{JobId: d.ID}}) // it may have ended
		}
		select {
		case <-j.ended:
		case <-time.After(testTimeout):
			tn.t.Fatalf("job %d does not end", d.ID)
		}
	}
}
