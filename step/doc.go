// Package step is the vocabulary that every other package shares: the id of a job step (ID),
// the client's request (Request), the site's settings (Site), noded's decision, which has
// both (Spec), the ends of tasks (ExitStatus), the states of a step (State) and its document
// for users (Record).
//
// It holds no mechanism, opens no file and imports the standard library only.
// Begin with ID, Request and Spec.
package step
