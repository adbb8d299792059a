// Package state is what a node keeps over its daemon's restarts: the numbers that were given
// out, running jobs, steps, why the node is drained, processes that do not die, and plugins
// that crash. It says what a record has, who gets which number, and what is forgotten when.
//
// It does not know what runs: package node compares it with the stepds that it finds. The
// journals, their order on disk and their repair are package store's.
//
// Begin with Open; NewJobAs and NewStepAs number, Finish ends. The records are in jobs.go.
package state
