package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// A step's files are root's, and an entry of their access control list (acl(5)) has the step's
// user read them: an owner could grow them without end, in a spool that may be the machine's root
// file system. Where the file system has no such lists, the files are the user's.

// The list as the kernel stores it (linux/posix_acl_xattr.h): a version, and entries of a tag,
// what it may, and whose it is.
const (
	aclName    = "system.posix_acl_access"
	aclVersion = 2

	aclOwner = 0x01 // user::rw-
	aclUser  = 0x02 // user:UID:r--
	aclGroup = 0x04
	aclMask  = 0x10
	aclOther = 0x20
	aclNoID  = 0xffffffff
)

// list is the access control list of a file that root writes and the user uid reads.
func list(uid uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range []struct {
		tag, may uint16
		id       uint32
	}{{aclOwner, 6, aclNoID}, {aclUser, 4, uid}, {aclGroup, 0, aclNoID}, {aclMask, 4, aclNoID}, {aclOther, 0, aclNoID}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.may)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// grant has the user read a file of the caller's.
func grant(f *os.File, uid uint32) error {
	if uid == uint32(os.Geteuid()) {
		return nil
	}
	err := linux.OnFD(f, func(fd int) error { return unix.Fsetxattr(fd, aclName, list(uid), 0) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = f.Chown(int(uid), -1)
	}
	if err != nil {
		return fmt.Errorf("cannot have user %d read %q: %w", uid, f.Name(), err)
	}
	return nil
}

// reader returns the user that grant has named.
func reader(f *os.File) (uid uint32, err error) {
	err = linux.OnFD(f, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		uid = st.Uid
		b := make([]byte, len(list(0)))
		if n, err := unix.Fgetxattr(fd, aclName, b); err != nil || n != len(b) || binary.LittleEndian.Uint16(b[12:]) != aclUser {
			return nil // the owner
		}
		uid = binary.LittleEndian.Uint32(b[16:])
		return nil
	})
	return uid, err
}
