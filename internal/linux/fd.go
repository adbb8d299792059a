package linux

import "os"

// OnFD calls f with the file's descriptor, which stays open meanwhile. os.File.Fd
// would make it blocking, for all that share it and for the runtime's poller. The
// error is f's, or os.ErrClosed.
func OnFD(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}
