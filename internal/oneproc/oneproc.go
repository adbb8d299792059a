// Package oneproc makes Go use one processor from the start of a program that imports it: the
// goroutines of a short program wait for each other, and with a second processor each handing over
// wakes a thread. It is initialised before the packages that start goroutines (see
// internal/nofile for the order), so that the second processor has nothing yet that must be given
// up: later that costs seventy pages.
package oneproc

import "runtime"

// Processors is how many Go would use. A program that has more to do than to wait gives them back:
// runtime.GOMAXPROCS(oneproc.Processors).
var Processors = runtime.GOMAXPROCS(1)
