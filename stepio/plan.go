package stepio

import (
	"os"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// rawFD is the descriptor of f without os.File.Fd's side effect: that sets
// blocking mode on a file that others may share.
func rawFD(f *os.File) int {
	fd := -1
	_ = linux.OnFD(f, func(n int) error { fd = n; return nil }) // -1 of one that is closed
	return fd
}

// Handable reports whether f may be given to the tasks: a regular file or a pipe,
// and the tasks are of the same user. A terminal or a socket is
// relayed, so that no task can control the client's terminal.
func Handable(f *os.File, sameUser bool) bool {
	kind := kindOf(f)
	return sameUser && (kind == unix.S_IFREG || kind == unix.S_IFIFO)
}

// kindOf is the kind of file that f is (S_IFMT), 0 of one that is not open.
func kindOf(f *os.File) uint32 {
	var st unix.Stat_t
	if f == nil || unix.Fstat(rawFD(f), &st) != nil {
		return 0
	}
	return st.Mode & unix.S_IFMT
}

func isPipe(f *os.File) bool { return kindOf(f) == unix.S_IFIFO }

// IsNull reports whether f is /dev/null, or is not open at all.
func IsNull(f *os.File) bool {
	var st unix.Stat_t
	if f == nil || unix.Fstat(rawFD(f), &st) != nil {
		return true
	}
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

func isRegular(f *os.File) bool { return kindOf(f) == unix.S_IFREG }

// TakeFD takes the descriptor out of f, which is then closed: it is the
// caller's to close.
func TakeFD(f *os.File) (int, error) {
	defer f.Close()
	return unix.FcntlInt(uintptr(rawFD(f)), unix.F_DUPFD_CLOEXEC, 3)
}
