// Package stepnet is how the stepds of one step over several nodes talk, and the
// step's launcher with them (docs/adr/0009): a tree of TLS connections by node id,
// on which each end is known by the public key that the step's layout names.
//
// The tree carries what MPI plugins need (Node is a step.Peers), the tasks'
// output and their lines up to the launcher, its input and its orders down, and to
// all what one node has to tell about the step's end. It does not know what those
// words mean, nor what a task is.
//
// Begin with New (a stepd) or Dial (the launcher).
package stepnet
