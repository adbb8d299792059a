package x11

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"stepd/internal/linux"
	"stepd/internal/quickjson"
)

// authority is the entry of the job's display in a file of the user's. Its JSON, which has no
// cookie, is the note by which Remove finds what a daemon has left that was killed.
type authority struct {
	Path string `json:"path"`
	// Shared says that the file is the user's own, of which the entry alone is the job's.
	Shared  bool     `json:"shared"`
	Host    string   `json:"host"`
	Display int      `json:"display"`
	UID     uint32   `json:"uid"`
	GID     uint32   `json:"gid"`
	Groups  []uint32 `json:"groups"`
}

// patience bounds the work in the user's file system, which may hang.
const patience = 4 * time.Second

// put makes the entry, in the mount namespace of the job, where that is not nil.
func (a *authority) put(namespace *os.File, cookie []byte) error {
	var late atomic.Bool
	err := a.as(namespace, func() error {
		var err error
		if a.Shared {
			err = edit(a.Path, a.Host, strconv.Itoa(a.Display), cookie)
		} else {
			e := entry{local, []byte(a.Host), []byte(strconv.Itoa(a.Display)), []byte(cookieKind), cookie}
			err = create(a.Path, e.pack(nil))
		}
		if late.Load() {
			err = errors.Join(err, a.take())
		}
		return err
	})
	late.Store(true)
	if err != nil {
		return fmt.Errorf("cannot write the display's key for uid %d: %w", a.UID, err)
	}
	return nil
}

// remove removes the entry, if there is one.
func (a *authority) remove(namespace *os.File) error {
	if err := a.as(namespace, a.take); err != nil {
		return fmt.Errorf("cannot remove the display's key of uid %d: %w", a.UID, err)
	}
	return nil
}

// take is remove for the user.
func (a *authority) take() error {
	if a.Shared {
		return edit(a.Path, a.Host, strconv.Itoa(a.Display), nil)
	}
	return removeFile(a.Path)
}

// removeFile removes a file, if it exists.
func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// as calls do as the user, and waits for it no longer than patience.
func (a *authority) as(namespace *os.File, do func() error) error {
	done := make(chan error, 1)
	go func() {
		done <- linux.OnThread(func() error {
			if err := a.become(namespace); err != nil {
				return err
			}
			return do()
		})
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return fmt.Errorf("the file system of %q has not answered for %v", a.Path, patience)
	}
}

// become makes the calling thread the user's.
func (a *authority) become(namespace *os.File) error {
	if err := linux.EnterMounts(namespace); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil // a test
	}
	return linux.User{UID: a.UID, GID: a.GID, Groups: a.Groups}.Become()
}

// noteMax bounds a note, in bytes: a user has 65,536 groups at most.
const noteMax = 1 << 20

func (a *authority) note(path string) error {
	text, err := quickjson.Marshal(a)
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	return linux.WriteWhole(path, false, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// Remove removes what the daemon of an extern step has left that was killed: the note, and the
// display's key. There may be none. What lies in the job's private directories goes with them.
func Remove(note string) error {
	f, err := os.Open(note)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, noteMax))
	a := new(authority)
	if err == nil {
		err = quickjson.Unmarshal(text, a)
	}
	if err != nil {
		err = fmt.Errorf("cannot read %q: %w", note, err)
	} else {
		err = a.remove(nil)
	}
	return errors.Join(err, removeFile(note))
}
