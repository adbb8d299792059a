// Package node is what noded does: it takes requests on a unix socket, decides
// who may do what, admits steps, numbers them for ever, starts one stepd for
// each and follows it to its result, and finds running steps again after its
// own restart.
//
// It is not the step: all that happens after stepd was started is stepd's, and
// goes on without noded. It knows the mechanisms (proctrack, jobcontainer,
// the user lookup) only by the interfaces in ports.go.
//
// Begin with New and Serve. Run (run.go) is the path of a request; follower
// (follow.go) is the loop that owns one step's state; Recover (recover.go)
// finds what an earlier noded left.
package node
