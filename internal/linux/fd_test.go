package linux

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnFD(t *testing.T) {
	r, w, err := os.Pipe() // its ends do not block
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	own := errors.New("own")
	if err := OnFD(r, func(int) error { return own }); !errors.Is(err, own) {
		t.Errorf("error %v, want %v", err, own)
	}
	err = OnFD(r, func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if flags&unix.O_NONBLOCK == 0 {
			t.Error("it was made to block")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	r.Close()
	if err := OnFD(r, func(int) error { t.Error("a closed file has a descriptor"); return nil }); err == nil {
		t.Error("no error of a closed file")
	}
}
