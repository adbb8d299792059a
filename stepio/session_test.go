package stepio

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/step"
)

// tasks plays stepd: it takes what a session attaches and hands each rank its
// descriptors.
type tasks struct {
	t    *testing.T
	mine map[stepapi.StreamFD]int
}

func attach(t *testing.T, s *Session) *tasks {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	client, err := stepapi.FromFD(fds[0], "client")
	if err != nil {
		t.Fatal(err)
	}
	stepd, err := stepapi.FromFD(fds[1], "stepd")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	defer stepd.Close()
	k := &tasks{t, map[stepapi.StreamFD]int{}}
	done := make(chan error, 1)
	go func() { done <- s.Attach(client) }()
	for {
		m, got, err := stepd.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.Type == stepapi.TypeAttachDone {
			break
		}
		if len(got) != len(m.Streams) || len(got) > stepapi.FDsMax {
			t.Fatalf("%d descriptors for %d streams", len(got), len(m.Streams))
		}
		for i, st := range m.Streams {
			st.Relay = false
			k.mine[st] = got[i]
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return k
}

// file is a rank's end of a stream, blocking as a program expects it.
func (k *tasks) file(fd, rank int) *os.File {
	k.t.Helper()
	n, ok := k.mine[stepapi.StreamFD{FD: fd, Rank: rank}]
	if !ok {
		k.t.Fatalf("stream %d of rank %d was not attached: %v", fd, rank, k.mine)
	}
	flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK != 0 {
		k.t.Errorf("stream %d of rank %d does not block", fd, rank)
	}
	return os.NewFile(uintptr(n), fmt.Sprintf("fd %d of rank %d", fd, rank))
}

func client(n int) *step.Spec {
	s := &step.Spec{}
	s.NTasks = n
	s.Stdin.Kind, s.Stdout.Kind, s.Stderr.Kind = step.StreamNull, step.StreamClient, step.StreamNull
	return s
}

// outPipe is a destination and what it will have received.
func outPipe(t *testing.T) (*os.File, func() string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	all := make(chan string)
	go func() { b, _ := io.ReadAll(r); all <- string(b) }()
	return w, func() string { w.Close(); return <-all }
}

func TestLinesStayWhole(t *testing.T) {
	for _, tt := range []struct {
		name  string
		label bool
		want  string
	}{
		{"plain", false, "one\ntwo\nno end"},
		{"labelled", true, " 3: one\n 3: two\n 3: no end\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dest, all := outPipe(t)
			s, err := Open(client(12), Options{Stdout: dest, Label: tt.label, SameUser: true})
			if err != nil {
				t.Fatal(err)
			}
			k := attach(t, s)
			for rank := range 12 {
				f := k.file(1, rank)
				if rank == 3 {
					io.WriteString(f, "one\ntw")
					io.WriteString(f, "o\nno end")
				}
				f.Close()
			}
			if !s.Drain(10 * time.Second) {
				t.Error("the streams did not end")
			}
			if got := all(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A thousand ranks at once: no byte is lost, no line is cut.
func TestManyRanks(t *testing.T) {
	const ranks, lines = 1000, 40
	dest, all := outPipe(t)
	s, err := Open(client(ranks), Options{Stdout: dest, SameUser: true})
	if err != nil {
		t.Fatal(err)
	}
	k := attach(t, s)
	text := func(rank, i int) string {
		return fmt.Sprintf("%d %d %x", rank, i, sha256.Sum256(fmt.Appendf(nil, "%d.%d", rank, i)))
	}
	var wg sync.WaitGroup
	for rank := range ranks {
		f := k.file(1, rank)
		wg.Go(func() {
			defer f.Close()
			for i := range lines {
				half := text(rank, i) + "\n"
				io.WriteString(f, half[:10])
				io.WriteString(f, half[10:])
			}
		})
	}
	wg.Wait()
	if !s.Drain(30 * time.Second) {
		t.Fatal("the streams did not end")
	}
	next := make([]int, ranks)
	for _, l := range strings.Split(strings.TrimSuffix(all(), "\n"), "\n") {
		var rank, i int
		if _, err := fmt.Sscan(l, &rank, &i); err != nil || l != text(rank, i) || i != next[rank] {
			t.Fatalf("line %q is cut, or not the next of its rank", l)
		}
		next[rank]++
	}
	for rank, n := range next {
		if n != lines {
			t.Fatalf("rank %d: %d lines", rank, n)
		}
	}
}

func TestBroadcast(t *testing.T) {
	spec := client(3)
	spec.Stdin.Kind, spec.Stdout.Kind = step.StreamClient, step.StreamNull
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(spec, Options{Stdin: in, SameUser: true})
	if err != nil {
		t.Fatal(err)
	}
	k := attach(t, s)
	k.file(0, 1).Close() // a rank that does not read drops out
	want := bytes.Repeat([]byte("all of them\x00\xff"), 50000)
	go func() { w.Write(want); w.Close() }()
	var wg sync.WaitGroup
	for _, rank := range []int{0, 2} {
		f := k.file(0, rank)
		wg.Go(func() {
			if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) {
				t.Errorf("rank %d: %d bytes of %d, %v", rank, len(got), len(want), err)
			}
			f.Close()
		})
	}
	wg.Wait()
}

// What is handed over as it is.
func TestHandedOver(t *testing.T) {
	dir := t.TempDir()
	regular, err := os.Create(dir + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer regular.Close()
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer pipe.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(pair[0]), "socket")
	defer socket.Close()
	defer unix.Close(pair[1])
	for _, tt := range []struct {
		name string
		n    int
		opt  Options
		want bool
	}{
		{"a regular file", 1, Options{Stdout: regular, SameUser: true}, true},
		{"a regular file, many ranks", 3, Options{Stdout: regular, SameUser: true}, true},
		{"a pipe, one rank", 1, Options{Stdout: pipe, SameUser: true}, true},
		{"a pipe, many ranks", 3, Options{Stdout: pipe, SameUser: true}, false},
		{"a pipe, many ranks, unbuffered", 3, Options{Stdout: pipe, SameUser: true, Unbuffered: true}, true},
		{"labelled", 1, Options{Stdout: regular, SameUser: true, Label: true}, false},
		{"another user", 1, Options{Stdout: regular}, false},
		{"a socket", 1, Options{Stdout: socket, SameUser: true}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Open(client(tt.n), tt.opt)
			if err != nil {
				t.Fatal(err)
			}
			if s.Copies() == tt.want {
				t.Errorf("copies: %v, and handed over: %v", s.Copies(), tt.want)
			}
			k := attach(t, s)
			var st, want unix.Stat_t
			if err := unix.Fstat(int(tt.opt.Stdout.Fd()), &want); err != nil {
				t.Fatal(err)
			}
			for _, fd := range k.mine {
				if err := unix.Fstat(fd, &st); err != nil {
					t.Fatal(err)
				}
				unix.Close(fd)
			}
			if got := st.Ino == want.Ino && st.Dev == want.Dev; got != tt.want {
				t.Errorf("handed over: %v, want %v", got, tt.want)
			}
			s.Drain(10 * time.Second)
		})
	}
}

func TestIsNull(t *testing.T) {
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	if !IsNull(null) || !IsNull(nil) || IsNull(zero) {
		t.Error("IsNull is wrong about /dev/null, nothing, or /dev/zero")
	}
}

// A pipe that the client was started with is made wider, never narrower, and what is no
// pipe is left alone.
func TestWidenOwn(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	size := func() int {
		t.Helper()
		n, err := unix.FcntlInt(uintptr(rawFD(r)), unix.F_GETPIPE_SZ, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, c := range []struct{ before, after int }{{64 << 10, pipeMax}, {2 * pipeMax, 2 * pipeMax}} {
		if _, err := unix.FcntlInt(uintptr(rawFD(r)), unix.F_SETPIPE_SZ, c.before); err != nil {
			t.Fatal(err)
		}
		if widenOwn(w); size() != c.after {
			t.Errorf("of %d bytes it has become %d, want %d", c.before, size(), c.after)
		}
	}
	widenOwn(nil)
	if f, err := os.Open(os.DevNull); err == nil {
		widenOwn(f)
		f.Close()
	}
}
