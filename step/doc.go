// Package step is the vocabulary that every other package shares: the names
// of a job step and its parts, what a client asks for (Request), what noded
// decided about it (Spec), how tasks end (ExitStatus), the states a step can
// be in (State), and what is shown to users about it (Record).
//
// It holds no mechanism, opens no file and imports the standard library only.
// Begin with ID, Request and Spec.
package step
