// Package store keeps what noded must remember, in two journals. The durable one lies in
// the spool and survives a power failure; the volatile one lies in the run directory, which
// is in memory as a rule, and survives noded. The volatile journal has everything, so that
// no read asks the spool; the durable one has the kinds that Config.Durable lists.
//
// A value is JSON, known by its kind and key. Update stores what a request asks for, all of
// it or nothing; Record stores what has happened, and does not lose it where a journal
// cannot be written to: it tries again. Begin reading at Open, then journal.go.
//
// The package decides neither what is kept nor for how long, and does not keep two
// processes from one directory: the caller holds a lock.
package store
