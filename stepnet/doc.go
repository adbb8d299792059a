// Package stepnet is how the step daemons of one step over several nodes exchange what
// their MPI plugins need: a tree of connections by node id, over which gatherings (Allgather)
// and calls go. A Node is a launch.Peers.
//
// It does not make the connections: the caller knows which step daemon is at the other end
// of each, and that no other process reads or writes it. It knows neither tasks nor streams.
//
// Begin with New and Attach; Finish and then Close end a Node. The tree's shape is in tree.go, one
// hop in link.go, and what goes over it in frame.go.
package stepnet
