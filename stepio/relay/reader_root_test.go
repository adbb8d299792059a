package relay

import (
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
	"stepd/step/launch"
)

// The words of userfaultfd(2), <linux/userfaultfd.h>.
const (
	uffdAPI, uffdMissing              = 0xaa, 1
	uffdioAPI, uffdioRegister, uffdZP = 0xc018aa3f, 0xc020aa00, 0xc020aa04
)

// faulting is memory whose pages do not come until release is called.
func faulting(t *testing.T) (mem []byte, release func()) {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno == unix.ENOSYS {
		t.Skip("a kernel without userfaultfd(2)")
	}
	ask := func(word uintptr, arg []uint64) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, word, uintptr(unsafe.Pointer(&arg[0]))); errno != 0 {
			t.Fatalf("userfaultfd %#x: %v", word, errno)
		}
	}
	if errno != 0 {
		t.Fatal(errno)
	}
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	ask(uffdioAPI, []uint64{uffdAPI, 0, 0})
	ask(uffdioRegister, []uint64{at, 4096, uffdMissing, 0})
	return mem, func() {
		ask(uffdZP, []uint64{at, 4096, 0, 0})
		unix.Close(int(fd))
	}
}

// A launcher that holds its pipe's lock in the kernel, as long as a page of its memory
// does not come, keeps neither the step's record nor its end.
func TestRootLauncherHoldsItsPipe(t *testing.T) {
	testkit.RequireRoot(t)
	mem, release := faulting(t)
	r := New(1)
	e := add(t, r, 1, 0)
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = unix.Read(int(e.launcher.Fd()), mem)
	}()
	if _, err := e.task.WriteString("first"); err != nil {
		t.Fatal(err)
	}
	for r.bytes() == 0 {
		time.Sleep(time.Millisecond) // until the reader is in its page
	}
	time.Sleep(50 * time.Millisecond)
	wrote := make(chan struct{})
	go func() { // splice(2) may hold the lock of the tasks' pipe meanwhile
		defer close(wrote)
		_, _ = e.task.WriteString("second")
		e.task.Close()
	}()
	done := make(chan []launch.Held)
	go func() {
		r.bytes()
		done <- r.Drain(100 * time.Millisecond)
	}()
	select {
	case held := <-done:
		// Where the launcher keeps the last bytes, their stream is reported as held.
		if len(held) > 0 && (held[0].FD != 1 || held[0].Rank != 0) {
			t.Errorf("held: %v", held)
		}
	case <-time.After(20 * time.Second):
		t.Error("the step does not end")
	}
	release()
	<-read
	<-wrote
	select {
	case <-r.gone:
	case <-time.After(20 * time.Second):
		t.Error("the loop does not end")
	}
	e.launcher.Close()
}

// bytes is what has passed of stdout.
func (r *Relay) bytes() int64 {
	var rec step.Record
	r.Fill(&rec)
	return *rec.StdoutBytes
}
