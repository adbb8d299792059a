// Package task is the story of one step, from the plan to the result. MakePlan
// decides, without touching anything; Step.Run does it: the stages of launch in
// run.go, the running step in loop.go, the end in teardown.go.
//
// It knows its neighbours (the tracker, the SPANK host, the MPI plugin, the
// audience) only by the interfaces in ports.go; package stepd wires them.
package task
