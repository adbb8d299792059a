package stepio

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a new one: its master and its slave.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// A process may write to the pipe while the terminal's user has stopped it (^S): a pipe
// that the kernel holds meanwhile takes no bytes, not even from a non-blocking writer.
func TestPassStoppedTerminal(t *testing.T) {
	master, slave := terminal(t)
	const tcooff, tcoon = 0, 1
	if err := unix.IoctlSetInt(int(slave.Fd()), unix.TCXONC, tcooff); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in := int(write.Fd())
	passed, wrote := make(chan error, 1), make(chan error, 1)
	go func() { passed <- new(Options).pass(slave, read) }()
	go func() {
		_, err := unix.Write(in, []byte("one "))
		for left := 1; err == nil && left > 0; { // until it has taken that
			left, err = unix.IoctlGetInt(in, unix.TIOCINQ)
		}
		if err == nil {
			_, err = unix.Write(in, []byte("two"))
		}
		wrote <- err
	}()
	late := false
	select {
	case err = <-wrote:
	case <-time.After(30 * time.Second):
		late = true
		t.Error("the pipe is held while the terminal is stopped")
	}
	if err := unix.IoctlSetInt(int(slave.Fd()), unix.TCXONC, tcoon); err != nil {
		t.Fatal(err)
	}
	if late {
		err = <-wrote
	}
	if err != nil {
		t.Error(err)
	}
	b := make([]byte, len("one two"))
	if _, err := io.ReadFull(master, b); err != nil || string(b) != "one two" {
		t.Errorf("the terminal shows %q, %v", b, err)
	}
	write.Close()
	if err := <-passed; err != nil {
		t.Error(err)
	}
}

// The kernel moves what it does not wait for with the pipe held.
func TestSpliced(t *testing.T) {
	_, slave := terminal(t)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	file, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socks[0])
	defer unix.Close(socks[1])
	for what, c := range map[string]struct {
		fd   int
		want bool
	}{
		"a terminal": {int(slave.Fd()), false}, "a socket": {socks[0], false},
		"/dev/null": {int(null.Fd()), true}, "a file": {int(file.Fd()), true},
	} {
		if got := spliced(c.fd); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
