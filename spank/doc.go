// Package spank is the Go half of the SPANK host: it reads plugstack.conf
// (ReadStack), decides which plugins of which release may be loaded
// (CheckRelease), and drives spankhost, the C program that loads them, calls
// their hooks and forks the tasks (Start, then the methods of Host in the
// order of spank/host/protocol.h).
//
// It makes no decision about the step: what a failed hook means is task's
// business.
package spank
