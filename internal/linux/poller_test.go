package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func newPoller(t *testing.T, events uint32, fds ...int) *Poller {
	t.Helper()
	p, err := NewPoller(events, fds...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestPollerReportsEachEvent(t *testing.T) {
	r, w := pipe(t)
	fd := int(r.Fd())
	p := newPoller(t, unix.EPOLLIN, fd)
	go func() {
		for range 3 {
			_, _ = w.Write([]byte("x"))
		}
	}()
	got := 0
	err := p.Wait(t.Context(), func(ready []int) (bool, error) {
		for _, f := range ready {
			if f != fd {
				t.Errorf("descriptor %d is ready, want %d", f, fd)
			}
			n, err := unix.Read(fd, make([]byte, 1))
			if err != nil {
				return false, err
			}
			got += n
		}
		return got == 3, nil
	})
	if err != nil || got != 3 {
		t.Errorf("Wait = %v after %d bytes, want 3", err, got)
	}
}

func TestPollerManyDescriptors(t *testing.T) {
	const n = 300 // more than one epoll_wait returns
	var fds []int
	for range n {
		r, w := pipe(t)
		w.Close()
		fds = append(fds, int(r.Fd()))
	}
	seen := make(map[int]bool)
	p := newPoller(t, unix.EPOLLIN|unix.EPOLLONESHOT, fds...)
	err := p.Wait(t.Context(), func(ready []int) (bool, error) {
		for _, fd := range ready {
			seen[fd] = true
		}
		return len(seen) == n, nil
	})
	if err != nil {
		t.Errorf("Wait = %v after %d of %d", err, len(seen), n)
	}
}

func TestPollerEnds(t *testing.T) {
	stop := errors.New("stop")
	never := func([]int) (bool, error) { return false, nil }
	tests := []struct {
		name  string
		check func([]int) (bool, error)
		ctx   func() context.Context
		want  error
	}{
		{"true at once", func([]int) (bool, error) { return true, nil }, t.Context, nil},
		{"true at once, context over", func([]int) (bool, error) { return true, nil }, func() context.Context { return cancelled(stop) }, nil},
		{"error of check", func([]int) (bool, error) { return false, stop }, t.Context, stop},
		{"context over before", never, func() context.Context { return cancelled(stop) }, stop},
		{"deadline", never, func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}, context.DeadlineExceeded},
	}
	r, _ := pipe(t)
	// One poller for all: a wait that was given up must not spoil the next.
	p := newPoller(t, unix.EPOLLIN, int(r.Fd()))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := p.Wait(tt.ctx(), tt.check); !errors.Is(err, tt.want) {
				t.Errorf("Wait = %v, want %v", err, tt.want)
			}
		})
	}
}

func cancelled(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

func TestPollerCancelWhileWaiting(t *testing.T) {
	r, _ := pipe(t)
	p := newPoller(t, unix.EPOLLIN, int(r.Fd()))
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := make(chan struct{})
	go func() { <-waiting; cancel(stop) }()
	calls := 0
	err := p.Wait(ctx, func([]int) (bool, error) {
		if calls++; calls == 1 {
			close(waiting)
		}
		return false, nil
	})
	if !errors.Is(err, stop) {
		t.Errorf("Wait = %v, want %v", err, stop)
	}
}

func TestPidfd(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := PidfdOpen(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if exited, err := PidfdExited(fd); exited || err != nil {
		t.Errorf("PidfdExited of a living process = %v, %v", exited, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := PidfdWait(ctx, fd); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("PidfdWait of a living process = %v", err)
	}
	if err := PidfdSignal(fd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := PidfdWait(t.Context(), fd); err != nil {
		t.Errorf("PidfdWait = %v", err)
	}
	if exited, err := PidfdExited(fd); !exited || err != nil {
		t.Errorf("PidfdExited of a zombie = %v, %v", exited, err)
	}
	_ = cmd.Wait()
	if err := PidfdSignal(fd, syscall.SIGKILL); !IsGone(err) {
		t.Errorf("PidfdSignal to a reaped process = %v, want ESRCH", err)
	}
	if _, err := PidfdOpen(cmd.Process.Pid); !IsGone(err) {
		t.Errorf("PidfdOpen of a reaped process = %v, want ESRCH", err)
	}
	if err := PidfdWait(t.Context()); err != nil {
		t.Errorf("PidfdWait for nothing = %v", err)
	}
}

// TestPidfdOfDeadLeader: a number that lives on as a session's is no process.
func TestPidfdOfDeadLeader(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	var child int
	if _, scanErr := fmt.Sscan(string(out), &child); err != nil || scanErr != nil {
		t.Fatal(err, scanErr)
	}
	defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }() // init reaps it
	if sid, err := unix.Getsid(child); err != nil || sid != cmd.Process.Pid {
		t.Fatalf("the child's session is %d, %v; want %d", sid, err, cmd.Process.Pid)
	}
	if _, err := PidfdOpen(cmd.Process.Pid); !IsGone(err) {
		t.Errorf("PidfdOpen of a reaped session leader = %v, want ESRCH", err)
	}
	if _, err := PidfdOpen(-1); err == nil || IsGone(err) {
		t.Errorf("PidfdOpen(-1) = %v, want EINVAL", err)
	}
}

func TestProcessIdentity(t *testing.T) {
	first, err := StartTime(os.Getpid())
	if err != nil || first == 0 {
		t.Fatalf("StartTime = %d, %v", first, err)
	}
	if again, err := StartTime(os.Getpid()); again != first || err != nil {
		t.Errorf("StartTime = %d, %v; want %d as before", again, err, first)
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := StartTime(cmd.Process.Pid); !errors.Is(err, os.ErrNotExist) && !IsGone(err) {
		t.Errorf("StartTime of a reaped process: %v, want ENOENT or ESRCH", err)
	}
	id, err := BootID()
	uuid, _, _ := strings.Cut(id, "/")
	if err != nil || len(uuid) != 36 {
		t.Errorf("BootID = %q, %v", id, err)
	}
}

func TestSameBoot(t *testing.T) {
	for _, tc := range []struct {
		noted, now string
		same       bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"", "a", false},
		{"a/1", "a/1", true}, {"a/1", "a/2", false}, {"a/1", "a", false},
		{"a", "a/1", true}, {"b", "a/1", false}, {"", "a/1", false},
	} {
		if SameBoot(tc.noted, tc.now) != tc.same {
			t.Errorf("noted %q, now %q: want %v", tc.noted, tc.now, tc.same)
		}
	}
}

// TestWaitParksNoThread: hundreds of waits cost goroutines only.
func TestWaitParksNoThread(t *testing.T) {
	before := threads(t)
	ctx, cancel := context.WithCancel(t.Context())
	const n = 200
	waiting, ended := make(chan struct{}, n), make(chan error, n)
	for range n {
		r, _ := pipe(t)
		p := newPoller(t, unix.EPOLLIN, int(r.Fd()))
		go func() {
			first := true
			ended <- p.Wait(ctx, func([]int) (bool, error) {
				if first {
					waiting <- struct{}{}
				}
				first = false
				return false, nil
			})
		}()
	}
	for range n {
		<-waiting
	}
	if more := threads(t) - before; more > 50 {
		t.Errorf("%d waits took %d threads", n, more)
	}
	cancel()
	for range n {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Wait = %v, want %v", err, context.Canceled)
		}
	}
}

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}
