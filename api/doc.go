// Package api is noded's API: HTTP/1.1 and JSON on a unix socket (docs/api.md). It has the
// types of requests and replies, and the client that stepctl uses; a controller begins with
// Client and its method Run:
//
//	noded := &api.Client{Socket: "/run/stepd/noded.sock", Program: "controller 1.0"}
//	reply, err := noded.Run(ctx, &api.RunRequest{Request: &request})
//	records, err := noded.Wait(ctx, api.StepRef{JobID: reply.JobID, StepID: &reply.StepID})
//
// request is a step.Request. The identity of the caller is the kernel's word on the
// process; errors of noded's are *Error, with a Code to branch on. What a step's stepd says
// on its own socket is package stepapi.
package api
