package stdio

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestInput(t *testing.T) {
	r := begin(t, config(3))
	r.srun.give(stdinAll, 0, "all\n")
	r.srun.give(stdinOne, 5, "one\n")
	r.srun.give(stdinOne, 5, "two\n")
	r.srun.give(test, 0, "")
	r.srun.want(test, 0, 0, "")
	r.srun.give(stdinOne, 6, "")
	r.srun.give(stdinOne, 6, "too late")
	r.srun.give(stdinAll, 0, "again\n")
	r.srun.give(stdinAll, 0, "")
	r.srun.give(stdinAll, 0, "too late")
	for rank, want := range map[int]string{4: "all\nagain\n", 5: "all\none\ntwo\nagain\n", 6: "all\n"} {
		if got, err := io.ReadAll(r.fd(rank, 0)); err != nil || string(got) != want {
			t.Errorf("task %d reads %q, %v, want %q", rank, got, err, want)
		}
	}
	r.tasksEnd()
	go r.finish()
	r.srun.toEnd()
	<-r.loop.done
}

// TestInputFlow: the last piece of much input reaches the task beside another one that writes
// without end, so that the loop always has something to do.
func TestInputFlow(t *testing.T) {
	r := begin(t, config(2))
	go func() {
		for _, err := r.fd(5, 1).Write(make([]byte, 4<<10)); err == nil; {
			_, err = r.fd(5, 1).Write(make([]byte, 4<<10))
		}
	}()
	go func() { _, _ = io.Copy(io.Discard, r.srun.r) }()
	piece := append(header{kind: stdinOne, rank: 4, size: dataMax}.append(nil), make([]byte, dataMax)...)
	got := make([]byte, 2*flowMin+100)
	for range 20 {
		go func() {
			_, _ = r.srun.Write(bytes.Repeat(piece, 2*flowMin/dataMax))
			time.Sleep(pauseMin / 4) // the loop has taken them, and waits for flowRead more
			_, _ = r.srun.Write(append(header{kind: stdinOne, rank: 4, size: 100}.append(nil), make([]byte, 100)...))
		}()
		late := time.AfterFunc(limit, func() { r.srun.Close() }) // and the task's input ends
		if n, err := io.ReadFull(r.fd(4, 0), got); err != nil || !late.Stop() {
			t.Fatalf("the task has %d of %d bytes within %v: %v", n, len(got), limit, err)
		}
	}
	r.tasksEnd()
	r.srun.Close()
	r.finish()
}

// TestInputCut cuts what srun sends at each byte.
func TestInputCut(t *testing.T) {
	var stream []byte
	add := func(k kind, rank uint16, data string) {
		stream = append(header{kind: k, rank: rank, size: uint32(len(data))}.append(stream), data...)
	}
	add(stdinAll, 0, "to all, ")
	add(stdinOne, 5, "to one, ")
	add(test, 0, "")
	add(stdinAll, 0, "to all again")
	add(stdinAll, 0, "")
	want := map[int]string{4: "to all, to all again", 5: "to all, to one, to all again"}
	for cut := range stream {
		in, ends := tasksInputs(t, 4, 5)
		window := append(make([]byte, 0, len(stream)), stream[:cut]...)
		rest, first, err := in.give(window)
		if err != nil {
			t.Fatal(err)
		}
		rest, second, err := in.give(append(bytes.Clone(rest), stream[cut:]...))
		if err != nil || len(rest) > 0 || first == second {
			t.Fatalf("cut at %d: left are %d bytes, %v, tests %v %v", cut, len(rest), err, first, second)
		}
		for rank, f := range ends {
			if got, err := io.ReadAll(f); err != nil || string(got) != want[rank] {
				t.Errorf("cut at %d: task %d reads %q, %v", cut, rank, got, err)
			}
			f.Close()
		}
		if in.held != 0 {
			t.Errorf("cut at %d: %d bytes are held of tasks that have read all", cut, in.held)
		}
	}
}

// tasksInputs makes the inputs of tasks with these ranks, and the tasks' ends.
func tasksInputs(t testing.TB, ranks ...int) (*inputs, map[int]*os.File) {
	t.Helper()
	in := &inputs{byID: make(map[uint16]*input), ranks: make(map[uint16]bool)}
	ends := make(map[int]*os.File)
	for _, rank := range ranks {
		ours, tasks, err := tasksInput()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(ours, true); err != nil {
			t.Fatal(err)
		}
		i := &input{task: rank, fd: ours}
		in.all, in.byID[uint16(rank)], in.ranks[uint16(rank)] = append(in.all, i), i, true
		ends[rank] = os.NewFile(uintptr(tasks), "stdin")
	}
	return in, ends
}

// TestSrunLies: what srun does not send ends the connection, by a message that names it.
func TestSrunLies(t *testing.T) {
	for _, c := range []struct {
		name, bytes, want string
	}{
		{"unknown task", "\x00\x00\x00\x63\x00\x00\x00\x00\x00\x01x", "input for task 99, which is not on this node"},
		{"four billion bytes", "\x00\x03\x00\x00\x00\x00\xff\xff\xff\xff", "a frame of 4294967295 bytes, and 65536 is the limit"},
		{"output", "\x00\x01\x00\x04\x00\x00\x00\x00\x00\x01x", "a frame of type 1"},
		{"unknown type", "\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00", "a frame of type 9"},
		{"test with data", "\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01x", "a connection test of 1 bytes"},
		{"tasks in turns", strings.Repeat("\x00\x03\x00\x00\x00\x00\x00\x00\x00\x01x\x00\x00\x00\x04\x00\x00\x00\x00\x00\x01x", turnsMax), "input for other tasks more than 64 times in"},
		{"behind good ones", "\x00\x03\x00\x00\x00\x00\x00\x00\x00\x01x\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00", "a frame of type 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := begin(t, config(1))
			if _, err := r.srun.Write([]byte(c.bytes)); err != nil {
				t.Fatal(err)
			}
			if _, err := r.srun.next(); err == nil {
				t.Error("the connection stays open")
			}
			if got, err := io.ReadAll(r.fd(4, 0)); err != nil || strings.Trim(string(got), "x") != "" {
				t.Errorf("the task reads %q, %v", got, err)
			}
			r.tasksEnd()
			r.finish()
			if !strings.Contains(r.logged(), c.want) {
				t.Errorf("the log has %q, want %q", r.logged(), c.want)
			}
		})
	}
	t.Run("cut short", func(t *testing.T) {
		r := begin(t, config(1))
		if _, err := r.srun.Write([]byte("\x00\x03\x00\x00\x00\x00\x00\x00\x00\x09half")); err != nil {
			t.Fatal(err)
		}
		r.srun.Close()
		if got, err := io.ReadAll(r.fd(4, 0)); err != nil || len(got) > 0 {
			t.Errorf("the task reads %q, %v", got, err)
		}
		r.tasksEnd()
		r.finish()
	})
}

// TestTaskDoesNotRead: one that reads nothing keeps the others from nothing but what is behind
// a bounded buffer, keeps no output, and a gigabyte that is offered is not taken.
func TestTaskDoesNotRead(t *testing.T) {
	r := begin(t, config(2))
	var taken int64
	full := make(chan struct{})
	go func() {
		defer close(full)
		block := bytes.Repeat(append(header{kind: stdinAll, size: dataMax}.append(nil), make([]byte, dataMax)...), 64)
		for taken < 1<<30 {
			// Nothing moves any more where the tests' machine has had two seconds for it.
			_ = r.srun.SetWriteDeadline(time.Now().Add(2 * time.Second))
			n, err := r.srun.Write(block)
			if taken += int64(n); err != nil {
				return
			}
		}
	}()
	seen := make(chan int64)
	go func() {
		n, _ := io.Copy(io.Discard, r.fd(5, 0))
		seen <- n
	}()
	if _, err := r.fd(4, 1).WriteString("still heard\n"); err != nil {
		t.Fatal(err)
	}
	r.srun.want(stdout, 4, 0, "still heard\n")
	<-full
	r.fd(4, 0).Close() // the rest is dropped
	r.srun.Close()
	n := <-seen
	// The reader has all that was taken, but for what the kernel holds of a connection (6 MiB
	// at most each way) and a cut frame.
	if taken >= 64<<20 || n < heldMax || n > taken {
		t.Errorf("%d bytes were taken of srun, the task that reads has %d", taken, n)
	}
	r.tasksEnd()
	r.finish()
}

// TestHeldInMemory counts what is held of many tasks that read nothing.
func TestHeldInMemory(t *testing.T) {
	var ranks []int
	for rank := range 256 {
		ranks = append(ranks, rank)
	}
	in, ends := tasksInputs(t, ranks...)
	frame := append(header{kind: stdinAll, size: dataMax}.append(nil), make([]byte, dataMax)...)
	given := 0
	for ; !in.full() && given < 16<<20; given += dataMax {
		if _, _, err := in.give(bytes.Clone(frame)); err != nil {
			t.Fatal(err)
		}
	}
	if given < 64<<10 || given > heldMax+256<<10 {
		t.Errorf("tasks that read nothing were given %d bytes", given)
	}
	for rank, f := range ends {
		if rank != 0 {
			f.Close()
		}
	}
	for _, i := range in.all {
		i.blocked = false
		in.write(i)
	}
	if got, err := io.CopyN(io.Discard, ends[0], 64<<10); err != nil || !in.full() {
		t.Errorf("the last task reads %d bytes, %v; held are %d", got, err, in.held)
	}
	ends[0].Close()
	in.all[0].blocked = false
	if in.write(in.all[0]); in.held != 0 {
		t.Errorf("%d bytes are held of tasks that have ended", in.held)
	}
}

// TestTaskClosesInput: what comes for it is dropped, also what it was given before.
func TestTaskClosesInput(t *testing.T) {
	r := begin(t, config(2))
	r.fd(4, 0).Close()
	got := make(chan int64)
	go func() {
		n, _ := io.Copy(io.Discard, r.fd(5, 0))
		got <- n
	}()
	const blocks = 4096
	for range blocks {
		r.srun.give(stdinAll, 0, strings.Repeat("x", dataMax))
	}
	r.srun.give(stdinAll, 0, "")
	if n := <-got; n != blocks*dataMax {
		t.Errorf("the other task reads %d bytes of %d", n, blocks*dataMax)
	}
	r.tasksEnd()
	go r.finish()
	r.srun.toEnd()
	<-r.loop.done
}

func FuzzInput(f *testing.F) {
	add := func(k kind, rank uint16, data string) []byte {
		return append(header{kind: k, rank: rank, size: uint32(len(data))}.append(nil), data...)
	}
	f.Add(append(add(stdinAll, 0, "abc"), add(stdinOne, 1, "def")...), 5)
	f.Add(append(add(stdinAll, 0, ""), add(test, 1, "")...), 12)
	f.Add([]byte("\x00\x03\x00\x00\x00\x00\xff\xff\xff\xff"), 0)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		if len(stream) > 48<<10 {
			return // a pipe is to hold it
		}
		cut = max(0, min(cut, len(stream)))
		run := func(pieces ...[]byte) (texts [2]string, failed bool) {
			in, ends := tasksInputs(t, 0, 1)
			var rest []byte
			for _, p := range pieces {
				var err error
				rest, _, err = in.give(append(bytes.Clone(rest), p...))
				if err != nil {
					failed = true
					break
				}
			}
			in.end()
			for rank, f := range ends {
				got, err := io.ReadAll(f)
				if err != nil {
					t.Fatal(err)
				}
				texts[rank] = string(got)
				f.Close()
			}
			if in.closeAll(); in.held != 0 {
				t.Errorf("%d bytes are held", in.held)
			}
			return texts, failed
		}
		whole, failed := run(stream)
		parts, failedParts := run(stream[:cut], stream[cut:])
		if failed != failedParts || !failed && whole != parts {
			t.Errorf("cut at %d, tasks read %q, %v, else %q, %v", cut, parts, failedParts, whole, failed)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("a\nb\nc"), []byte("d\n"), true)
	f.Add(bytes.Repeat([]byte("x"), 3000), []byte("\n"), true)
	f.Fuzz(func(t *testing.T, a, b []byte, lines bool) {
		h := header{kind: stdout, rank: 1}
		out, rest := appendFrames(nil, h, a, lines)
		out, rest = appendFrames(out, h, append(bytes.Clone(rest), b...), lines)
		if len(rest) > dataMax || !lines && len(rest) > 0 || bytes.IndexByte(rest, '\n') >= 0 {
			t.Fatalf("left are %q", rest)
		}
		var got []byte
		for len(out) > 0 {
			size := int(out[8])<<8 | int(out[9])
			if size == 0 || size > dataMax {
				t.Fatalf("a frame of %d bytes", size)
			}
			got = append(got, out[headerSize:headerSize+size]...)
			out = out[headerSize+size:]
		}
		if want := string(a) + string(b); string(got)+string(rest) != want {
			t.Errorf("frames have %q and %q, want %q", got, rest, want)
		}
	})
}
