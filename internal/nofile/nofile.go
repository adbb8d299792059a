// Package nofile knows the limit of open files that this process was started with: package
// syscall raises the soft limit when it is initialised (go.dev/issue/46279), gives it
// back to children alone, and returns it to no caller.
//
// This package is initialised before package syscall. Packages whose imports are
// initialised follow the order of their paths (Go 1.21), and "stepd" sorts before
// "syscall"; hence it may import nothing that imports syscall. TestAtStart holds the
// order.
package nofile

import (
	"runtime"
	"unsafe"
)

var (
	limit struct{ soft, hard uint64 } // struct rlimit64
	read  = prlimit()
)

// AtStart is the soft limit that this process was started with, and false where it could
// not be read.
func AtStart() (soft uint64, ok bool) { return limit.soft, read }

// prlimit calls prlimit64(2) for this process.
func prlimit() bool {
	number := map[string]uintptr{"amd64": 302, "arm64": 261}[runtime.GOARCH]
	if number == 0 {
		return false
	}
	const rlimitNofile = 7
	_, _, errno := rawSyscall6(number, 0, rlimitNofile, 0, uintptr(unsafe.Pointer(&limit)), 0, 0)
	return errno == 0
}

// rawSyscall6 is syscall.RawSyscall6, which needs no initialisation.
//
//go:linkname rawSyscall6 syscall.RawSyscall6
//go:noescape
func rawSyscall6(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2, errno uintptr)
