// Package integration holds tests that know only the built programs: noded,
// stepd, stepctl and spankhost, started as root as a site would start them,
// each group of tests with a private noded below a directory of its own.
//
// The programs are those in $STEPD_BIN, else in ../bin (run `make` first). A
// file is a feature and reads as a session; harness_test.go begins one.
package integration
