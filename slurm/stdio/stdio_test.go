package stdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/slurm/wire"
	"stepd/step"
	"stepd/step/launch"
)

// TestMain holds that no test leaves a goroutine or a descriptor.
func TestMain(m *testing.M) {
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil { // the runtime's poller stays
		l.Close()
	}
	before := open()
	code := m.Run()
	for range 100 {
		if runtime.NumGoroutine() <= 2 && open() <= before {
			os.Exit(code)
		}
		time.Sleep(20 * time.Millisecond)
	}
	buf := make([]byte, 1<<20)
	fmt.Fprintf(os.Stderr, "left: %d descriptors, before %d\n%s", open(), before, buf[:runtime.Stack(buf, true)])
	os.Exit(1)
}

func open() int {
	fds, _ := os.ReadDir("/proc/self/fd")
	return len(fds)
}

// limit is how long a test waits for what comes at once.
const limit = 20 * time.Second

// key is the credential's signature in these tests.
const key = "MUNGE:AwQFAAC=:\x00"

// frame is what srun sees of a stream.
type frame struct {
	header
	data string
}

// srun is srun's half: it listens, and reads only what a test has it read.
type srun struct {
	t testing.TB
	*net.TCPConn
	r    *bufio.Reader
	ends [3]uint32
}

func (s *srun) next() (frame, error) {
	var b [headerSize]byte
	if err := s.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return frame{}, err
	}
	if _, err := io.ReadFull(s.r, b[:]); err != nil {
		return frame{}, err
	}
	h := header{
		kind(binary.BigEndian.Uint16(b[:])), binary.BigEndian.Uint16(b[2:]),
		binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint32(b[6:]),
	}
	if h.size > dataMax {
		return frame{}, fmt.Errorf("a frame of %d bytes, and srun's buffers hold %d", h.size, dataMax)
	}
	data := make([]byte, h.size)
	_, err := io.ReadFull(s.r, data)
	h.size = 0
	return frame{h, string(data)}, err
}

// want reads the next frame, and compares it.
func (s *srun) want(k kind, rank, local uint16, data string) {
	s.t.Helper()
	f, err := s.next()
	if want := (frame{header{kind: k, rank: rank, local: local}, data}); err != nil || f != want {
		s.t.Fatalf("srun gets %+v, %v, want %+v", f, err, want)
	}
}

// give sends a frame.
func (s *srun) give(k kind, rank uint16, data string) {
	s.t.Helper()
	h := header{kind: k, rank: rank, size: uint32(len(data))}
	if _, err := s.Write(append(h.append(nil), data...)); err != nil {
		s.t.Fatal(err)
	}
}

// toEnd reads until all ends that the daemon has announced have come, closes the connection as
// srun does, and returns what came, by stream and rank.
func (s *srun) toEnd() map[header]string {
	s.t.Helper()
	got := make(map[header]*strings.Builder)
	left := s.ends
	for left[stdout]+left[stderr] > 0 {
		f, err := s.next()
		if err != nil {
			s.t.Fatalf("srun misses %d ends of stdout and %d of stderr: %v", left[stdout], left[stderr], err)
		}
		if got[f.header] == nil {
			got[f.header] = new(strings.Builder)
		}
		if got[f.header].WriteString(f.data); f.data == "" {
			left[f.kind]--
		}
	}
	s.Close()
	all := make(map[header]string)
	for h, b := range got {
		all[h] = b.String()
	}
	return all
}

// rig is a step's streams, with srun and the tasks beside it.
type rig struct {
	t testing.TB
	*Streams
	srun *srun

	mu   sync.Mutex
	fds  map[[2]int]*os.File // guarded by mu: the tasks' ends, by rank and stream
	logs []string            // guarded by mu
	done chan struct{}       // closed by AttachDone
	fail error               // of Attach
}

func (r *rig) Attach(fd, rank, handle int) error {
	f := os.NewFile(uintptr(handle), fmt.Sprintf("stream %d of task %d", fd, rank))
	if flags, _ := unix.FcntlInt(uintptr(handle), unix.F_GETFL, 0); flags&unix.O_NONBLOCK != 0 {
		r.t.Errorf("%s does not block", f.Name())
	}
	if r.fail != nil {
		f.Close()
		return r.fail
	}
	r.fds[[2]int{rank, fd}] = f
	return nil
}

func (r *rig) AttachDone() { close(r.done) }

func (r *rig) log(_ launch.LogLevel, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs = append(r.logs, text)
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.logs, "\n")
}

// fd is a task's end of a stream.
func (r *rig) fd(rank, fd int) *os.File { return r.fds[[2]int{rank, fd}] }

// tasksEnd closes the tasks' ends.
func (r *rig) tasksEnd() {
	for _, f := range r.fds {
		f.Close()
	}
}

// finish ends the step as its daemon does.
func (r *rig) finish() []launch.Held {
	r.t.Helper()
	held := r.Drain(limit)
	r.close()
	return held
}

func (r *rig) close() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		r.t.Error(err)
	}
}

// client is a stream of srun's.
var client = step.Stream{Kind: step.StreamClient}

// config is a step of n tasks, whose ranks begin at 4.
func config(n int) Config {
	cfg := Config{
		Release: wire.V2205, Node: 2, Key: []byte(key), UID: uint32(os.Getuid()), Lines: true,
		Streams: [3]step.Stream{client, client, client},
	}
	for i := range n {
		cfg.Ranks = append(cfg.Ranks, 4+i)
	}
	return cfg
}

// connected is a step that has greeted srun.
func connected(t testing.TB, cfg Config) *rig {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg.Server = netip.MustParseAddrPort(l.Addr().String())
	r := &rig{t: t, fds: make(map[[2]int]*os.File), done: make(chan struct{})}
	cfg.Log = r.log
	r.Streams = New(cfg)
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	r.srun = &srun{t: t, TCPConn: c, r: bufio.NewReaderSize(c, 64<<10)}
	t.Cleanup(func() {
		c.Close()
		r.tasksEnd()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Close(ctx)
		if strings.Contains(r.logged(), "MUNGE") {
			t.Error("the log has the key")
		}
	})
	hello := make([]byte, 22+len(key))
	if _, err := io.ReadFull(r.srun.r, hello); err != nil {
		t.Fatal(err)
	}
	for k := stdout; k <= stderr; k++ {
		r.srun.ends[k] = binary.BigEndian.Uint32(hello[6+4*k:])
	}
	return r
}

// begin is a step whose tasks have their streams.
func begin(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := connected(t, cfg)
	if err := r.Streams.Attach(r); err != nil {
		t.Fatal(err)
	}
	<-r.done
	return r
}

func TestGreeting(t *testing.T) {
	got, err := greeting(wire.V2411, 7, [3]int{0, 5, 4}, []byte("ab\x00"))
	want := "\x00\x00\x00\x15\x2a\x00\x00\x00\x00\x07\x00\x00\x00\x05\x00\x00\x00\x04\x00\x00\x00\x03ab\x00"
	if err != nil || string(got) != want {
		t.Errorf("greeting = %q, %v, want %q", got, err, want)
	}
	if _, err := greeting(wire.V2411, 7, [3]int{}, make([]byte, 1<<16)); err == nil {
		t.Error("a key of 64 KiB is taken")
	}
}

// TestEnds holds how many ends srun is told to wait for, and that so many come, whatever has
// become of the launch.
func TestEnds(t *testing.T) {
	one, other := 5, 99
	null := step.Stream{Kind: step.StreamNull}
	for _, c := range []struct {
		name    string
		streams [3]step.Stream
		want    [3]uint32
	}{
		{"all", [3]step.Stream{client, client, client}, [3]uint32{0, 3, 3}},
		{"none", [3]step.Stream{null, client, null}, [3]uint32{0, 3, 0}},
		{"none at all", [3]step.Stream{null, null, null}, [3]uint32{}},
		// The step's messages have a stream of their own.
		{"files", [3]step.Stream{null, {Kind: step.StreamFile}, {Kind: step.StreamFile}}, [3]uint32{0, 0, 1}},
		{"one task's", [3]step.Stream{null, {Kind: step.StreamClient, Rank: &one}, client}, [3]uint32{0, 1, 3}},
		{"another node's", [3]step.Stream{client, {Kind: step.StreamClient, Rank: &other}, null}, [3]uint32{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config(3)
			cfg.Streams = c.streams
			r := begin(t, cfg)
			if r.srun.ends != c.want {
				t.Errorf("srun is told %v, want %v", r.srun.ends, c.want)
			}
			if used := c.streams[1].Kind == client.Kind && c.want[1] > 0 || c.streams[2].Kind == client.Kind; r.Used() != used {
				t.Errorf("Used = %v", r.Used())
			}
			r.tasksEnd()
			go r.srun.toEnd()
			r.finish()
		})
		t.Run(c.name+", launch failed", func(t *testing.T) {
			cfg := config(3)
			cfg.Streams = c.streams
			r := connected(t, cfg)
			go r.srun.toEnd()
			r.finish()
		})
	}
}

func TestAttachFails(t *testing.T) {
	r := connected(t, config(3))
	r.fail = errors.New("no room")
	if err := r.Streams.Attach(r); !errors.Is(err, r.fail) {
		t.Errorf("Attach = %v, want %v", err, r.fail)
	}
	<-r.done
	r.Say("it failed")
	go r.finish()
	if got := r.srun.toEnd(); got[header{kind: stderr, rank: 4}] != "it failed\n" {
		t.Errorf("srun gets %v", got)
	}
}

func TestOpenFails(t *testing.T) {
	cfg := config(1)
	cfg.Server = netip.MustParseAddrPort("127.0.0.1:1")
	s := New(cfg)
	if err := s.Open(t.Context()); !errors.Is(err, unix.ECONNREFUSED) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Open = %v", err)
	}
	s.Say("nothing hears it")
	if held := s.Drain(limit); held != nil {
		t.Errorf("Drain = %v", held)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("Close = %v", err)
	}
}

// TestEveryByteOfEveryTask has 256 tasks write text and binary data at once.
func TestEveryByteOfEveryTask(t *testing.T) {
	for _, lines := range []bool{true, false} {
		t.Run(fmt.Sprintf("lines %v", lines), func(t *testing.T) {
			cfg := config(256)
			if cfg.Lines = lines; !lines {
				cfg.Streams[1].Kind = step.StreamNull // a terminal for each is another test's
			}
			r := begin(t, cfg)
			want := make(map[header]string)
			var tasks sync.WaitGroup
			for key, f := range r.fds {
				if key[1] == 0 {
					continue
				}
				text := strings.Repeat(fmt.Sprintf("line of %v\n", key), 700)
				if key[0]%3 == 0 {
					text = strings.ReplaceAll(text, "\n", "\x00") + "\n\nend"
				}
				want[header{kind: kind(key[1]), rank: uint16(key[0]), local: uint16(key[0] - 4)}] = text
				tasks.Go(func() {
					defer f.Close()
					for len(text) > 0 {
						n := min(len(text), 1500)
						if _, err := f.WriteString(text[:n]); err != nil {
							t.Error(err)
							return
						}
						text = text[n:]
					}
				})
			}
			go r.finish()
			got := r.srun.toEnd()
			tasks.Wait()
			if len(got) != len(want) {
				t.Errorf("srun gets %d streams, want %d", len(got), len(want))
			}
			var passed [3]int64
			for h, text := range want {
				if got[h] != text {
					t.Errorf("%+v: %d bytes came, %d were written", h, len(got[h]), len(text))
				}
				passed[h.kind] += int64(len(text))
			}
			var rec step.Record
			r.Fill(&rec)
			if lines && (rec.StdoutBytes == nil || *rec.StdoutBytes != passed[1]) || !lines && rec.StdoutBytes != nil || *rec.StderrBytes != passed[2] {
				t.Errorf("the record has %v and %v bytes, want %v", rec.StdoutBytes, *rec.StderrBytes, passed)
			}
		})
	}
}

// TestWholeLines holds how lines are cut into frames.
func TestWholeLines(t *testing.T) {
	long := strings.Repeat("x", 2500)
	r := begin(t, config(1))
	out := r.fd(4, 1)
	write := func(text string) {
		t.Helper()
		if _, err := out.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write("one\ntwo\nthr")
	r.srun.want(stdout, 4, 0, "one\ntwo\n")
	write("ee\n")
	r.srun.want(stdout, 4, 0, "three\n")
	write("a\n" + long)
	r.srun.want(stdout, 4, 0, "a\n")
	r.srun.want(stdout, 4, 0, long[:dataMax])
	r.srun.want(stdout, 4, 0, long[:dataMax])
	write("\nb\nlast")
	r.srun.want(stdout, 4, 0, long[:2500-2*dataMax]+"\nb\n")
	r.tasksEnd()
	r.srun.want(stdout, 4, 0, "last")
	r.srun.want(stdout, 4, 0, "")
	go r.finish()
	r.srun.want(stderr, 4, 0, "")
	r.srun.Close()
	<-r.loop.done
}

// TestTerminal: without whole lines stdout is a terminal, which changes nothing, and whatever is
// written goes out at once.
func TestTerminal(t *testing.T) {
	cfg := config(1)
	cfg.Lines = false
	r := begin(t, cfg)
	if _, err := unix.IoctlGetTermios(int(r.fd(4, 1).Fd()), unix.TCGETS); err != nil {
		t.Errorf("stdout is no terminal: %v", err)
	}
	for k := stdout; k <= stderr; k++ {
		for _, text := range []string{"no end", "\n\ttab\n"} {
			if _, err := r.fd(4, int(k)).WriteString(text); err != nil {
				t.Fatal(err)
			}
			r.srun.want(k, 4, 0, text)
		}
	}
	r.tasksEnd()
	r.srun.want(stdout, 4, 0, "")
	go r.finish()
	r.srun.want(stderr, 4, 0, "")
	r.srun.Close()
	<-r.loop.done
}

// TestSay: the step's own messages come before the end of the first task's stderr, also those
// after the tasks' end and those before their streams.
func TestSay(t *testing.T) {
	r := connected(t, config(2))
	r.Say("before")
	r.srun.want(stderr, 4, 0, "before\n")
	if err := r.Streams.Attach(r); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fd(4, 2).WriteString("own\nrest"); err != nil {
		t.Fatal(err)
	}
	r.srun.want(stderr, 4, 0, "own\n")
	r.tasksEnd()
	if held := r.Drain(limit); held != nil {
		t.Errorf("Drain = %v", held)
	}
	long := strings.Repeat("y", 1500)
	r.Say(long)
	go r.close()
	got := r.srun.toEnd()
	if want := "rest" + long + "\n"; got[header{kind: stderr, rank: 4}] != want {
		t.Errorf("srun gets %q, want %q", got[header{kind: stderr, rank: 4}], want)
	}
	<-r.loop.done
}

// TestSayBounded: messages for an srun that takes nothing are dropped in the end.
func TestSayBounded(t *testing.T) {
	r := begin(t, config(1))
	line := strings.Repeat("z", 1000)
	const lines = 100_000
	for range lines {
		r.Say(line)
	}
	r.tasksEnd()
	go r.finish()
	// The kernel holds some MiB of a connection.
	if got := r.srun.toEnd()[header{kind: stderr, rank: 4}]; len(got) < outMax || len(got) > lines*1000/2 {
		t.Errorf("srun gets %d bytes of messages", len(got))
	}
	<-r.loop.done
	cfg := config(1)
	cfg.Streams[2].Kind = step.StreamNull
	quiet := begin(t, cfg)
	if quiet.Speaks() || !r.Speaks() {
		t.Error("messages go to a stream that the tasks do not have, or not to one that they have")
	}
	quiet.Say("the user wants none")
	quiet.tasksEnd()
	go quiet.finish()
	if got := quiet.srun.toEnd(); len(got) != 1 || got[header{kind: stdout, rank: 4}] != "" {
		t.Errorf("srun gets %v", got)
	}
	<-quiet.loop.done
}

// TestSayElsewhere: messages go by the first stderr there is, and that may be stdout.
func TestSayElsewhere(t *testing.T) {
	five := 5
	for _, c := range []struct {
		stderr step.Stream
		want   header
	}{
		{step.Stream{Kind: step.StreamClient, Rank: &five}, header{kind: stderr, rank: 5, local: 1}},
		{step.Stream{Kind: step.StreamSame}, header{kind: stdout, rank: 4}},
		{step.Stream{Kind: step.StreamFile}, header{kind: stderr, rank: 4}},
	} {
		cfg := config(2)
		cfg.Streams[2] = c.stderr
		r := begin(t, cfg)
		r.tasksEnd()
		r.Drain(limit)
		r.Say("at the end")
		go r.close()
		if got := r.srun.toEnd(); got[c.want] != "at the end\n" {
			t.Errorf("stderr %+v: srun gets %v", c.stderr, got)
		}
		<-r.loop.done
	}
}

// TestSayTask: a message of one task is its own stderr, labelled files included.
func TestSayTask(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []bool{false, true} {
		cfg := labelled(dir, "err.%t")
		cfg.Files[1], cfg.Files[2] = Files{}, cfg.Files[1]
		if !file {
			cfg.Files[2] = Files{}
		}
		r := connected(t, cfg)
		r.SayTask(5, "of five")
		r.SayTask(99, "of another node's")
		if err := r.Streams.Attach(r); err != nil {
			t.Fatal(err)
		}
		r.tasksEnd()
		r.Drain(limit)
		r.SayTask(6, "of six, which has ended")
		go r.close()
		got := make(map[uint16]string)
		for h, text := range r.srun.toEnd() {
			if h.kind == stderr {
				got[h.rank] = text
			}
		}
		<-r.loop.done
		want := map[uint16]string{4: "of another node's\n", 5: "of five\n", 6: "of six, which has ended\n"}
		if file {
			if len(got) != 1 || got[4] != "" {
				t.Errorf("srun gets %v", got)
			}
			for rank, text := range want {
				want[rank] = fmt.Sprintf("%2d: %s", rank, text)
				b, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("err.%d", rank)))
				got[rank] = string(b)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("files %v: messages are %v, want %v", file, got, want)
		}
	}
}

// TestSrunStopped: while srun reads nothing, tasks stand still, and not much is in memory;
// then all comes.
func TestSrunStopped(t *testing.T) {
	r := begin(t, config(1))
	const size = 64 << 20
	stalled := make(chan struct{})
	go func() {
		defer close(stalled)
		block := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
		for sent := 0; sent < size; sent += len(block) {
			if _, err := r.fd(4, 1).Write(block); err != nil {
				t.Error(err)
			}
		}
		r.tasksEnd()
	}()
	awaitSame(t, func() int64 {
		r.loop.mu.Lock()
		defer r.loop.mu.Unlock()
		return r.loop.passed[1]
	}, size/2)
	go func() { <-stalled; r.finish() }()
	if got := r.srun.toEnd()[header{kind: stdout, rank: 4}]; len(got) != size {
		t.Errorf("%d bytes came, %d were written", len(got), size)
	}
	<-r.loop.done
}

// awaitSame waits until a count stands still, which must be below most.
func awaitSame(t *testing.T, count func() int64, most int64) {
	t.Helper()
	last := int64(-1)
	for same := 0; same < 5; time.Sleep(20 * time.Millisecond) {
		now := count()
		if same++; now != last || now == 0 {
			same = 0
		}
		if last = now; now >= most {
			t.Fatalf("%d bytes were taken, and do not stop", now)
		}
	}
}

// TestSrunStoppedForGood: an srun that takes nothing after the tasks' end is given up, and one
// that takes a little at a time.
func TestSrunStoppedForGood(t *testing.T) {
	for _, tc := range []struct {
		silent, all time.Duration
		want        string
	}{
		{50 * time.Millisecond, time.Hour, "it has taken nothing for 50ms"},
		{time.Hour, 60 * time.Millisecond, "it has not taken all within 60ms of the tasks' end"},
	} {
		giveUp(t, tc.silent, tc.all, tc.want)
	}
}

func giveUp(t *testing.T, silent, all time.Duration, want string) {
	t.Helper()
	r := connected(t, config(1))
	r.loop.patience, r.loop.endPatience = silent, all // the loop reads them only when tasks have ended
	if err := r.Streams.Attach(r); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = r.fd(4, 1).Write(make([]byte, 32<<20))
		r.tasksEnd()
	}()
	r.Drain(limit)
	r.close()
	if !strings.Contains(r.logged(), want) {
		t.Errorf("the log has %q", r.logged())
	}
}

// TestSrunKilled: the tasks get no SIGPIPE, as under slurmstepd, and their input ends.
func TestSrunKilled(t *testing.T) {
	r := begin(t, config(2))
	if err := r.srun.SetLinger(0); err != nil { // a reset
		t.Fatal(err)
	}
	r.srun.give(stdinAll, 0, "the last")
	got := make([]byte, 8)
	if _, err := io.ReadFull(r.fd(4, 0), got); err != nil || string(got) != "the last" {
		t.Fatalf("the task reads %q, %v", got, err)
	}
	r.srun.Close()
	for rank := 4; rank < 6; rank++ {
		if rest, err := io.ReadAll(r.fd(rank, 0)); err != nil || len(rest) > 8 {
			t.Errorf("task %d reads %q, %v", rank, rest, err)
		}
	}
	for range 64 {
		if _, err := r.fd(5, 1).Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	r.Say("to no reader")
	r.tasksEnd()
	if held := r.finish(); held != nil {
		t.Errorf("Drain = %v", held)
	}
	if !strings.Contains(r.logged(), "srun takes no more of the step's output") {
		t.Errorf("the log has %q", r.logged())
	}
	var rec step.Record
	if r.Fill(&rec); *rec.StdoutBytes != 4<<20 {
		t.Errorf("the record has %d bytes", *rec.StdoutBytes)
	}
}

// TestHeld: a stream that another process keeps open is closed at last, named, and what is in it
// comes before its end.
func TestHeld(t *testing.T) {
	r := begin(t, config(2))
	sleep, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{Files: []*os.File{nil, r.fd(5, 1), nil}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Kill(); _, _ = sleep.Wait() }()
	if _, err := r.fd(5, 1).WriteString("partial"); err != nil {
		t.Fatal(err)
	}
	r.tasksEnd()
	held := r.Drain(10 * time.Millisecond)
	if len(held) != 1 || held[0].PID != sleep.Pid || held[0].Rank != 5 || held[0].FD != 1 || held[0].Command != "sleep 1000" {
		t.Errorf("Drain = %v", held)
	}
	go r.close()
	if got := r.srun.toEnd()[header{kind: stdout, rank: 5, local: 1}]; got != "partial" {
		t.Errorf("srun gets %v", got)
	}
	<-r.loop.done
}

// TestHeldWriter: a process that writes to a stream without end does not keep the daemon, and is
// named, though it ends by SIGPIPE as soon as the stream is closed.
func TestHeldWriter(t *testing.T) {
	r := begin(t, config(1))
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, r.srun.r)
		r.srun.Close()
	}()
	yes, err := os.StartProcess("/usr/bin/yes", []string{"yes"}, &os.ProcAttr{Files: []*os.File{nil, r.fd(4, 1), nil}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = yes.Kill(); _, _ = yes.Wait() }()
	r.tasksEnd()
	drained := make(chan []launch.Held, 1)
	go func() { drained <- r.Drain(10 * time.Millisecond) }()
	select {
	case held := <-drained:
		if len(held) != 1 || held[0].PID != yes.Pid {
			t.Errorf("Drain = %v", held)
		}
	case <-time.After(time.Minute):
		t.Error("the stream has not been closed within a minute")
		r.loop.enter(stopped)
	}
	r.close()
	<-read
}

// TestCloseBounded: an srun that never closes its streams does not keep the daemon.
func TestCloseBounded(t *testing.T) {
	r := begin(t, config(1))
	r.tasksEnd()
	r.Drain(limit)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v", err)
	}
}

// TestUnreadInput: what srun has sent and no task has read takes nothing of the output away: a
// connection that is closed over unread data is reset.
func TestUnreadInput(t *testing.T) {
	r := begin(t, config(1))
	go func() {
		var err error
		for err == nil {
			_, err = r.srun.Write(append(header{kind: stdinAll, size: dataMax}.append(nil), make([]byte, dataMax)...))
		}
	}()
	text := strings.Repeat("output\n", 100_000)
	go func() {
		_, _ = r.fd(4, 1).WriteString(text)
		r.tasksEnd()
		r.finish()
	}()
	if got := r.srun.toEnd()[header{kind: stdout, rank: 4}]; got != text {
		t.Errorf("%d bytes came, %d were written", len(got), len(text))
	}
	<-r.loop.done
}
