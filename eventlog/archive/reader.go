package archive

import (
	"os"

	"stepd/internal/linux"
)

// grant has a step's user read a file of root's: an owner could grow it without end, in a spool that
// may be the machine's root file system.
func grant(f *os.File, uid uint32) error {
	return linux.GrantUser(f, linux.MayRead|linux.MayWrite, uid, linux.MayRead)
}

// reader returns the user that grant has named.
func reader(f *os.File) (uid uint32, err error) { return linux.GrantedUser(f) }
