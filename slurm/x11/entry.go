package x11

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"stepd/internal/linux"
)

// An entry is a record of a file that X11's clients find a display's cookie in (Xau(3)):
//
//	u16 family, then four texts, each with its length as a u16 before it: the address, the
//	display's number, the name of the kind of cookie, the cookie
//
// all of them big-endian.
type entry struct {
	family                         uint16
	address, display, kind, cookie []byte
}

// local is the family of a display of the host that the address names.
const local = 256

// cookieKind is the only one that Slurm knows.
const cookieKind = "MIT-MAGIC-COOKIE-1"

func (e *entry) pack(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, e.family)
	for _, text := range [][]byte{e.address, e.display, e.kind, e.cookie} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(text))), text...)
	}
	return b
}

// of reports whether the entry is of a display of a host.
func (e *entry) of(host, display string) bool {
	return e.family == local && string(e.address) == host && string(e.display) == display
}

// parse reads a file of entries.
func parse(b []byte) (list []entry, err error) {
	errShort := errors.New("its last entry is cut off")
	for len(b) > 0 {
		if len(b) < 2 {
			return nil, errShort
		}
		e := entry{family: binary.BigEndian.Uint16(b)}
		b = b[2:]
		for _, text := range []*[]byte{&e.address, &e.display, &e.kind, &e.cookie} {
			if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
				return nil, errShort
			}
			n := 2 + int(binary.BigEndian.Uint16(b))
			*text, b = b[2:n], b[n:]
		}
		list = append(list, e)
	}
	return list, nil
}

// open opens a file. The calling thread is the user.
func open(path string, flags int) (*os.File, error) {
	fd, err := linux.OpenUserPath(path, flags, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// fileMax bounds a file of entries, in bytes.
const fileMax = 1 << 20

// readEntries reads a file, which may be missing.
func readEntries(path string) ([]entry, error) {
	f, err := open(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err == nil && len(b) > fileMax {
		err = fmt.Errorf("it has more than %d bytes", fileMax)
	}
	if err != nil {
		return nil, err
	}
	return parse(b)
}

// edit takes the entries of a display out of the user's file, and puts in one with the cookie,
// unless that is nil: as xauth(1) does it, under its lock. The calling thread is the user.
func edit(path, host, display string, cookie []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot change %q: %w", path, err)
		}
	}()
	if err := lock(path); err != nil {
		return err
	}
	defer unlock(path)
	list, err := readEntries(path)
	if err != nil {
		return err
	}
	had := len(list)
	list = slices.DeleteFunc(list, func(e entry) bool { return e.of(host, display) })
	if cookie == nil && len(list) == had {
		return nil
	}
	if cookie != nil {
		list = append(list, entry{local, []byte(host), []byte(display), []byte(cookieKind), cookie})
	}
	var b []byte
	for i := range list {
		b = list[i].pack(b)
	}
	next := path + "-n"
	if err := removeFile(next); err != nil { // of an xauth that was killed
		return err
	}
	if err := create(next, b); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// create makes a file that no other user can read. After an error there is none.
func create(path string, b []byte) error {
	f, err := open(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil { // a full quota
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

const (
	// lockPatience is how long another program may keep the lock, lockDead after what time the
	// lock belongs to a program that was killed, as xauth has it.
	lockPatience = 2 * time.Second
	lockDead     = 10 * time.Minute
	lockPause    = 50 * time.Millisecond
)

// lock takes the lock of a file of entries, which XauLockAuth(3) does by two names: the file
// systems of homes have no other lock that all of them keep, and report no release of it.
func lock(path string) (err error) {
	made, held := path+"-c", path+"-l"
	if st, err := os.Stat(made); err == nil && time.Since(st.ModTime()) > lockDead {
		unlock(path)
	}
	mine := false
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockPause) {
		if !mine {
			err = create(made, nil)
			mine = err == nil
		}
		if mine {
			err = os.Link(made, held)
		}
		if err == nil {
			return nil
		}
		late := time.Now().After(deadline)
		if errors.Is(err, fs.ErrExist) && !late {
			continue
		}
		if mine {
			os.Remove(made)
		}
		if late {
			err = fmt.Errorf("another program holds its lock, %q", held)
		}
		return err
	}
}

func unlock(path string) {
	os.Remove(path + "-c")
	os.Remove(path + "-l")
}
