package relay

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
	"stepd/step/launch"
)

// end is a stream as both sides have it: the task writes, the launcher reads.
type end struct{ task, launcher *os.File }

func add(t *testing.T, r *Relay, fd, rank int) end {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	tasks, err := r.Add(fd, rank, p[1], uint32(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	if flags, _ := unix.FcntlInt(uintptr(tasks), unix.F_GETFL, 0); flags&unix.O_NONBLOCK != 0 {
		t.Error("the tasks' end does not block")
	}
	return end{os.NewFile(uintptr(tasks), "task"), os.NewFile(uintptr(p[0]), "launcher")}
}

func noise(n int, seed uint64) []byte {
	var key [32]byte
	key[0] = byte(seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

func TestEveryByteOfEveryStream(t *testing.T) {
	for _, tapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("tapped %v", tapped), func(t *testing.T) {
			const ranks, size = 50, 150_000
			r := New(ranks)
			heard := make([]bytes.Buffer, ranks)
			ended := make([]bool, ranks)
			if tapped {
				r.SetTap(func(_, rank int, data []byte) {
					heard[rank].Write(data)
					ended[rank] = ended[rank] || len(data) == 0
				})
			}
			var wg sync.WaitGroup
			for rank := range ranks {
				e := add(t, r, 1+rank%2, rank)
				want := noise(size, uint64(rank))
				wg.Go(func() { e.task.Write(want); e.task.Close() })
				wg.Go(func() {
					got, err := io.ReadAll(e.launcher)
					if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
						t.Errorf("rank %d: %d bytes of %d, %v", rank, len(got), size, err)
					}
					e.launcher.Close()
				})
			}
			wg.Wait()
			if held := r.Drain(10 * time.Second); held != nil {
				t.Errorf("held: %v", held)
			}
			var rec step.Record
			r.Fill(&rec)
			if *rec.StdoutBytes != size*ranks/2 || *rec.StderrBytes != size*ranks/2 {
				t.Errorf("counted %d and %d bytes", *rec.StdoutBytes, *rec.StderrBytes)
			}
			for rank := range heard {
				if tapped && (!ended[rank] || !bytes.Equal(heard[rank].Bytes(), noise(size, uint64(rank)))) {
					t.Errorf("the tap heard %d bytes of rank %d, its end: %v", heard[rank].Len(), rank, ended[rank])
				}
			}
		})
	}
}

// A launcher that does not read holds the tasks back, and does not keep the step from
// its end: what was written waits in its pipe.
func TestStoppedLauncher(t *testing.T) {
	r := New(1)
	e := add(t, r, 1, 0)
	if err := unix.SetNonblock(int(e.task.Fd()), true); err != nil {
		t.Fatal(err)
	}
	var want []byte
	piece := noise(1000, 1)
	for room := 1; room > 0; { // until both pipes are full
		n, err := unix.Write(int(e.task.Fd()), piece)
		switch {
		case n > 0:
			want = append(want, piece[:n]...)
		case !errors.Is(err, unix.EAGAIN):
			t.Fatal(err)
		default:
			room, _ = unix.Poll([]unix.PollFd{{Fd: int32(e.task.Fd()), Events: unix.POLLOUT}}, 100)
		}
	}
	e.task.Close()
	start := time.Now()
	if held := r.Drain(time.Minute); held != nil || time.Since(start) > 50*time.Second {
		t.Errorf("drained after %v, held: %v", time.Since(start), held)
	}
	if got, err := io.ReadAll(e.launcher); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
}

// A launcher that is gone ends what the tasks write, whatever else listens.
func TestLauncherGone(t *testing.T) {
	for _, tapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("tapped %v", tapped), func(t *testing.T) {
			r := New(1)
			if tapped {
				r.SetTap(func(int, int, []byte) {})
			}
			e := add(t, r, 1, 0)
			e.launcher.Close()
			wrote, failed := 0, error(nil)
			for wrote < 1<<20 && failed == nil {
				var n int
				n, failed = e.task.Write(make([]byte, 4096))
				wrote += n
			}
			e.task.Close()
			r.Drain(10 * time.Second)
			if !errors.Is(failed, unix.EPIPE) {
				t.Errorf("wrote %d bytes, %v", wrote, failed)
			}
		})
	}
}

// A task that reads its own stdout takes bytes away, and stops nothing else.
func TestThief(t *testing.T) {
	r := New(2)
	r.SetTap(func(int, int, []byte) {})
	e, other := add(t, r, 1, 0), add(t, r, 1, 1)
	thief, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", e.task.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var readers, thieves sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(io.Discard, e.launcher) })
	thieves.Go(func() {
		var b [64]byte
		for {
			if n, err := unix.Read(thief, b[:]); n == 0 && err == nil {
				return
			}
		}
	})
	for i := range 5_000 {
		if _, err := unix.Write(int(e.task.Fd()), []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(int(other.task.Fd()), []byte("y")); err != nil {
			t.Fatal(err)
		}
		p := []unix.PollFd{{Fd: int32(other.launcher.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 10_000); err == nil && n == 0 {
			t.Fatalf("the other stream stands, after %d bytes", i)
		}
		var b [64]byte
		_, _ = unix.Read(int(other.launcher.Fd()), b[:])
	}
	other.task.Close()
	e.task.Close()
	if held := r.Drain(10 * time.Second); held != nil {
		t.Errorf("held: %v", held)
	}
	readers.Wait()
	thieves.Wait()
	unix.Close(thief)
}

// Who keeps a stream open is named, and does not keep the step.
func TestHeldOpen(t *testing.T) {
	r := New(2)
	e, other := add(t, r, 2, 7), add(t, r, 1, launch.AllRanks)
	holder := exec.Command("sleep", "1000")
	holder.Stderr = e.task
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { holder.Process.Kill(); holder.Wait() }()
	e.task.WriteString("last words")
	e.task.Close()
	other.task.Close()
	held := r.Drain(time.Second)
	if len(held) != 1 || held[0].PID != holder.Process.Pid || held[0].FD != 2 || held[0].Rank != 7 || held[0].UID != uint32(os.Getuid()) || held[0].Command == "" {
		t.Fatalf("held: %+v", held)
	}
	if want := fmt.Sprintf("stderr of task 7 held open by pid %d (", held[0].PID); !strings.HasPrefix(held[0].String(), want) {
		t.Errorf("told as %q", held[0])
	}
	if got, _ := io.ReadAll(e.launcher); string(got) != "last words" {
		t.Errorf("read %q", got)
	}
}

func TestRefused(t *testing.T) {
	r := New(1)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := r.Add(1, 0, int(null.Fd()), 0); err == nil {
		t.Error("a launcher's end that is no pipe was taken")
	}
	if _, err := r.Add(0, 0, int(null.Fd()), 0); err == nil {
		t.Error("stdin was taken")
	}
	e := add(t, r, 1, 0)
	if _, err := r.Add(1, 1, int(e.task.Fd()), 0); err == nil {
		t.Error("more streams than allowed")
	}
	e.task.Close()
	r.Drain(time.Second)
	e.launcher.Close()
}
