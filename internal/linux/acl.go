package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An access control list (acl(5)) as the kernel stores it (linux/posix_acl_xattr.h): a version, and
// entries of a tag, what it may, and whose it is.
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

// Rights of a file, as in its mode.
const (
	MayRead    uint16 = 4
	MayWrite   uint16 = 2
	MayExecute uint16 = 1
)

// accessList is the list of a file of which its owner has the rights own, the user uid the rights
// may, and no other user any.
func accessList(own uint16, uid uint32, may uint16) []byte {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range []struct {
		tag, may uint16
		id       uint32
	}{{aclOwner, own, aclNoID}, {aclUser, may, uid}, {aclGroup, 0, aclNoID}, {aclMask, may, aclNoID}, {aclOther, 0, aclNoID}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.may)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// GrantUser has the user uid do what may says with a file of the caller's, who keeps the rights own,
// and no other user anything. Where the file system has no access control lists, the file becomes
// the user's, with the mode that it has.
func GrantUser(f *os.File, own uint16, uid uint32, may uint16) error {
	if uid == uint32(os.Geteuid()) {
		return nil
	}
	err := OnFD(f, func(fd int) error { return unix.Fsetxattr(fd, aclName, accessList(own, uid, may), 0) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = f.Chown(int(uid), -1)
	}
	if err != nil {
		return fmt.Errorf("cannot have user %d use %q: %w", uid, f.Name(), err)
	}
	return nil
}

// GrantedUser returns the user that GrantUser has named.
func GrantedUser(f *os.File) (uid uint32, err error) {
	err = OnFD(f, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		uid = st.Uid
		b := make([]byte, len(accessList(0, 0, 0)))
		if n, err := unix.Fgetxattr(fd, aclName, b); err != nil || n != len(b) || binary.LittleEndian.Uint16(b[12:]) != aclUser {
			return nil // the owner
		}
		uid = binary.LittleEndian.Uint32(b[16:])
		return nil
	})
	return uid, err
}
